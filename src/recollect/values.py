"""The nouns: frozen values that travel between the layers and import nothing of ours but errors."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType, NoneType
from typing import Any, Literal, get_args

from recollect.errors import BadInput

Json = None | bool | int | float | str | Sequence[Any] | Mapping[str, Any]
# What a caller may name; the notes that the lifecycle keeps for itself are nobody else's, and nothing is recalled from
# quarantine.
TierName = Literal["working", "conversation", "episodic", "semantic", "procedural", "checkpoints"]
TierNames = tuple[TierName, ...] | Collection[TierName]
"""Some of them. A tuple is one of many collections, and is named: checkers read its texts as names only then."""
Tier = Literal[TierName, "lifecycle", "quarantine"]
TIER_NAMES: tuple[TierName, ...] = get_args(TierName)

NOTHING: Mapping[str, Any] = MappingProxyType({})

# Kinds of values that JSON holds as they are, whatever they say.
_AS_THEY_ARE = frozenset((str, bool, NoneType))

# More than anybody notes of one thing; what holds more is looked through with care.
_FEW = 100

# Long enough for any path or e-mail address, short enough that a pasted document is refused.
_LONGEST_NAME = 256
_NOT_IN_NAMES = {"Cc", "Zl", "Zp"}


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose memory: every record carries one and every query is bound to one."""

    tenant: str = "default"
    user: str = "default"
    agent: str = "default"
    session: str | None = None

    def __post_init__(self) -> None:
        for part, name in (("tenant", self.tenant), ("user", self.user), ("agent", self.agent)):
            _check_name(part, name)
        if self.session is not None:
            _check_name("session", self.session)

    def space(self, tier: Tier) -> Space:
        """The part of this scope that owns the records of a tier."""
        match tier:
            case "semantic" | "quarantine":
                return Space(self.tenant, tier, user=self.user)
            case "procedural" | "checkpoints":
                return Space(self.tenant, tier, agent=self.agent)
            case _:
                return Space(self.tenant, tier, user=self.user, agent=self.agent, session=self.session or "")


@dataclass(frozen=True, slots=True)
class Space:
    """One owner's records of one tier: the unit that stores key, search, cache and erase by."""

    tenant: str
    tier: Tier
    user: str = ""
    agent: str = ""
    session: str = ""

    def __str__(self) -> str:
        return "/".join((self.tenant, self.tier, self.user, self.agent, self.session))


@dataclass(frozen=True, slots=True)
class Turn:
    """Where an item stands in a dialogue, if it was said in one."""

    session: str
    position: float
    speaker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItem:
    """One memory."""

    id: str
    content: str
    scope: Scope
    created_at: datetime
    tier: Tier = "semantic"
    metadata: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    importance: float = 0.5
    access_count: int = 0
    last_accessed: datetime | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    superseded_by: str | None = None
    expires_at: datetime | None = None
    source: str = "user"
    trust: float = 1.0
    key: str | None = None
    turn: Turn | None = None
    derived_from: tuple[str, ...] = ()
    pinned: bool = False
    decayed_at: datetime | None = None  # up to when its importance has been aged; None: since it was kept
    learned_at: datetime | None = None  # when it came here, where that is later than `created_at`
    version: int = 1

    def __post_init__(self) -> None:
        if not self.content.strip():
            raise BadInput("a memory needs some content; the text given is empty")
        if not 0.0 <= self.importance <= 1.0:
            raise BadInput(f"importance is a number from 0 to 1, not {self.importance!r}")
        if not 0.0 <= self.trust <= 1.0:
            raise BadInput(f"trust is a number from 0 to 1, not {self.trust!r}")
        if self.valid_from and self.valid_to and self.valid_to < self.valid_from:
            raise BadInput(f"valid_to ({self.valid_to}) lies before valid_from ({self.valid_from})")

    def live_at(self, moment: datetime) -> bool:
        """Whether the item is true, and not expired, at a moment."""
        if self.valid_from is not None and self.valid_from > moment:
            return False
        if self.valid_to is not None and self.valid_to <= moment:
            return False
        return self.expires_at is None or self.expires_at > moment


@dataclass(frozen=True, slots=True)
class Why:
    """The evidence behind a hit, so that a person can argue with it."""

    cosine: float | None = None
    words: float | None = None
    matched: tuple[str, ...] = ()
    parts: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    reason: str = ""
    """What no number says, such as that it is the newest of this session."""

    def __getitem__(self, name: str) -> Any:
        """`why["cosine"]`, for those who keep reasons as data."""
        return self.parts[name] if name in self.parts else getattr(self, name)

    def __str__(self) -> str:
        said = [self.reason] if self.reason else []
        if self.cosine is not None:
            said.append(f"cosine {self.cosine:.2f}")
        if self.matched:
            said.append("words " + ", ".join(self.matched))
        said.extend(f"{name} {share:+.2f}" for name, share in self.parts.items() if abs(share) >= 0.005)
        return "; ".join(said) or "no evidence"


@dataclass(frozen=True, slots=True)
class Hit:
    """An item with the reasons why it was found."""

    item: MemoryItem
    tier: Tier
    relevance: float
    score: float
    why: Why


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that was found but not shown, with the reason."""

    item: MemoryItem
    reason: str


@dataclass(frozen=True, slots=True)
class Context:
    """What matters for a query, packed for a prompt; empty and falsy when nothing does."""

    query: str
    text: str = ""
    hits: tuple[Hit, ...] = ()
    tokens: int = 0
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.text)

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    @property
    def sections(self) -> Mapping[str, tuple[str, ...]]:
        """The lines under each heading, in their order."""
        found: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in self.text.splitlines():
            if line.startswith("## "):  # recalled text never begins a line like this
                lines = found.setdefault(line.removeprefix("## "), [])
            elif line:
                lines.append(line)
        return {heading: tuple(lines) for heading, lines in found.items()}

    def explain(self) -> str:
        """Why each line is there, what was left out, and what could not be asked."""
        lines = [f"query: {self.query}"]
        for hit in self.hits:
            lines.append(f"+ {hit.relevance:.2f} [{hit.tier}] {_head(hit.item.content)}  ({hit.why})")
        for out in self.left_out:
            lines.append(f"- [{out.item.tier}] {_head(out.item.content)}  ({out.reason})")
        lines.extend(f"! {warning}" for warning in self.warnings)
        if len(lines) == 1:
            lines.append("nothing relevant is remembered")
        return "\n".join(lines)


def content_id(space: Space, content: str, *parts: str) -> str:
    """The id of an item, derived from what it is: the same content in the same place is the same item."""
    digest = hashlib.blake2b(digest_size=12)
    for part in (str(space), content, *parts):
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.hexdigest()


def plain_json(value: Any, path: str = "metadata") -> Any:
    """The value as plain JSON data, or `BadInput` naming the path of what cannot be stored."""
    if type(value) is dict and all(type(one) is str and type(value[one]) in _AS_THEY_ARE for one in value):
        return dict(value)  # as most metadata: to write it down and read it again would give the same
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except RecursionError as error:
        raise BadInput(f"{path} refers to itself or is nested too deeply to store") from error
    except (TypeError, ValueError) as error:
        if "Circular" in str(error):  # its path would be as long as the circle is short
            raise BadInput(f"{path} contains itself, which cannot be stored as JSON; leave that part out") from error
        raise BadInput(f"{_first_unstorable(value, path)} cannot be stored as JSON: {error}") from error
    return json.loads(text)


def is_simple(value: Any, deep: int = 1) -> bool:
    """Whether it is a mapping of names to lines of text, truths and nothing, as most metadata is, so many levels deep.

    Every store keeps that as it is, whatever it says: there is nothing to refuse, and nothing to make of it.
    """
    if type(value) is not dict or len(value) > _FEW:
        return False
    for name, one in value.items():
        # What can be printed has no control characters, and no half of one.
        if type(name) is not str or not name.isprintable():
            return False
        if type(one) is str:
            if not one.isprintable():
                return False
        elif type(one) not in _AS_THEY_ARE and not (deep > 1 and is_simple(one, deep - 1)):
            return False
    return True


def _first_unstorable(value: Any, path: str, depth: int = 0) -> str:
    if depth > 100:
        return path
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                return f"{path} has the key {key!r}, which"
            if not _storable(inner):
                return _first_unstorable(inner, f"{path}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            if not _storable(inner):
                return _first_unstorable(inner, f"{path}[{index}]", depth + 1)
    return path


def _storable(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _check_name(part: str, name: str) -> None:
    if not isinstance(name, str) or not name.strip():
        raise BadInput(f"the {part} of a scope is a non-empty name, not {name!r:.80}")
    if len(name) > _LONGEST_NAME or has_control(name):
        raise BadInput(f"the {part} of a scope has at most {_LONGEST_NAME} characters and no control characters")


def has_control(name: str) -> bool:
    """Whether a name holds control characters, or separators that some programs take for the end of a line."""
    # What can be printed, as nearly every name, has none of them.
    return not name.isprintable() and any(unicodedata.category(one) in _NOT_IN_NAMES for one in name)


def _head(text: str, width: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
