"""Every promise of docs/promises.md has a test and a mutant."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Promises without a test in this suite, with the reason.
NOT_TESTED_HERE = {
    "R4": "a ratio of times, measured in benchmarks/steps.py",
    "S4": "there is no HTTP or MCP server yet",
}


def list_promises() -> set[str]:
    page = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| ([A-Z]\d) \|", page, re.MULTILINE))


def iterate_marks() -> Iterator[tuple[str, str, str]]:
    """Yield the mark, the promise and the docstring of each marked test."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for decorator in node.decorator_list:
                    match decorator:
                        case ast.Call(
                            func=ast.Attribute(attr="promise" | "mutant" as mark),
                            args=[ast.Constant(value=str(promise))],
                        ):
                            yield mark, promise, ast.get_docstring(node) or ""


@cache
def collect() -> tuple[dict[str, int], dict[str, int]]:
    """Return the number of tests and of mutants of each promise; a docstring may describe a mutant that was run."""
    tests: dict[str, int] = defaultdict(int)
    mutants: dict[str, int] = defaultdict(int)
    for mark, promise, docstring in iterate_marks():
        if mark == "promise":
            tests[promise] += 1
        if mark == "mutant" or re.search(r"\bMutants?:", docstring):
            mutants[promise] += 1
    return tests, mutants


def test_every_promise_has_a_test():
    tests, _ = collect()
    assert list_promises() - tests.keys() - NOT_TESTED_HERE.keys() == set()


def test_every_promise_has_a_mutant():
    _, mutants = collect()
    assert list_promises() - mutants.keys() - NOT_TESTED_HERE.keys() == set()


def test_every_mark_names_a_promise():
    tests, mutants = collect()
    assert (tests.keys() | mutants.keys()) - list_promises() == set()


def test_exceptions_are_promises_without_tests():
    tests, _ = collect()
    assert list_promises() >= NOT_TESTED_HERE.keys()
    assert NOT_TESTED_HERE.keys() & tests.keys() == set()
