"""Generator of docs/pictures/tiers.svg: the tiers, their writers, and recall.

python scripts/tiers_picture.py           write it
python scripts/tiers_picture.py --check   fail when it no longer shows what the code says
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from recollect.language.recalled_text import SECTIONS
from recollect.settings import TIERS, MemoryTier

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "tiers.svg"

WIDTH, HEIGHT = 980, 484
CARD, GAP, EDGE = 220, 20, 20
TOP, BOTTOM = 98, 292  # of the cards
RECALL, HEADINGS, FILE = 330, 394, 440  # where these rows begin

# Colors by purpose; the picture has its own background, so that it is readable on any page.
LIGHT = {"ground": "#ffffff", "card": "#f3f5f9", "line": "#8b95a7", "text": "#1c2330", "quiet": "#4d586b"}
DARK = {"ground": "#14181f", "card": "#1f2630", "line": "#66728a", "text": "#e8ecf3", "quiet": "#b3bdcd"}
ACCENTS = (("#8a4b00", "#f5b461"), ("#0b5f6b", "#6fd3df"), ("#1d4fa8", "#8fb8ff"), ("#6a2f8f", "#d3a5f2"))


@dataclass(frozen=True)
class Card:
    """A tier in the picture; its limits come from `TIERS`."""

    name: str
    asks: str
    holds: tuple[str, ...]
    written: tuple[str, ...]


CARDS = (
    Card(
        "working",
        "What am I doing?",
        ("the task at hand: goals,", "results and thoughts"),
        ("start_task, record_step", "working.add"),
    ),
    Card(
        "episodic",
        "What happened?",
        ("turns, tool calls, errors,", "decisions and outcomes"),
        ("record_turn, record_step", "episodic.store"),
    ),
    Card(
        "semantic",
        "What is true?",
        ("facts verbatim, and the", "earlier values of each key"),
        ("remember", "end_task"),
    ),
    Card(
        "procedural",
        "How is it done?",
        ("ways of doing things, with", "versions and success rates"),
        ("procedural.save", "record_outcome"),
    ),
)
BOUND_TO = {"working": "a session", "episodic": "a session", "semantic": "a user", "procedural": "an agent"}


def bounds(tier: MemoryTier) -> tuple[str, str]:
    """Return the maximum number of items and the time to live as text."""
    many = "no cap" if tier.max_items is None else f"{tier.max_items:,} items".replace(",", " ")
    if tier.ttl_seconds is None:
        return many, "for the task" if tier.store == "process" else "until forgotten"
    return many, f"for {tier.ttl_seconds / 3600:g} hours"


def picture() -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t d">',
        '<title id="t">The tiers of memory</title>',
        f'<desc id="d">{escape(described())}</desc>',
        f"<style>{style()}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>',
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="10"/>',
    )
    drawn = [line for at, card in enumerate(CARDS) for line in column(at, card, SECTIONS[at])]
    return "\n".join([*head, *drawn, *below(), "</svg>"]) + "\n"


def described() -> str:
    """Return the description of the picture for screen readers."""
    tiers = {tier.name: tier for tier in TIERS}
    said = [f"{card.name} memory ({card.asks} {', '.join(bounds(tiers[card.name]))})" for card in CARDS]
    rest = (
        "The conversation of each session is a tier, too. One call, recall, queries all and returns one prompt block."
    )
    return f"{'; '.join(said)}. {rest}"


def style() -> str:
    rules = (
        "text{font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif;font-size:14px}",
        ".code{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:13px}",
        ".name{font-size:17px;font-weight:600}.middle{text-anchor:middle}.arrow{fill:none;stroke-width:1.6}",
    )
    light = colours(LIGHT, [light for light, _ in ACCENTS])
    dark = colours(DARK, [dark for _, dark in ACCENTS])
    return f"{''.join(rules)}{light}@media (prefers-color-scheme:dark){{{dark}}}"


def colours(of: dict[str, str], accents: list[str]) -> str:
    named = (
        f".ground{{fill:{of['ground']}}}.card{{fill:{of['card']};stroke:{of['line']}}}text{{fill:{of['text']}}}"
        f".quiet{{fill:{of['quiet']}}}.arrow{{stroke:{of['line']}}}.tip{{fill:{of['line']}}}"
    )
    return named + "".join(f".a{at}{{fill:{accent}}}" for at, accent in enumerate(accents))


def column(at: int, card: Card, section: str) -> Iterator[str]:
    """Return a tier from top to bottom: its writer, its box, and its section of the prompt."""
    left = EDGE + at * (CARD + GAP)
    middle = left + CARD // 2
    many, long = bounds(next(tier for tier in TIERS if tier.name == card.name))
    for row, call in enumerate(card.written):
        yield text(middle, 34 + 20 * row, call, "code middle quiet")
    yield arrow(f"M{middle} 64V{TOP - 4}")
    yield f'<rect class="card" x="{left}" y="{TOP}" width="{CARD}" height="{BOTTOM - TOP}" rx="8"/>'
    yield f'<rect class="a{at}" x="{left}" y="{TOP}" width="{CARD}" height="5" rx="2"/>'
    yield text(left + 14, TOP + 34, card.name, f"name a{at}")
    yield text(left + 14, TOP + 58, card.asks, "")
    for row, line in enumerate((*card.holds, f"{many}, {long}", f"belongs to {BOUND_TO[card.name]}")):
        yield text(left + 14, TOP + 88 + 24 * row + (8 if row > 1 else 0), line, "quiet")
    yield arrow(f"M{middle} {BOTTOM}V{RECALL - 4}")
    yield arrow(f"M{middle} {RECALL + 34}V{HEADINGS - 4}")
    yield f'<rect class="card" x="{left}" y="{HEADINGS}" width="{CARD}" height="34" rx="6"/>'
    yield text(middle, HEADINGS + 22, section, f"code middle a{at}")


def below() -> Iterator[str]:
    """Return the shared parts: the lifecycle, recall, and the file."""
    gap = EDGE + 2 * (CARD + GAP) - GAP
    yield arrow(f"M{gap} {TOP + 34}H{gap + GAP - 2}")
    yield text(gap + GAP // 2, TOP - 10, "lifecycle promotes", "middle quiet")
    wide = WIDTH - 2 * EDGE
    yield f'<rect class="card" x="{EDGE}" y="{RECALL}" width="{wide}" height="34" rx="6"/>'
    yield text(
        WIDTH // 2, RECALL + 22, 'await memory.recall("…", budget=1000)  →  one block for the prompt', "code middle"
    )
    told = "one SQLite file, which also holds the conversations, and the checkpoints with which killed tasks resume"
    yield text(WIDTH // 2, FILE + 22, told, "middle quiet")


def text(x: int, y: int, words: str, kind: str) -> str:
    return f'<text x="{x}" y="{y}"{f" class={kind!r}" if kind else ""}>{escape(words)}</text>'.replace("'", '"')


def arrow(path: str) -> str:
    return f'<path class="arrow" d="{path}" marker-end="url(#tip)"/>'


def main() -> None:
    drawn = picture()
    if PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == drawn:
        return
    if "--check" in sys.argv[1:]:
        raise SystemExit(f"stale: {PICTURE.relative_to(ROOT).as_posix()}; run `python scripts/tiers_picture.py`")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
