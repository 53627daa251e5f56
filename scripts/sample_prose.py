"""Random sample of the prose in src/: docstrings and error messages, drawn with the current commit id as the seed.

python scripts/sample_prose.py [COUNT]       print COUNT of each (default 10) with their places
"""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def iterate_docstrings(path: Path, tree: ast.Module) -> Iterator[str]:
    """Yield each docstring of a module with its place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                name = getattr(node, "name", "module")
                yield f"{path.relative_to(ROOT).as_posix()}:{name}: {' '.join(docstring.split())}"


def iterate_messages(path: Path, tree: ast.Module) -> Iterator[str]:
    """Yield the first argument of each exception that is raised with a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            message = node.exc.args[0]
            if isinstance(message, ast.JoinedStr) or (
                isinstance(message, ast.Constant) and isinstance(message.value, str)
            ):
                yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno}: {ast.unparse(message)}"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    docstrings: list[str] = []
    messages: list[str] = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings += iterate_docstrings(path, tree)
        messages += iterate_messages(path, tree)
    chance = random.Random(commit)
    print(f"commit {commit}: {len(docstrings)} docstrings, {len(messages)} error messages")
    for title, texts in (("docstrings", docstrings), ("error messages", messages)):
        print(f"\n{title}")
        for text in chance.sample(texts, min(count, len(texts))):
            print(f"- {text}")


if __name__ == "__main__":
    main()
