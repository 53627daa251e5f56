"""Writes docs/reference/: the public API, the command line and the settings, each in its own words.

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
from recollect import errors
from recollect.settings import _RANGES, FILE, OF_THE_CALLER, PREFIX, TIERS, MemoryTier, Secret, Settings

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
PLAIN = {"COLUMNS": "110", "TERMINAL_WIDTH": "110", "TERM": "dumb", "NO_COLOR": "1"}
BAR = r"\|"  # inside a table
NOTE = "<!-- written by scripts/reference.py: edit the docstrings, then run `make docs` -->\n"


# What the calls take and give back: nobody has to import these, but everybody meets them.
MET = {
    "recollect.clock": ("Clock",),
    "recollect.tiers.facts": ("FactOptions",),
    "recollect.values": ("TierName", "TierNames", "Why", "LeftOut", "Turn"),
    "recollect.memory.opening": ("Opening",),
    "recollect.memory.turn_record": ("TurnRecord",),
    "recollect.memory.task_life": ("StepRecord", "TaskOutcome"),
    "recollect.tiers.messages": ("Message",),
    "recollect.tiers.episodic": ("Episode",),
    "recollect.tiers.procedure": ("Procedure",),
    "recollect.tiers.outcomes": ("Outcomes", "SuccessRate"),
    "recollect.tiers.consolidate": ("Merge",),
    "recollect.tiers.quarantine": ("Quarantine", "Quarantined"),
    "recollect.memory.by_source": ("SourceForgotten",),
    "recollect.lifecycle": ("Lifecycle", "ErasureReceipt", "Verification", "Scan"),
    "recollect.lifecycle.report": ("Action",),
    "recollect.memory.stats": ("Stats", "TierStats"),
    "recollect.doctor": ("DoctorReport", "Finding"),
    "recollect.memory.exporting": ("ExportReport",),
    "recollect.memory.importing": ("ImportReport",),
    "recollect.runtime.checkpoints": ("Checkpoints", "Version"),
    "recollect.stores.base": ("Task", "Step"),
    "recollect.agent.tools": ("tool",),
    "recollect.agent.run": ("Run", "Step", "ToolUse"),
    "recollect.agent.events": ("AgentEvent",),
    "recollect.inference.chat": ("ChatModel", "ChatMessage", "ToolSpec", "ToolCall", "Reply", "Usage"),
    "recollect.inference.ledger": ("Spent",),
    "recollect.words.tokens": ("count_tokens",),
}

# What users make themselves by calling its name; the rest is opened, returned, or found on what they hold.
CONSTRUCTED = {"AgentWithMemory", "ResumableAgent", "WorkingMemory"}

# What these have for attributes is for the rest of the library.
CLOSED = {"Checkpoints"}

EXIT_CODES = """
Exit codes: 0 when it was done, 1 when there is nothing of what was asked for (no such item, key, task or file, or
nothing relevant), 2 when the call cannot be meant, 3 when it failed, also because the store is not there, 130 after
Ctrl-C. A list with nothing in it is no failure: the code is 0, and a line on standard error says so. With `--json` an
error is one line of JSON on standard error, `{"error": "NotFound", "message": "…"}`, with the type's name from the
[API](api.md#errors), or `UsageError` for a command or option that does not exist.
"""


SETTINGS = f"""
Every option, where it can be set, and why it is there. An argument comes first, then the environment variable, then
`{FILE}` in the working directory, then the default; `recollect config show` prints the effective value of each
and where it came from. In code it is `Settings.load(cache_mib=64)`, handed to `AgentMemory.open(settings=...)`.
What does not exist, is misspelled or is out of range is refused with the way out. Keys are never printed or logged.
"""

TIERS_TOLD = f"""
`TIERS` is this table as data. `max_items` and `ttl_seconds` of a tier are set in `{FILE}`, or by handing
`Settings.load` other tiers; there is no variable for them.

```toml
[tiers.episodic]
ttl_seconds = 604800
max_items = 5000
```
"""

# Not options of a memory: where the local model is on this machine, and who calls the command line.
OTHER_VARIABLES = {
    "RECOLLECT_MODEL_DIR": "a directory with a model of your own, instead of the one that `recollect setup` installs",
    "RECOLLECT_CACHE": "where `recollect setup` puts the model; `XDG_CACHE_HOME` or `~/.cache` otherwise",
    **{
        name: f"`--{name.removeprefix(PREFIX).lower()}` of every command, when it is not given"
        for name in OF_THE_CALLER
    },
}


def api() -> str:
    """Every public name with its signature and what its docstring says first, then what one meets through them."""
    described = [described_name(name, getattr(recollect, name)) for name in recollect.__all__ if not is_error(name)]
    met = [
        described_name(name, getattr(importlib.import_module(module), name), f"from {module} import {name}")
        for module, names in MET.items()
        for name in names
    ]
    tree = (errors.__doc__ or "").partition("\n\n")[2].strip()
    told = "What the calls above take and give back, and the parts of a memory that nobody makes themselves."
    parts = [NOTE + "# The public API", *described, f"# Met on the way\n\n{told}", *met]
    return "\n\n".join([*parts, f"## Errors\n\n```text\n{tree}\n```"]) + "\n"


def is_error(name: str) -> bool:
    value = getattr(recollect, name)
    return isinstance(value, type) and issubclass(value, Exception)


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
    """A row for each field and attribute, then for each public method and property, its own and inherited."""
    rows = [row(f"{field.name}: {field.type}", "") for field in fields(value)] if is_dataclass(value) else []
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
    """What an object has besides: what its own `__init__` puts there under a public name, and of which type."""
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
        if one.name not in ("self", "cls")
    ]
    return str(known.replace(parameters=shown, return_annotation=Written(known.return_annotation)))


def default_of(value: Any) -> Any:
    """A function by its name, and what holds functions by its type's: what they print differs in every process."""
    if " at 0x" not in repr(value):
        return value
    return Written(getattr(value, "__name__", f"{type(value).__name__}()"))


class Written(str):
    """An annotation, shown as it was written rather than in quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def told(value: type) -> str:
    """All that a class says of itself, a line for each paragraph."""
    if (value.__doc__ or "").startswith(f"{value.__name__}("):
        return ""  # what a dataclass says of itself when nobody wrote a sentence
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (inspect.getdoc(value) or "").split("\n\n"))


def summary(value: object) -> str:
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
        helped = runner.invoke(app, [*path, "--help"], prog_name="recollect", env=PLAIN, catch_exceptions=False)
        text = "\n".join(line.rstrip() for line in helped.stdout.strip().splitlines())
        yield f"## {' '.join(('recollect', *path))}\n\n```text\n{text}\n```"


def paths(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from paths(inner, *path, name)


def settings() -> str:
    """A row for each option, then the tiers, then what is read from the environment alone."""
    ranges = {name: (low, high) for name, low, high in _RANGES}
    options = [option for option in fields(Settings) if option.name != "tiers"]
    rows = [
        f"| `{option.name}` | {shown(option.default)} | {extent(option.default, ranges.get(option.name))} "
        f"| `{PREFIX}{option.name.upper()}` | {option.metadata['why'].replace('|', BAR)} |"
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
    """A value as one would write it in the file; what is not set has no value to show."""
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
