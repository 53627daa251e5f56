"""Writer of docs/reference/: the public API, the command line and the settings, from their docstrings and help texts.

python scripts/reference.py           write the pages
python scripts/reference.py --check   fail when they no longer say what the code says
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, is_typeddict

import click

import recollect
from recollect import errors, types
from recollect.settings import CALLER_VARIABLES, CONFIG_FILE, ENV_PREFIX, TIERS, MemoryTier, Secret, Settings

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
PLAIN = {"COLUMNS": "110", "TERMINAL_WIDTH": "110", "TERM": "dumb", "NO_COLOR": "1"}
BAR = r"\|"  # inside a table
NOTE = "<!-- written by scripts/reference.py: edit the docstrings, then run `make docs` -->\n"


# Types of the arguments and results of public calls.
MET = {
    "recollect.clock": ("Clock",),
    "recollect.types": (
        *("TierName", "TierNames", "Why", "LeftOut", "Turn", "Progress"),
        *(name for names in types._LAZY_TYPES.values() for name in names if not hasattr(recollect, name)),
    ),
    "recollect.tiers.quarantine": ("Quarantine",),
    "recollect.lifecycle": ("Lifecycle",),
    "recollect.durable.checkpoints": ("Checkpoints",),
    "recollect.agent.tools": ("tool",),
    "recollect.models.chat": ("ChatModel",),
    "recollect.language.analysis": ("count_tokens",),
}

# Classes that users instantiate; the others are opened, returned, or attributes of a memory.
CONSTRUCTED = {"AgentWithMemory", "ResumableAgent", "WorkingMemory"}

# Attributes of these classes are internal.
CLOSED = {"Checkpoints"}

EXIT_CODES = """
Exit codes: 0 success; 1 not found (no such item, key, task or file, or nothing relevant); 2 usage error; 3 failure,
including a missing store; 130 after Ctrl-C. An empty list is a success with a line on standard error. With `--json` an
error is one line of JSON on standard error, `{"error": "NotFound", "message": "…"}`. `error` is the type's name from
the [API](api.md#errors), or `UsageError` for a command or option that does not exist.
"""


SETTINGS = f"""
Every option with its environment variable, default and reason. An argument takes precedence over the environment
variable, the variable over `{CONFIG_FILE}` in the working directory, and the file over the default. `recollect config
show` prints the effective values and their sources. In code, pass `Settings.load(cache_mib=64)` to
`AgentMemory.open(settings=...)`. Unknown, misspelled and out-of-range options are rejected. Keys are never printed or
logged.
"""

TIERS_TOLD = f"""
`TIERS` is this table as data. Set `max_items` and `ttl_seconds` of a tier in `{CONFIG_FILE}`, or pass other tiers to
`Settings.load`; they have no environment variable.

```toml
[tiers.episodic]
ttl_seconds = 604800
max_items = 5000
```
"""

# Read from the environment only: the location of the local model, and defaults of the command line.
OTHER_VARIABLES = {
    "RECOLLECT_MODEL_DIR": "a directory with your own model, instead of the model that `recollect setup` installs",
    "RECOLLECT_CACHE": "directory of the model that `recollect setup` installs; default `XDG_CACHE_HOME` or `~/.cache`",
    **{
        name: f"`--{name.removeprefix(ENV_PREFIX).lower()}` of every command, when it is not given"
        for name in CALLER_VARIABLES
    },
}


def api() -> str:
    """Return every public name with its signature and docstring, then the types of arguments and results."""
    described = [
        described_name(name, getattr(recollect, name)) for name in recollect.__all__ if name != "RecollectError"
    ]
    met = [
        described_name(name, getattr(importlib.import_module(module), name), f"from {module} import {name}")
        for module, names in MET.items()
        for name in names
    ]
    tree = "\n".join(["RecollectError", *tree_below(errors.RecollectError)])
    told = "Arguments and results of the calls above, and the parts of a memory."
    parts = [NOTE + "# The public API", *described, f"# Met on the way\n\n{told}", *met]
    return "\n\n".join([*parts, f"## Errors\n\n```text\n{tree}\n```"]) + "\n"


def tree_below(error: type[Exception], indent: str = "") -> Iterator[str]:
    """Return a line with the docstring of each subclass of an error, in the order of their definition."""
    below = [kind for kind in error.__subclasses__() if kind.__module__ == errors.__name__]
    for kind in below:
        branch, stem = ("└── ", "    ") if kind is below[-1] else ("├── ", "│   ")
        told = (kind.__doc__ or "").rstrip(".")
        yield f"{indent + branch + kind.__name__:<28}  {told[0].lower()}{told[1:]}"
        yield from tree_below(kind, indent + stem)


def described_name(name: str, value: object, place: str = "") -> str:
    head = f"## {name}\n\n`{place}`" if place else f"## {name}"
    if inspect.isclass(value):
        made = [f"`{name}{signature(value.__init__).removesuffix(' -> None')}`\n"] if name in CONSTRUCTED else []
        return "\n".join([f"{head}\n", *made, told(value), *members(value)]).rstrip()
    if inspect.isfunction(value):
        return f"{head}\n\n`{name}{signature(value)}`\n\n{summary(value)}".rstrip()
    if callable(value) or isinstance(value, UnionType):  # a type that has no name of its own
        return f"{head}\n\n`{name} = {re.sub(r'[a-z]+[.](?=[a-zA-Z])', '', str(value))}`"
    return f"{head}\n\n`{name}: {type(value).__name__}`"


def members(value: type) -> Iterator[str]:
    """Return a row for each field and attribute, then for each public method and property, own and inherited."""
    public = [field for field in fields(value) if field.name[0] != "_"] if is_dataclass(value) else []
    rows = [row(f"{field.name}: {field.type}", "") for field in public]
    if is_typeddict(value):
        rows = [row(f"{name}: {kind.__forward_arg__}", "") for name, kind in value.__annotations__.items()]
    rows += [row(f"{name}: {kind}", said) for name, kind, said in attributes(value)]
    for name in sorted(name for name in dir(value) if name[0] != "_" and not is_typeddict(value)):
        member = inspect.getattr_static(value, name)
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(function):
            awaited = "await " if inspect.iscoroutinefunction(function) else ""
            rows.append(row(f"{awaited}{name}{signature(function)}", summary(function)))
        elif isinstance(function, property):
            kind = getattr(function.fget, "__annotations__", {}).get("return")
            rows.append(row(f"{name}: {kind}" if kind else name, summary(function)))
    if rows:
        yield from ("", "| member | |", "|---|---|", *rows)


def attributes(value: type) -> Iterator[tuple[str, str, str]]:
    """Return the public attributes that a class sets in its own `__init__`, with their types."""
    made = vars(value).get("__init__")
    if not inspect.isfunction(made) or is_dataclass(value) or value.__name__ in CLOSED:
        return
    given = {name: str(one.annotation) for name, one in inspect.signature(made).parameters.items()}
    known = sys.modules[value.__module__]
    assigned: ast.expr | None
    for statement in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(made)))):
        match statement:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name("self"), attr=name)], value=assigned):
                kind = ""
            case ast.AnnAssign(target=ast.Attribute(value=ast.Name("self"), attr=name), annotation=told_so):
                kind, assigned = ast.unparse(told_so), None
            case _:
                continue
        match assigned:
            case ast.Call(func=ast.Name(made_of)) if isinstance(getattr(known, made_of, None), type):
                kind = made_of
            case ast.Name(argument):
                kind = given.get(argument, "")
        if kind and not name.startswith("_"):
            part = getattr(known, kind, None)
            yield name, kind, summary(part) if isinstance(part, type) and part.__module__ != "builtins" else ""


def row(code: str, sentence: str) -> str:
    return f"| `{code.replace('|', BAR)}` | {sentence.replace('|', BAR)} |"


def signature(function: Callable[..., object]) -> str:
    known = inspect.signature(function)
    shown = [
        one.replace(
            default=default_of(one.default),
            annotation=one.annotation if one.annotation is one.empty else Written(one.annotation),
        )
        for one in known.parameters.values()
        if one.name not in ("self", "cls") and not one.name.startswith("_")
    ]
    return str(known.replace(parameters=shown, return_annotation=Written(known.return_annotation)))


def default_of(value: Any) -> Any:
    """Return a function's or a type's name: their repr has an address that differs in every process."""
    if " at 0x" not in repr(value):
        return value
    return Written(getattr(value, "__name__", f"{type(value).__name__}()"))


class Written(str):
    """Return an annotation as it was written, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def told(value: type) -> str:
    """Return the docstring of a class, a line for each paragraph."""
    if (value.__doc__ or "").startswith(f"{value.__name__}("):
        return ""  # what a dataclass says of itself when nobody wrote a sentence
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (inspect.getdoc(value) or "").split("\n\n"))


def summary(value: object) -> str:
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def commands() -> Iterator[str]:
    """Return the help of every command at a fixed terminal width."""
    os.environ.update(PLAIN)
    # Here, because the width is read when these are imported.
    from typer.main import get_command
    from typer.testing import CliRunner

    from recollect.cli.app import app

    runner = CliRunner()
    for path in paths(get_command(app)):
        helped = runner.invoke(app, [*path, "--help"], prog_name="recollect", env=PLAIN, catch_exceptions=False)
        text = "\n".join(line.rstrip() for line in helped.stdout.strip().splitlines())
        yield f"## {' '.join(('recollect', *path))}\n\n```text\n{text}\n```"


def paths(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from paths(inner, *path, name)


def settings() -> str:
    """Return a row for each option, then the tiers, then the variables without an option."""
    ranges = {option.name: limits for option in fields(Settings) if (limits := option.metadata.get("limits"))}
    options = [option for option in fields(Settings) if option.name != "tiers"]
    rows = [
        f"| `{option.name}` | {shown(option.default)} | {extent(option.default, ranges.get(option.name))} "
        f"| `{ENV_PREFIX}{option.name.upper()}` | {option.metadata['why'].replace('|', BAR)} |"
        for option in options
    ]
    head = ("| option | default | range | variable | why |", "|---|---|---|---|---|")
    columns = [column.name for column in fields(MemoryTier)]
    tiers = [f"| {' | '.join(shown(getattr(tier, name)) for name in columns)} |" for tier in TIERS]
    tier_head = (f"| {' | '.join(columns)} |", "|---" * len(columns) + "|")
    others = [f"| `{name}` | {why} |" for name, why in OTHER_VARIABLES.items()]
    parts = [
        NOTE + "# Settings",
        SETTINGS.strip(),
        "\n".join([*head, *rows]),
        "## The tiers",
        TIERS_TOLD.strip(),
        "\n".join([*tier_head, *tiers]),
        "## Other variables",
        "\n".join(["| variable | says |", "|---|---|", *others]),
    ]
    return "\n\n".join(parts) + "\n"


def shown(value: Any) -> str:
    """Return a value as it is written in the configuration file, or nothing if it is not set."""
    if value is None or value == "" or isinstance(value, Secret):
        return "none"
    return f"`{value:,}`".replace(",", "_") if type(value) is int and value >= 10_000 else f"`{value}`"


def extent(default: Any, bounds: tuple[float, float] | None) -> str:
    if bounds is None:
        return "a key" if isinstance(default, Secret) else "text"
    low, high = (f"{bound:,.2f}".rstrip("0").rstrip(".").replace(",", " ") for bound in bounds)
    return f"{low} – {high}"


def main() -> None:
    command_line = "\n\n".join([NOTE + "# The command line", EXIT_CODES.strip(), *commands()]) + "\n"
    pages = {PAGES / "api.md": api(), PAGES / "cli.md": command_line, PAGES / "settings.md": settings()}
    stale = [page for page, text in pages.items() if not page.exists() or page.read_text(encoding="utf-8") != text]
    if stale and "--check" in sys.argv[1:]:
        names = ", ".join(page.relative_to(ROOT).as_posix() for page in stale)
        raise SystemExit(f"stale: {names}; run `make docs`")
    PAGES.mkdir(parents=True, exist_ok=True)
    for page in stale:
        page.write_text(pages[page], encoding="utf-8")


if __name__ == "__main__":
    main()
