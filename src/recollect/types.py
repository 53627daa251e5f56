"""Frozen values of the public API: scopes, items, hits and contexts. The results of other calls are loaded lazily."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlsplit

from recollect.errors import BadInput
from recollect.validation import check_name

if TYPE_CHECKING:
    from recollect.agent.run import AgentEvent as AgentEvent
    from recollect.agent.run import AgentRun as AgentRun
    from recollect.agent.run import AgentStep as AgentStep
    from recollect.agent.run import ToolUse as ToolUse
    from recollect.durable.checkpoints import CheckpointVersion as CheckpointVersion
    from recollect.engine import Opening as Opening
    from recollect.erasure.eraser import Verification as Verification
    from recollect.erasure.source import SourceForgotten as SourceForgotten
    from recollect.health.report import DoctorFinding as DoctorFinding
    from recollect.health.report import DoctorReport as DoctorReport
    from recollect.health.stats import Stats as Stats
    from recollect.health.stats import TierStats as TierStats
    from recollect.lifecycle.report import LifecycleAction as LifecycleAction
    from recollect.lifecycle.report import LifecycleReport as LifecycleReport
    from recollect.models.chat import ChatMessage as ChatMessage
    from recollect.models.chat import Reply as Reply
    from recollect.models.chat import ToolCall as ToolCall
    from recollect.models.chat import ToolSpec as ToolSpec
    from recollect.models.chat import Usage as Usage
    from recollect.models.usage import ModelUsage as ModelUsage
    from recollect.portability.export import ExportReport as ExportReport
    from recollect.portability.importer import ImportReport as ImportReport
    from recollect.portability.migration import MigrationReport as MigrationReport
    from recollect.recording.task import StepRecord as StepRecord
    from recollect.recording.task import TaskOutcome as TaskOutcome
    from recollect.recording.turn import TurnRecord as TurnRecord
    from recollect.stores.erasure import ByteScan as ByteScan
    from recollect.stores.erasure import ErasureReceipt as ErasureReceipt
    from recollect.stores.writes import Step as Step
    from recollect.stores.writes import Task as Task
    from recollect.tiers.consolidation import ConsolidationReport as ConsolidationReport
    from recollect.tiers.consolidation import ItemMerge as ItemMerge
    from recollect.tiers.episodic import Episode as Episode
    from recollect.tiers.messages import Message as Message
    from recollect.tiers.procedural import Procedure as Procedure
    from recollect.tiers.procedural import SuccessRate as SuccessRate
    from recollect.tiers.procedural import TrialOutcomes as TrialOutcomes
    from recollect.tiers.quarantine import QuarantinedItem as QuarantinedItem


TierName = Literal["working", "conversation", "episodic", "semantic", "procedural", "checkpoints"]
TierNames = tuple[TierName, ...] | Collection[TierName]
"""Several tiers. The tuple is listed because type checkers infer literal names only for it."""
Tier = Literal[TierName, "lifecycle", "quarantine"]
"""Public tiers, and the internal ones for lifecycle notes and for quarantined items."""
TIER_NAMES: tuple[TierName, ...] = get_args(TierName)

# Results of calls, imported on first use: their modules import this one.
_LAZY_TYPES = {
    "recollect.agent.run": ("AgentEvent", "AgentRun", "AgentStep", "ToolUse"),
    "recollect.durable.checkpoints": ("CheckpointVersion",),
    "recollect.engine": ("Opening",),
    "recollect.erasure.eraser": ("Verification",),
    "recollect.erasure.source": ("SourceForgotten",),
    "recollect.health.report": ("DoctorFinding", "DoctorReport"),
    "recollect.health.stats": ("Stats", "TierStats"),
    "recollect.lifecycle.report": ("LifecycleAction", "LifecycleReport"),
    "recollect.models.chat": ("ChatMessage", "Reply", "ToolCall", "ToolSpec", "Usage"),
    "recollect.models.usage": ("ModelUsage",),
    "recollect.portability.export": ("ExportReport",),
    "recollect.portability.importer": ("ImportReport",),
    "recollect.portability.migration": ("MigrationReport",),
    "recollect.recording.task": ("StepRecord", "TaskOutcome"),
    "recollect.recording.turn": ("TurnRecord",),
    "recollect.stores.erasure": ("ByteScan", "ErasureReceipt"),
    "recollect.stores.writes": ("Step", "Task"),
    "recollect.tiers.consolidation": ("ConsolidationReport", "ItemMerge"),
    "recollect.tiers.episodic": ("Episode",),
    "recollect.tiers.messages": ("Message",),
    "recollect.tiers.procedural": ("Procedure", "SuccessRate", "TrialOutcomes"),
    "recollect.tiers.quarantine": ("QuarantinedItem",),
}


def __getattr__(name: str) -> Any:
    for module, names in _LAZY_TYPES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(module), name)
            return value
    raise AttributeError(f"module 'recollect.types' has no attribute {name!r}")


EMPTY_MAPPING: Mapping[str, Any] = MappingProxyType({})

# An e-mail address has at most 254 characters.
_MAX_NAME_LENGTH = 256


@dataclass(frozen=True, slots=True)
class Scope:
    """Owner of memory: every record has a scope, and every query is bound to one."""

    tenant: str = "default"
    user: str = "default"
    agent: str = "default"
    session: str | None = None

    def __post_init__(self) -> None:
        for part, name in (("tenant", self.tenant), ("user", self.user), ("agent", self.agent)):
            check_name(f"the {part} of a scope", name, max_length=_MAX_NAME_LENGTH, example="ada")
        if self.session is not None:
            check_name("the session of a scope", self.session, max_length=_MAX_NAME_LENGTH, example="monday")

    def space(self, tier: Tier) -> Space:
        """Return the space of this scope for a tier."""
        match tier:
            case "semantic" | "quarantine":
                return Space(self.tenant, tier, user=self.user)
            case "procedural" | "checkpoints":
                return Space(self.tenant, tier, agent=self.agent)
            case _:
                return Space(self.tenant, tier, user=self.user, agent=self.agent, session=self.session or "")


@dataclass(frozen=True, slots=True)
class Space:
    """Records of one owner and tier: the unit of keys, searches, caches and erasure in a store."""

    tenant: str
    tier: Tier
    user: str = ""
    agent: str = ""
    session: str = ""

    def __str__(self) -> str:
        return "/".join((self.tenant, self.tier, self.user, self.agent, self.session))


@dataclass(frozen=True, slots=True)
class Turn:
    """Position of an item in a dialogue."""

    session: str
    position: float
    speaker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItem:
    """Stored memory with its source, trust and validity."""

    id: str
    content: str
    scope: Scope
    created_at: datetime
    tier: Tier = "semantic"
    metadata: Mapping[str, Any] = field(default_factory=lambda: EMPTY_MAPPING)
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
    decayed_at: datetime | None = None  # importance has decayed up to this time; None: not yet
    learned_at: datetime | None = None  # time of the import, if later than created_at
    version: int = 1

    def __post_init__(self) -> None:
        if not self.content.strip():
            raise BadInput("content must not be empty")
        for name, fraction in (("importance", self.importance), ("trust", self.trust)):
            if not 0.0 <= fraction <= 1.0:
                raise BadInput(f"{name} must be a number from 0 to 1; got {fraction!r}")
        if self.valid_from and self.valid_to and self.valid_to < self.valid_from:
            raise BadInput(f"valid_to must not be before valid_from ({self.valid_from}); got {self.valid_to}")

    def live_at(self, moment: datetime) -> bool:
        """Return whether the item is valid and not expired at a time."""
        if self.valid_from is not None and self.valid_from > moment:
            return False
        if self.valid_to is not None and self.valid_to <= moment:
            return False
        return self.expires_at is None or self.expires_at > moment


@dataclass(frozen=True, slots=True)
class Why:
    """Evidence of a hit, for people."""

    cosine: float | None = None
    words: float | None = None
    matched: tuple[str, ...] = ()
    parts: Mapping[str, float] = field(default_factory=lambda: EMPTY_MAPPING)
    reason: str = ""
    """Reason without a number, such as `newest of this session`."""

    def __getitem__(self, name: str) -> Any:
        """Return a part or a field by name, as in `why["cosine"]`."""
        return self.parts[name] if name in self.parts else getattr(self, name)

    def __str__(self) -> str:
        reasons = [self.reason] if self.reason else []
        if self.cosine is not None:
            reasons.append(f"cosine {self.cosine:.2f}")
        if self.matched:
            reasons.append("words " + ", ".join(self.matched))
        reasons.extend(f"{name} {share:+.2f}" for name, share in self.parts.items() if abs(share) >= 0.005)
        return "; ".join(reasons) or "no evidence"


@dataclass(frozen=True, slots=True)
class Hit:
    """Item that answers a query, with its relevance and evidence."""

    item: MemoryItem
    tier: Tier
    relevance: float
    score: float
    why: Why


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Item that was found but not shown, with the reason."""

    item: MemoryItem
    reason: str


@dataclass(frozen=True, slots=True)
class ContextLine:
    """Line of a prompt block; `hit` is None for the state of the task."""

    text: str
    section: str
    hit: Hit | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """Relevant memories for a query, packed for a prompt; falsy if nothing is relevant.

    `hits` are best first, and `lines` are in the order of the text.
    """

    query: str
    text: str = ""
    hits: tuple[Hit, ...] = ()
    tokens: int = 0
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()
    lines: tuple[ContextLine, ...] = ()

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
        """Lines under each heading, in order."""
        sections: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in self.text.splitlines():
            if line.startswith("## "):  # recalled text never starts a line like this
                lines = sections.setdefault(line.removeprefix("## "), [])
            elif line:
                lines.append(line)
        return {heading: tuple(lines) for heading, lines in sections.items()}

    def explain(self) -> str:
        """Return the evidence of each line, the items left out with reasons, and the warnings."""
        lines = [f"query: {self.query}"]
        for hit in self.hits:
            lines.append(f"+ {hit.relevance:.2f} [{hit.tier}] {truncate_line(hit.item.content)}  ({hit.why})")
        for out in self.left_out:
            lines.append(f"- [{out.item.tier}] {truncate_line(out.item.content)}  ({out.reason})")
        lines.extend(f"! {warning}" for warning in self.warnings)
        if len(lines) == 1:
            lines.append("nothing relevant is remembered")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a long operation: its stage, the amount done, and the total if it is known."""

    stage: str
    done: int
    total: int | None = None


ProgressCallback = Callable[[Progress], None]


def get_turn_space(scope: Scope) -> Space:
    """Return the space of the indexed conversation turns of a user and agent, for all of their sessions."""
    return Space(scope.tenant, "conversation", user=scope.user, agent=scope.agent)


def get_site(source: str) -> str:
    """Return the host of a source that is a URL, or the source itself. A site may have any number of pages."""
    if "://" not in source:
        return source
    try:
        return urlsplit(source).hostname or source
    except ValueError:  # for example, unbalanced brackets
        return source


def make_content_id(space: Space, content: str, *parts: str) -> str:
    """Return an id derived from the content: the same content in the same space is the same item."""
    digest = hashlib.blake2b(digest_size=12)
    for part in (str(space), content, *parts):
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.hexdigest()


def truncate_line(text: str, width: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
