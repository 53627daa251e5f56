"""Notes of the lifecycle: how far each log was read, what was promoted and how often something was repeated.

Notes are items of their own tier in the store of the facts. A fact and its note are written in one batch, so that
concurrent runs promote nothing twice and forgotten facts do not return. Notes hold hashes and numbers, no content.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from recollect.clock import to_micros
from recollect.errors import Conflict
from recollect.stores.base import Records
from recollect.stores.filters import Condition, Where
from recollect.stores.overlay import iter_pages
from recollect.stores.writes import Delete, Put
from recollect.types import MemoryItem, Scope, Space

CLOCK_NOTE = "clock"
"""The name of the note on when the lifecycle last ran."""
LOG_POSITION_PREFIXES = ("log:conversation:", "log:episodic:")
"""The prefixes of the notes on how far logs were read."""
_REPETITION_PREFIX = "said:"

# The conversation and the episodes hold the same utterance, and a client may send it again, within this time.
_SAME_UTTERANCE_MICROS = 60_000_000
_REPETITION_WINDOW = timedelta(days=90)
_MAX_OCCURRENCES = 5
_MIN_OCCURRENCES = 3
_MIN_SESSIONS = 2


class LifecycleNotes:
    """The notes of one user and agent."""

    def __init__(self, overlay: Records, scope: Scope) -> None:
        self._overlay = overlay
        self._scope = Scope(scope.tenant, scope.user, scope.agent)
        self._space = self._scope.space("lifecycle")

    async def get(self, names: Iterable[str]) -> dict[str, MemoryItem]:
        """Return the notes that exist, by name."""
        wanted = list(dict.fromkeys(names))
        found = await self._overlay.get(self._space, *wanted) if wanted else []
        return {note.id: note for note in found}

    async def find(self, name: str) -> MemoryItem | None:
        return (await self.get([name])).get(name)

    def build_put(self, name: str, values: Mapping[str, Any], stored: MemoryItem | None, now: datetime) -> Put:
        """Return the write of a note; it raises `Conflict` if the note is no longer as `stored`."""
        note = build_note(self._scope, name, values, stored, now)
        return Put(item=note, expect=0 if stored is None else stored.version)

    async def save(self, name: str, values: Mapping[str, Any], stored: MemoryItem | None, now: datetime) -> None:
        """Write a note if its values have changed, unless another run has just written it."""
        if stored is None or dict(stored.metadata) != values:
            with contextlib.suppress(Conflict):
                await self._overlay.write(self.build_put(name, values, stored, now))

    async def drop_stale(self, now: datetime) -> None:
        """Drop the notes on statements that were not repeated within 90 days."""
        old = Condition("created_at", "lte", to_micros(now - _REPETITION_WINDOW))
        async for page in iter_pages(self._overlay, Where(self._space, conditions=(old,))):
            stale = [note for note in page if note.id.startswith(_REPETITION_PREFIX) and not note.metadata.get("kept")]
            if stale:
                with contextlib.suppress(Conflict):  # it was just repeated
                    await self._overlay.write(*(Delete(self._space, note.id, expect=note.version) for note in stale))


def build_note(
    scope: Scope, name: str, values: Mapping[str, Any], stored: MemoryItem | None, now: datetime
) -> MemoryItem:
    return MemoryItem(
        id=name,
        content=name,
        scope=scope,
        tier="lifecycle",
        created_at=now if stored is None else stored.created_at,
        metadata=values,
        importance=0.0,
        source="lifecycle",
    )


def name_log_position(space: Space) -> str:
    return f"log:{space.tier}:{space.session}"


def name_promoted_fact(id: str) -> str:
    return f"kept:{id}"


def name_slot_values(slot: str) -> str:
    """Return the name of the note on the facts that last gave a value of the slot."""
    return f"value:{_hash_text(slot)}"


def name_repetition(fingerprint: str) -> str:
    return f"{_REPETITION_PREFIX}{_hash_text(fingerprint)}"


def add_occurrence(values: Mapping[str, Any], session: str, at: datetime, entry_id: str) -> dict[str, Any]:
    """Return the values of a repetition note with an occurrence added, unless it is there already."""
    known = [list(occurrence) for occurrence in values.get("said", ())]
    time = to_micros(at)
    if any(seen[0] == session and abs(seen[1] - time) <= _SAME_UTTERANCE_MICROS for seen in known):
        return {**values, "said": known}
    return {**values, "said": [*known, [session, time, entry_id]][-_MAX_OCCURRENCES:]}


def is_repeated(values: Mapping[str, Any]) -> bool:
    """Return True if the statement was made in two sessions, or three times."""
    occurrences = values.get("said", ())
    return len(occurrences) >= _MIN_OCCURRENCES or len({seen[0] for seen in occurrences}) >= _MIN_SESSIONS


def is_already_promoted(values: Mapping[str, Any], at: datetime) -> bool:
    """Return True if the statement made at this time is not newer than the one the fact was made of."""
    return to_micros(at) <= int(values.get("at", 0)) + _SAME_UTTERANCE_MICROS


def _hash_text(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()
