# Every task a person or the CI runs. Each sets up what it needs in .venv; nothing else is installed.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: help setup train test check bench chaos proto clean

help:  ## list the tasks
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY)  ## make .venv with everything in it

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@touch $(READY)

train: $(READY)  ## the main job: train CartPole-v1 to its threshold and show it
	@name=cartpole-$$(date +%Y%m%d-%H%M%S) && $(BIN)/farfield train CartPole-v1 --name $$name \
	  && $(BIN)/farfield play $$name --episodes 10 && $(BIN)/farfield play $$name --episodes 1 --render

test: $(READY)  ## all tests: quick ones first, then processes and faults
	$(BIN)/pytest -q -m 'not slow and not chaos'
	$(BIN)/pytest -q -m 'slow and not chaos'

check: $(READY)  ## style, types, import rules
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(READY)  ## ours and peers side by side; writes docs/performance.md
	$(BIN)/python bench/run.py

chaos: $(READY)  ## the full counts of faults
	$(BIN)/pytest -q -m chaos

proto: $(READY)  ## generate src/farfield/v1 from proto/
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=src --pyi_out=src --grpc_python_out=src proto/farfield/v1/farfield.proto

clean:  ## remove what setup made
	rm -rf .venv build dist
