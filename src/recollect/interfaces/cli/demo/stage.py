"""What is seen of the demo: titles, lines, claims with a mark for whether they hold, and a table of timings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from recollect.interfaces.cli.output import Lines

WIDTH = 88  # lines longer than this are hard to read on any screen
_INDENT = 3


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and whether it holds."""

    scene: str
    text: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Marks:
    """The signs in front of lines."""

    yes: str = "✓"
    no: str = "✗"
    asks: str = "?"
    finds: str = "→"
    adds: str = "+"
    done: str = "■"


PLAIN = Marks(yes="ok", no="NO", finds=">", done="#")


def stage_console(*, quiet: bool = False) -> Console:
    console = Lines(highlight=False, emoji=False, quiet=quiet)
    console.width = min(console.width, WIDTH)
    return console


@dataclass(slots=True)
class Stage:
    """Shows the scenes, and keeps what was claimed and measured."""

    console: Console
    checks: list[Check] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    shown: dict[str, dict[str, Any]] = field(default_factory=dict)
    _scene: str = ""

    @property
    def marks(self) -> Marks:
        return Marks() if "utf" in self.console.encoding.lower() else PLAIN

    @property
    def holds(self) -> bool:
        return all(one.ok for one in self.checks)

    def opens(self, title: str, said: str) -> None:
        self._scene = title
        number = f"{len(self.shown) + 1}"
        self.shown[title] = {}
        self.console.print()
        self._print(_row(Text(number, "cyan"), Text(title, "bold"), indent=0))
        self._print(Padding(Text(said, "dim"), (0, 0, 0, _INDENT), expand=False))

    def keep(self, **told: Any) -> None:
        """For a program: what the scene showed, as data."""
        self.shown[self._scene].update(told)

    def line(self, mark: str, text: str, style: str = "") -> None:
        self._print(_row(Text(mark, "cyan"), Text(text, style)))

    def found(self, relevance: float | None, text: str) -> None:
        score = Text(self.marks.finds if relevance is None else f"{self.marks.finds} {relevance:.2f}", "dim")
        self._print(_row(score, Text(text), indent=_INDENT + 2))

    def check(self, ok: bool, text: str) -> None:
        self.checks.append(Check(self._scene, text, ok))
        mark = Text(self.marks.yes, "green") if ok else Text(self.marks.no, "bold red")
        self._print(_row(mark, Text(text, "" if ok else "red")))

    def note(self, text: str) -> None:
        self.console.print()
        self.console.print(Text(text, "dim"))

    def closes(self, timings: Mapping[str, float], next_steps: Mapping[str, str]) -> None:
        """The timings, and where to go from here."""
        self.timings.update(timings)
        self.console.print()
        self.console.print(Text("As measured just now", "bold"))
        self._print(_table({name: _readable(seconds) for name, seconds in timings.items()}, right=True))
        self.console.print()
        self.console.print(Text("Where to go next", "bold"))
        self._print(_table(next_steps, right=False))

    def _print(self, block: Padding) -> None:
        """The block without the blanks that fill its lines up: they would be in every file it is piped to."""
        for line in self.console.render_lines(block, pad=False):
            text = Text.assemble(*((part.text, part.style or "") for part in line))
            text.rstrip()
            self.console.print(text, soft_wrap=True)

    def report(self) -> dict[str, Any]:
        """All of it for a program."""
        scenes = [
            {"title": title, **told, "checks": [_plain(one) for one in self.checks if one.scene == title]}
            for title, told in self.shown.items()
        ]
        timings = {name: round(seconds, 4) for name, seconds in self.timings.items()}
        return {"ok": self.holds, "scenes": scenes, "seconds": timings}


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"  # in one word: a line never ends between the number and its sign


def _row(mark: Text, text: Text, indent: int = _INDENT) -> Padding:
    """A mark and a text beside it, which is indented as far where it needs several lines."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, min_width=_INDENT - 1)
    grid.add_column(overflow="fold")
    grid.add_row(mark, text)
    return Padding(grid, (0, 0, 0, indent), expand=False)


def _table(rows: Mapping[str, str], *, right: bool) -> Padding:
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_column(overflow="fold")
    grid.add_column(justify="right" if right else "left", overflow="fold")
    for name, value in rows.items():
        grid.add_row(Text(name, "" if right else "cyan"), Text(value, "cyan" if right else ""))
    return Padding(grid, (0, 0, 0, _INDENT), expand=False)


def _readable(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _plain(check: Check) -> dict[str, Any]:
    return {name: value for name, value in asdict(check).items() if name != "scene"}
