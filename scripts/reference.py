"""Writes docs/reference/: the public API and the command line, each in its own words.

python scripts/reference.py           write the pages
python scripts/reference.py --check   fail when they no longer say what the code says
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import click

import recollect
from recollect import errors

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
PLAIN = {"COLUMNS": "110", "TERMINAL_WIDTH": "110", "TERM": "dumb", "NO_COLOR": "1"}
BAR = r"\|"  # inside a table
NOTE = "<!-- written by scripts/reference.py: edit the docstrings, then run `make docs` -->\n"


def api() -> str:
    """Every public name with its signature and what its docstring says first."""
    described = [described_name(name) for name in recollect.__all__ if not is_error(name)]
    tree = (errors.__doc__ or "").partition("\n\n")[2].strip()
    return "\n\n".join([NOTE + "# The public API", *described, f"## Errors\n\n```text\n{tree}\n```"]) + "\n"


def is_error(name: str) -> bool:
    value = getattr(recollect, name)
    return isinstance(value, type) and issubclass(value, Exception)


def described_name(name: str) -> str:
    value = getattr(recollect, name)
    if inspect.isclass(value):
        return "\n".join([f"## {name}\n", summary(value), *members(value)]).rstrip()
    if callable(value):
        return f"## {name}\n\n`{name}{signature(value)}`\n\n{summary(value)}".rstrip()
    return f"## {name}\n\n`{name}: {type(value).__name__}`"


def members(value: type) -> Iterator[str]:
    """A row for each field, then for each public method and property, its own and inherited."""
    rows = [row(f"{field.name}: {field.type}", "") for field in fields(value)] if is_dataclass(value) else []
    for name in sorted(name for name in dir(value) if name[0] != "_"):
        member = inspect.getattr_static(value, name)
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(function):
            awaited = "await " if inspect.iscoroutinefunction(function) else ""
            rows.append(row(f"{awaited}{name}{signature(function)}", summary(function)))
        elif isinstance(function, property):
            rows.append(row(name, summary(function)))
    if rows:
        yield from ("", "| member | |", "|---|---|", *rows)


def row(code: str, sentence: str) -> str:
    return f"| `{code.replace('|', BAR)}` | {sentence.replace('|', BAR)} |"


def signature(function: Callable[..., object]) -> str:
    known = inspect.signature(function)
    shown = [
        one if one.annotation is one.empty else one.replace(annotation=Written(one.annotation))
        for one in known.parameters.values()
        if one.name not in ("self", "cls")
    ]
    return str(known.replace(parameters=shown, return_annotation=Written(known.return_annotation)))


class Written(str):
    """An annotation, shown as it was written rather than in quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def summary(value: object) -> str:
    if isinstance(value, type) and (value.__doc__ or "").startswith(f"{value.__name__}("):
        return ""  # what a dataclass says of itself when nobody wrote a sentence
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def commands() -> Iterator[str]:
    """The help of every command, as it prints it, at a width that does not depend on the reader's terminal."""
    os.environ.update(PLAIN)
    # Here, because the width is read when these are imported.
    from typer.main import get_command
    from typer.testing import CliRunner

    from recollect.interfaces.cli.app import app

    runner = CliRunner()
    for path in paths(get_command(app)):
        lines = runner.invoke(app, [*path, "--help"], prog_name="recollect", env=PLAIN).stdout.strip().splitlines()
        text = "\n".join(line.rstrip() for line in lines)
        yield f"## {' '.join(('recollect', *path))}\n\n```text\n{text}\n```"


def paths(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from paths(inner, *path, name)


def main() -> None:
    pages = {PAGES / "api.md": api(), PAGES / "cli.md": "\n\n".join([NOTE + "# The command line", *commands()]) + "\n"}
    stale = [page for page, text in pages.items() if not page.exists() or page.read_text(encoding="utf-8") != text]
    if stale and "--check" in sys.argv[1:]:
        names = ", ".join(page.relative_to(ROOT).as_posix() for page in stale)
        raise SystemExit(f"stale: {names}; run `make docs`")
    PAGES.mkdir(parents=True, exist_ok=True)
    for page in stale:
        page.write_text(pages[page], encoding="utf-8")


if __name__ == "__main__":
    main()
