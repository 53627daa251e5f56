"""What the lifecycle notes for itself: how far each log was read, what was promoted, what was said how often.

The notes are items of a tier of their own, kept beside the facts: a fact and the note that it was made are written in
one batch, so that nothing is promoted twice, whoever else runs, and what was forgotten stays forgotten. They hold
hashes and numbers, never what was said.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from recollect.clock import to_micros
from recollect.errors import Conflict
from recollect.lifecycle.ground import Ground
from recollect.stores.ops import Delete, Put
from recollect.stores.where import Condition, Where
from recollect.values import MemoryItem, Scope, Space

# Twins of one utterance, in the conversation and in the episodes, and a message that was sent again.
_SAME_MOMENT = 60_000_000
LEARNED_FROM = ("log:conversation:", "log:episodic:")
"""How the notes on how far logs were read begin."""
_SAID = "said:"
_SEASON = timedelta(days=90)
_OCCURRENCES = 5
_OFTEN = 3
_SESSIONS = 2


class Marks:
    """The notes of one user and agent, read when asked for and written with what they are about."""

    def __init__(self, ground: Ground, scope: Scope) -> None:
        self._ground = ground
        self._scope = Scope(scope.tenant, scope.user, scope.agent)
        self.space: Space = self._scope.space("lifecycle")

    async def get(self, names: Iterable[str]) -> dict[str, MemoryItem]:
        wanted = list(dict.fromkeys(names))
        return {mark.id: mark for mark in await self._ground.get(self.space, *wanted)} if wanted else {}

    def put(self, name: str, told: Mapping[str, Any], held: MemoryItem | None, now: datetime) -> Put:
        """The note, if nobody has changed it since it was read."""
        item = MemoryItem(
            id=name,
            content=name,
            scope=self._scope,
            tier="lifecycle",
            created_at=now if held is None else held.created_at,
            metadata=told,
            importance=0.0,
            source="lifecycle",
        )
        return Put(item=item, expect=0 if held is None else held.version)


async def forget_old_notes(ground: Ground, space: Space, now: datetime) -> None:
    """What was said once, and not again for a season, is not being repeated."""
    old = Where(space, conditions=(Condition("created_at", "lte", to_micros(now - _SEASON)),))
    async for page in ground.pages(old):
        gone = [mark for mark in page if mark.id.startswith(_SAID) and not mark.metadata.get("kept")]
        if gone:
            with contextlib.suppress(Conflict):  # it was just said again
                await ground.write(*(Delete(space, mark.id, expect=mark.version) for mark in gone))


def read_up_to(space: Space) -> str:
    """The name of the note on how far a log was read."""
    return f"log:{space.tier}:{space.session}"


def kept(id: str) -> str:
    """The name of the note on a fact that was made of something said."""
    return f"kept:{id}"


def valued(slot: str) -> str:
    """The name of the note on which facts have told the value of a slot lately."""
    return f"value:{_digest(slot)}"


def said(fingerprint: str) -> str:
    """The name of the note on how often something was said."""
    return f"{_SAID}{_digest(fingerprint)}"


def seq_of(mark: MemoryItem | None) -> int:
    return int(mark.metadata["seq"]) if mark is not None else 0


def with_occurrence(told: Mapping[str, Any], session: str, at: datetime, entry: str) -> dict[str, Any]:
    """The note with one occurrence more, unless it is one that it knows."""
    known = [list(one) for one in told.get("said", ())]
    moment = to_micros(at)
    for one in known:
        if one[0] == session and abs(one[1] - moment) <= _SAME_MOMENT:
            return {**told, "said": known}
    return {**told, "said": [*known, [session, moment, entry]][-_OCCURRENCES:]}


def is_repeated(told: Mapping[str, Any]) -> bool:
    """Whether something was said in two sessions, or three times."""
    occurrences = told.get("said", ())
    return len(occurrences) >= _OFTEN or len({one[0] for one in occurrences}) >= _SESSIONS


def was_said_by(told: Mapping[str, Any], at: datetime) -> bool:
    """Whether what was said at a moment is what a fact was made of already, or came before it."""
    return to_micros(at) <= int(told.get("at", 0)) + _SAME_MOMENT


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()
