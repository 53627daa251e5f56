"""Markdown parsing: fenced blocks in order, commands with their output, links, pictures and headings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.wire.script import Call, Say

FENCE = re.compile(r"^(?P<fence>`{3,})(?P<kind>[\w+-]*)[^\n]*\n(?P<text>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*\]\((?P<target>[^)\s]+)\)")
PICTURE = re.compile(r"!\[(?P<says>[^\]]*)\]\((?P<target>[^)\s]+)\)")
IMAGE = re.compile(r'<img src="(?P<target>[^"]+)"[^>]* alt="(?P<says>[^"]*)"')
# Comments that script the model's answers for the blocks below, in order.
ANSWER = re.compile(r"^<!-- the model (?P<does>says|calls) (?P<what>.+?) -->$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+\s+(?P<title>.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int


@dataclass(frozen=True)
class Picture:
    says: str
    target: str


@dataclass(frozen=True)
class Command:
    text: str
    output: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match["kind"], match["text"], text.count("\n", 0, match.start("text")) + 1)
        for match in FENCE.finditer(text)
    ]


def answers(page: Path) -> list[Say]:
    """Return the scripted answers: `<!-- the model says Hi. -->` or `<!-- the model calls look {"at": "x"} -->`."""
    return [
        Say(" ".join(match["what"].split())) if match["does"] == "says" else _build_call(match["what"])
        for match in ANSWER.finditer(page.read_text(encoding="utf-8"))
    ]


def _build_call(what: str) -> Say:
    name, _, arguments = what.partition(" ")
    return Say(calls=(Call(name, json.loads(arguments or "{}")),))


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a block: every line in `bash`; in `console`, lines after `$ `, each with its output."""
    lines = block.text.replace("\\\n", "  ").splitlines()
    if block.kind != "console":
        for offset, line in enumerate(lines):
            if command := without_comment(line):
                yield Command(command, "", block.line + offset)
        return
    starts = [offset for offset, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        output = "\n".join(lines[start + 1 : end])
        yield Command(without_comment(lines[start].removeprefix("$ ")), output, block.line + start)


def without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#\s.*$", "", line).strip()


def says(printed: str, expected: str) -> bool:
    """Return True if the expected text was printed; spacing is ignored, and … matches anything."""
    pieces = [" ".join(piece.split()) for piece in re.split(r"…|\.\.\.", expected)]
    pattern = ".*".join(re.escape(piece) for piece in pieces if piece)
    return re.search(pattern, " ".join(printed.split()), re.DOTALL) is not None


def links(page: Path) -> list[str]:
    """Return the link targets inside the project, without URLs."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [match["target"] for match in LINK.finditer(text)]
    return [target for target in targets if not re.match(r"[a-z][a-z0-9+.-]*:", target)]


def pictures(page: Path) -> list[Picture]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [Picture(match["says"], match["target"]) for kind in (PICTURE, IMAGE) for match in kind.finditer(text)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = (match["title"].lower() for match in HEADING.finditer(text))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}
