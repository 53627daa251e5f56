"""Logs in dictionaries: each space's entries by the number they were given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

from recollect.clock import aware
from recollect.stores.in_memory.undo import Undo
from recollect.stores.ops import Append, Clear, Drop, Entry, LogWrite
from recollect.stores.tails import Reach, Tail
from recollect.values import NOTHING, Space, plain_json


class Entries:
    """All entries, by space and seq."""

    def __init__(self) -> None:
        self._spaces: dict[Space, dict[int, Entry]] = {}
        self._ids: dict[tuple[Space, str], int] = {}
        self._last: dict[Space, int] = {}

    def apply(self, write: LogWrite, now: datetime, undo: Undo) -> None:
        match write:
            case Append():
                self._append(write, now, undo)
                if write.cap is not None:
                    self._trim(write.space, write.cap, now, undo)
            case Clear():
                for entry in self._of(write.space):
                    self._drop(write.space, entry, undo)
            case Drop():
                for entry in self._of(write.space):
                    if entry.seq in write.seqs:
                        self._drop(write.space, entry, undo)

    def get(self, space: Space, ids: Sequence[str], now: datetime) -> list[Entry]:
        known = [self._ids[space, id] for id in dict.fromkeys(ids) if (space, id) in self._ids]
        return [entry for seq in known if _live(entry := self._spaces[space][seq], now)]

    def recent(self, space: Space, limit: int, kinds: Sequence[str], now: datetime) -> list[Entry]:
        found = [entry for entry in self._of(space) if _live(entry, now) and (not kinds or entry.kind in kinds)]
        return found[-limit:] if limit else []

    def tails(self, space: Space, reach: Reach, now: datetime) -> list[Tail]:
        others = [one for one in self.logs(space, now) if one != space]
        return [
            Tail.of(space, self.recent(space, reach.own, (), now)),
            *(
                Tail.of(one, self.recent(one, reach.of_each, (), now))
                for one in others[max(len(others) - reach.others, 0) :]
            ),
        ]

    def read(self, space: Space, after: int, limit: int, now: datetime | None) -> list[Entry]:
        return [entry for entry in self._of(space) if entry.seq > after and _live(entry, now)][:limit]

    def tenants(self) -> set[str]:
        return {space.tenant for space, held in self._spaces.items() if held}

    def counted(self, tenant: str | None) -> dict[Space, int]:
        return {space: last for space, last in self._last.items() if tenant in (None, space.tenant)}

    def owners(self, tenant: str) -> list[Space]:
        held = {replace(space, session="") for space in self._spaces if space.tenant == tenant and self._of(space)}
        return sorted(held, key=lambda space: (space.tier, space.user, space.agent))

    def logs(self, owner: Space, now: datetime | None) -> list[Space]:
        mine = [space for space in self._spaces if replace(space, session="") == replace(owner, session="")]
        live = {space: [entry for entry in self._of(space) if _live(entry, now)] for space in mine}
        held = [(entries[-1].at, space.session, space) for space, entries in live.items() if entries]
        return [space for _, _, space in sorted(held, key=lambda one: one[:2])]

    def held(self) -> list[Space]:
        return list(self._last)

    def wipe(self, space: Space, undo: Undo) -> int:
        """Everything of a log, its numbers too; how many entries that was."""
        entries = self._of(space)
        for entry in entries:
            self._drop(space, entry, undo)
        undo.drop(self._spaces, space)
        undo.drop(self._last, space)
        return len(entries)

    def _append(self, write: Append, now: datetime, undo: Undo) -> None:
        space, entry = write.space, write.entry
        seq = self._ids.get((space, entry.id))
        if seq is not None:
            held = self._spaces[space][seq]
            if _live(held, now):
                return
            self._drop(space, held, undo)
        seq = max(self._last.get(space, 0) + 1, write.seq)
        undo.set(self._last, space, seq)
        undo.set(self._ids, (space, entry.id), seq)
        undo.set(self._spaces.setdefault(space, {}), seq, _as_stored(entry, seq))

    def _trim(self, space: Space, cap: int, now: datetime, undo: Undo) -> None:
        live = [entry.seq for entry in self._of(space) if _live(entry, now)]
        if len(live) > cap:
            for entry in self._of(space):
                if entry.seq <= live[-cap - 1]:
                    self._drop(space, entry, undo)

    def _drop(self, space: Space, entry: Entry, undo: Undo) -> None:
        undo.drop(self._spaces[space], entry.seq)
        undo.drop(self._ids, (space, entry.id))

    def _of(self, space: Space) -> list[Entry]:
        held = self._spaces.get(space, {})
        return [held[seq] for seq in sorted(held)]


def _live(entry: Entry, now: datetime | None) -> bool:
    """Whether an entry is seen at a moment; without one, it is."""
    return now is None or entry.expires_at is None or entry.expires_at > now


def _as_stored(entry: Entry, seq: int) -> Entry:
    return replace(
        entry,
        seq=seq,
        at=aware(entry.at),
        expires_at=None if entry.expires_at is None else aware(entry.expires_at),
        metadata=MappingProxyType(plain_json(dict(entry.metadata))) if entry.metadata else NOTHING,
    )
