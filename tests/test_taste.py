"""What a linter does not hold: names, sizes, and inheritance."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(p for p in (ROOT / "src" / "farfield").rglob("*.py") if "v1" not in p.parts)
VAGUE = re.compile(r"(Manager|Factory|Helper|Handler|Util|Base|Mixin|Abstract)")
EMPTY_NAMES = {"utils.py", "common.py", "core.py", "helpers.py", "misc.py"}
FILE_LINES, FUNCTION_LINES = 300, 50
# Words of others for things that have a name here; prose and code alike.
FOREIGN = re.compile(r"\b(rollout|trajectory|replay buffer|rollout worker|hyperparam(eter)?s?)\b", re.IGNORECASE)
# The door for programs that were written for RL4Sys has the names of the API that it replaces.
DOORS = (ROOT / "src" / "farfield" / "compat" / "rl4sys",)
OWN = {node.name for p in SOURCES for node in ast.walk(ast.parse(p.read_text())) if isinstance(node, ast.ClassDef)}


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_a_file_tells_one_story(path: Path) -> None:
    text = path.read_text()
    assert path.name not in EMPTY_NAMES
    assert len(text.splitlines()) <= FILE_LINES, f"{path}: split it"
    theirs = any(door in path.parents for door in DOORS)
    assert theirs or not FOREIGN.search(text), f"{path}: say {FOREIGN.search(text)} in our words"
    tree = ast.parse(text)
    opening = ast.get_docstring(tree)
    assert opening, f"{path} does not say what goes in and what comes out"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES, f"{path}: {node.name} is long"
        if isinstance(node, ast.ClassDef):
            assert not VAGUE.search(node.name), f"{path}: {node.name} says nothing"
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            assert not bases & OWN - {"FarfieldError"}, f"{path}: {node.name} inherits from our own"


def test_there_are_few_kinds_of_errors() -> None:
    tree = ast.parse((ROOT / "src/farfield/errors.py").read_text())
    assert sum(isinstance(node, ast.ClassDef) for node in tree.body) <= 8


def test_nothing_executable_is_read() -> None:
    for path in SOURCES:
        assert not re.search(r"\b(pickle|cloudpickle|marshal|dill)\b|torch\.load|\beval\(", path.read_text()), path


def test_every_example_is_short() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        assert len(lines) <= 60, path
