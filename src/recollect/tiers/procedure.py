"""One version of a procedure: the value that callers see, as the item that stores keep."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from recollect.tiers.outcomes import Outcomes, SuccessRate, as_json, from_json, promise
from recollect.values import MemoryItem, Scope, Space, content_id

Standing = Literal["current", "superseded", "retired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """How something is done, in one of its versions, and how that has worked."""

    id: str
    key: str
    version: int
    body: str
    description: str
    tags: tuple[str, ...]
    source: str
    trust: float
    created_at: datetime
    standing: Standing = "current"
    restored_from: int | None = None
    """The older version that a rollback made current again as this one; its outcomes count here too."""
    outcomes: Outcomes = field(default_factory=Outcomes)

    @property
    def current(self) -> bool:
        return self.standing == "current"

    @property
    def retired(self) -> bool:
        return self.standing == "retired"

    @property
    def demoted(self) -> bool:
        return self.outcomes.demoted

    @property
    def success_rate(self) -> SuccessRate:
        return self.outcomes.success_rate


def version_id(space: Space, key: str, version: int) -> str:
    """The same for everybody: of two who write a version at once, one is refused."""
    return content_id(space, key, "version", str(version))


def item_of(procedure: Procedure, scope: Scope) -> MemoryItem:
    """The procedure as an item. Its content is the heading and the body, so that both are embedded, found and shown."""
    heading = _heading(procedure)
    return MemoryItem(
        id=procedure.id,
        content=heading + procedure.body,
        scope=scope,
        created_at=procedure.created_at,
        tier="procedural",
        metadata=_metadata(procedure, len(heading)),
        # What has worked goes before what has not, where a search finds both alike.
        importance=promise(procedure.outcomes),
        source=procedure.source,
        trust=procedure.trust,
        key=procedure.key,
    )


def changed(item: MemoryItem, procedure: Procedure) -> MemoryItem:
    """The stored item with what a procedure says now; owner, accesses and times stay."""
    fresh = item_of(procedure, item.scope)
    return replace(item, content=fresh.content, metadata=fresh.metadata, importance=fresh.importance, trust=fresh.trust)


def procedure_of(item: MemoryItem) -> Procedure:
    about = item.metadata
    return Procedure(
        id=item.id,
        key=item.key or "",
        version=about["number"],
        body=item.content[about["body_at"] :],
        description=about["description"],
        tags=tuple(about["tags"]),
        source=item.source,
        trust=item.trust,
        created_at=item.created_at,
        standing=about["standing"],
        restored_from=about["restored_from"],
        outcomes=from_json(about["outcomes"]),
    )


def _heading(procedure: Procedure) -> str:
    named = f"{procedure.key}: {procedure.description}" if procedure.description else procedure.key
    return f"{named} [{', '.join(procedure.tags)}]\n" if procedure.tags else f"{named}\n"


def _metadata(procedure: Procedure, body_at: int) -> dict[str, Any]:
    return {
        "number": procedure.version,
        "standing": procedure.standing,
        "description": procedure.description,
        "tags": list(procedure.tags),
        "body_at": body_at,
        "restored_from": procedure.restored_from,
        "outcomes": as_json(procedure.outcomes),
    }
