# Every task a person or the CI runs. Each sets up what it needs in .venv; nothing else is installed.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
# What the C++ client is built from: gRPC, GoogleTest and Box2D as Debian has them.
PACKAGES := g++ cmake protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libgrpc++-dev libgtest-dev libbox2d-dev
CLIENT := build/cpp
export FARFIELD_CPP := $(CURDIR)/build/place

.PHONY: help setup train test test-native check bench chaos proto clean

help:  ## list the tasks
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## make .venv with everything in it

$(READY): pyproject.toml constraints.txt $(wildcard native/CMakeLists.txt native/src/* native/python/* native/include/farfield/*)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@touch $(READY)

train: $(READY)  ## the main job: train CartPole-v1 to its threshold and show it
	@name=cartpole-$$(date +%Y%m%d-%H%M%S) && $(BIN)/farfield train CartPole-v1 --name $$name \
	  && $(BIN)/farfield play $$name --episodes 10 && $(BIN)/farfield play $$name --episodes 1 --render

build/packages: Makefile
	@mkdir -p build
	@dpkg -s $(PACKAGES) >/dev/null 2>&1 || { apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null; } || \
	  { echo "the C++ client needs: apt-get install $(PACKAGES)"; test -z "$$CI"; }
	@touch $@

$(CLIENT)/built: build/packages $(wildcard native/*/* native/include/*/* clients/cpp/*/* clients/cpp/include/*/*) proto/farfield/v1/farfield.proto
	cmake -S clients/cpp -B $(CLIENT) -DFARFIELD_TESTS=ON -DFARFIELD_EXAMPLES=ON -DFARFIELD_STRICT=ON >/dev/null
	cmake --build $(CLIENT) --parallel 2 >/dev/null
	cmake --install $(CLIENT) --prefix $(FARFIELD_CPP) >/dev/null
	@touch $@

test: $(READY) $(CLIENT)/built  ## all tests: quick ones first, then processes, servers and faults, in Python and C++
	$(BIN)/pytest -q -m 'not slow and not chaos'
	$(BIN)/pytest -q -m 'slow and not chaos'

test-native: build/packages  ## the C++ suite again, under AddressSanitizer and ThreadSanitizer
	for one in address thread; do \
	  cmake -S clients/cpp -B build/$$one -DFARFIELD_TESTS=ON -DFARFIELD_SANITIZE=$$one >/dev/null && \
	  cmake --build build/$$one --parallel 2 >/dev/null && \
	  ctest --test-dir build/$$one --output-on-failure || exit 1; \
	done

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
