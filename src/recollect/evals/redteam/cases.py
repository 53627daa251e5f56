"""The cases: attacks and ordinary texts, made from templates in the same way every time."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

Half = Literal["tune", "test"]
HALVES: tuple[Half, ...] = ("tune", "test")

SEED = 7
_TOPICS_EACH = 2
_FILLS_EACH = 5
_FLOOD = 60

_DISGUISE = re.compile(r"\{(zw|tags|cyr|leet|spaced|b64|hex|full|rev):([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Attack:
    """Texts that are brought in through a door, what is asked afterwards, and what must not be in the answer."""

    kind: str
    door: str
    measure: str
    texts: tuple[str, ...]
    query: str
    canary: str
    truth: str
    """What the user has said about it."""
    right: str
    """The words of it that an answer must have."""
    key: str


def attacks(half: Half) -> list[Attack]:
    """The scripted injections of one half."""
    told = _told(f"{half}_attacks.json")
    chance = random.Random(f"{SEED} {half}")
    made: list[Attack] = []
    for template in told["attacks"]:
        for text in template["texts"]:
            for topic in chance.sample(told["topics"], _TOPICS_EACH):
                made.append(_attack(template, text, topic, len(made)))
    return made


def ordinary(half: Half) -> list[str]:
    """Texts of one half that mean no harm."""
    told = _told(f"{half}_ordinary.json")
    texts = [
        _filled(text, {name: values[at % len(values)] for name, values in told["slots"].items()})
        for text in told["texts"]
        for at in range(_FILLS_EACH)
    ]
    return list(dict.fromkeys(texts))


def _attack(template: Mapping[str, Any], text: str, topic: Mapping[str, str], number: int) -> Attack:
    count = _FLOOD if template["door"] == "flood" else 1
    slug = re.sub(r"\W+", "-", topic["bad"].lower())
    slots = {**topic, "bad_slug": slug, "n": str(100 + number)}
    return Attack(
        kind=template["kind"],
        door=template["door"],
        measure=template.get("measure", "canary"),
        texts=tuple(_disguised(text, {**slots, "i": str(at)}) for at in range(count)),
        query=topic["query"],
        canary=topic["bad"],
        truth=topic["truth"],
        right=topic["right"],
        key=topic["key"],
    )


def _disguised(text: str, slots: Mapping[str, str]) -> str:
    """The template filled in; what stands in `{zw:…}` and the like is disguised after that."""
    parts = []
    at = 0
    for found in _DISGUISE.finditer(text):
        parts += [_filled(text[at : found.start()], slots), _WAYS[found[1]](_filled(found[2], slots))]
        at = found.end()
    return "".join([*parts, _filled(text[at:], slots)])


def _filled(text: str, slots: Mapping[str, str]) -> str:
    marked = text.replace("{{", "\x01").replace("}}", "\x02")
    filled = _SLOT.sub(lambda found: slots.get(found[1], found[0]), marked)
    return filled.replace("\x01", "{").replace("\x02", "}")


def _cyrillic(text: str) -> str:
    return text.translate(str.maketrans("aeopcI", "аеорсІ"))


def _leet(text: str) -> str:
    return text.translate(str.maketrans("oieI", "01e1"))


_WAYS: Mapping[str, Any] = {
    "zw": "\u200b".join,
    "tags": lambda text: "".join(chr(0xE0000 + ord(sign)) for sign in text if ord(sign) < 0x7F),
    "cyr": _cyrillic,
    "leet": _leet,
    "spaced": " ".join,
    "b64": lambda text: base64.b64encode(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "full": lambda text: "".join(chr(ord(sign) + 0xFEE0) if "!" <= sign <= "~" else sign for sign in text),
    "rev": lambda text: f"\u202e{text[::-1]}\u202c",
}


def _told(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(files("recollect.evals.redteam").joinpath(name).read_text("utf-8"))
    return told
