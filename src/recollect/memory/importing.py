"""An export into a scope: checked to its last line before the first is written, then kept batch by batch."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recollect.errors import BadInput, Conflict
from recollect.guard.instructions import held_back
from recollect.guard.policy import Policy
from recollect.memory.export_file import opened
from recollect.memory.export_lines import is_portable, moment, moved, moved_id
from recollect.memory.exporting import Exported, Progress, is_blank
from recollect.memory.import_file import Happened, ImportFile, Line, Said
from recollect.memory.parts import Parts
from recollect.stores.base import Records
from recollect.stores.ops import Append, Model, Put
from recollect.stores.where import Where
from recollect.tiers import keyed
from recollect.tiers.indexing import index_terms
from recollect.tiers.one_model import under_one_model
from recollect.tiers.patience import pause
from recollect.tiers.quarantine import held, in_quarantine
from recollect.tiers.semantic import embedded
from recollect.tiers.working import WorkingMemory
from recollect.values import MemoryItem, Scope, Space

_TOGETHER = 256
# What is not written whole: any number of lines at a time will do.
_BY_THE_LINE = ("semantic", "quarantine", "lifecycle", "episodic")
_TRIES = 32


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What became of the lines, by tier: `added` here, `present` already (and left as it was), or `expired` since.

    `untrusted` counts versions of procedures that were left out: under the trust given, none may be followed.
    """

    added: Mapping[str, int]
    present: Mapping[str, int]
    expired: int
    untrusted: int = 0


@dataclass(slots=True)
class _Waiting:
    """Lines that are to be written together."""

    kind: Any = None
    lines: list[Line] = field(default_factory=list)


class Import:
    """One import. What is in the scope already is never changed, but that a newer value of a key supersedes it."""

    def __init__(self, parts: Parts, memory: Exported, keep: Callable[[WorkingMemory], None]) -> None:
        self._parts = parts
        self._memory = memory
        self._keep_in_mind = keep
        self._ids: dict[str, str] = {}
        self._merges = True
        self._added: Counter[str] = Counter()
        self._present: Counter[str] = Counter()
        self._expired = 0

    async def run(self, path: Path, *, trust: float | None, progress: Progress | None) -> ImportReport:
        if trust is not None and (isinstance(trust, bool) or not isinstance(trust, int | float) or not 0 <= trust <= 1):
            raise BadInput(f"trust is a number from 0 to 1, not {trust!r:.80}")
        file = ImportFile(
            await asyncio.to_thread(opened, path),
            self._memory.scope,
            longest=self._parts.settings.max_content,
            trust=trust,
            policy=Policy.of(self._parts.settings),
            conversation=self._memory.conversation,
            working=self._restored,
        )
        try:
            total = await self._check(file)
            self._merges = bool(await self._records("semantic").find(Where(self._space("semantic")), limit=1))
            await self._write(file, total, progress)
        finally:
            await asyncio.to_thread(file.close)
        return ImportReport(dict(self._added), dict(self._present), self._expired, file.untrusted)

    async def _check(self, file: ImportFile) -> int:
        """Every line, once: whatever is wrong with one of them, nothing has been written."""
        await asyncio.to_thread(file.rewind)
        while lines := await asyncio.to_thread(file.some):
            for _, line in lines:
                if isinstance(line, MemoryItem):
                    self._note_id(line, file.source)
        return file.seen

    def _note_id(self, item: MemoryItem, source: Scope) -> None:
        """Ids that are other ones here: of another scope's items, and those that no item can have come by."""
        id = moved_id(item, source.space(item.tier), self._space(item.tier))
        if id != item.id:
            self._ids[item.id] = id

    async def _write(self, file: ImportFile, total: int, progress: Progress | None) -> None:
        await asyncio.to_thread(file.rewind)
        waiting = _Waiting()
        while lines := await asyncio.to_thread(file.some):
            for _, line in lines:
                kind = _kind(line)
                full = len(waiting.lines) >= _TOGETHER and kind[0] in _BY_THE_LINE
                if kind != waiting.kind or full:
                    await self._flush(waiting)
                    waiting = _Waiting(kind)
                waiting.lines.append(line)
            if progress is not None:
                progress(file.seen, total)
        await self._flush(waiting)

    async def _flush(self, waiting: _Waiting) -> None:
        lines: list[Any] = waiting.lines
        match waiting.kind:
            case ("semantic", _):
                await self._facts([moved(item, self._ids) for item in lines])
            case ("quarantine", _):
                await self._apart([moved(item, self._ids) for item in lines])
            case ("lifecycle", _):
                await self._notes([moved(item, self._ids) for item in lines])
            case ("procedural", key):
                await self._procedure(key, [moved(item, self._ids) for item in lines])
            case ("episodic", session):
                await self._episodes(session, lines)
            case ("conversation", session):
                await self._conversation(session, lines)
            case ("working", _):
                self._in_mind(lines[-1])

    async def _facts(self, items: list[MemoryItem]) -> None:
        store, space = self._records("semantic"), self._space("semantic")
        why = {item.id: held_back(item.content, item.trust) for item in items}
        await self._apart([in_quarantine(item, why[item.id]) for item in items if why[item.id]])
        items = [item for item in items if not why[item.id]]
        fresh = await self._put(store, space, items) if items else []
        if self._merges:
            for key in dict.fromkeys(item.key for item in fresh if item.key is not None):
                await _in_one_history(store, space, key)

    async def _apart(self, items: list[MemoryItem]) -> None:
        """What gives orders, or was in quarantine where it came from."""
        if not items:
            return
        store, space = self._records("semantic"), self._space("quarantine")
        there = len(await store.get(space, *(item.id for item in items)))
        await held(store, items)
        self._added["quarantine"] += len(items) - there
        self._present["quarantine"] += there

    async def _notes(self, items: list[MemoryItem]) -> None:
        """Of what was promoted, so that what was forgotten since is not promoted again. They are not searched."""
        store, space = self._records("semantic"), items[0].scope.space("lifecycle")
        held = {item.id for item in await store.get(space, *(item.id for item in items))}
        fresh = {item.id: item for item in items if item.id not in held and is_portable(item)}
        if fresh:
            await store.write(*(Put(item=item) for item in fresh.values()))
        self._added["lifecycle"] += len(fresh)
        self._present["lifecycle"] += len(items) - len(fresh)

    async def _procedure(self, key: str, versions: list[MemoryItem]) -> None:
        """All versions or none: one that has a history here keeps to its own."""
        store, space = self._records("procedural"), self._space("procedural")
        if await store.find(Where(space, key=key), limit=1):
            self._present["procedural"] += len(versions)
            return
        await self._put(store, space, versions)

    async def _put(self, store: Records, space: Space, items: list[MemoryItem]) -> list[MemoryItem]:
        """Keep those that are not there yet, in one transaction; which they were."""
        by_id = {item.id: item for item in reversed(items)}

        async def put(model: Model) -> list[MemoryItem]:
            held = {item.id for item in await store.get(space, *by_id)}
            fresh = [item for id, item in by_id.items() if id not in held]
            terms = await asyncio.to_thread(lambda: [index_terms(item) for item in fresh])
            vectors = await embedded(self._parts.embedding, fresh)
            writes = [
                Put(item=item, vectors=rows, terms=found, model=model, expect=0)
                for item, rows, found in zip(fresh, vectors, terms, strict=True)
            ]
            if writes:
                await store.write(*writes)
            return fresh

        for tries in range(_TRIES):
            try:
                fresh = await under_one_model(self._parts.embedding, put)
            except Conflict:  # somebody else kept one of them meanwhile
                await pause(tries)
                continue
            tier = items[0].tier
            self._added[tier] += len(fresh)
            self._present[tier] += len(items) - len(fresh)
            return fresh
        raise Conflict("the same items are being written by others all the time; run the import again to go on")

    async def _episodes(self, session: str, lines: list[Happened]) -> None:
        log = self._parts.stores.log("episodic")
        space = replace(self._memory.scope, session=session or None).space("episodic")
        now = self._parts.clock()
        live = [line.entry for line in lines if line.entry.expires_at is None or line.entry.expires_at > now]
        held = {entry.id for entry in await log.entries(space, *(entry.id for entry in live))}
        fresh = {entry.id: entry for entry in live if entry.id not in held}
        cap = self._parts.settings.tier("episodic").max_items
        if fresh:
            await log.write(*(Append(space=space, entry=entry, cap=cap) for entry in fresh.values()))
        self._added["episodic"] += len(fresh)
        self._present["episodic"] += len(live) - len(fresh)
        self._expired += len(lines) - len(live)

    async def _conversation(self, session: str, lines: list[Said]) -> None:
        """An empty session becomes what the file says, summary and all; another one gets the messages it lacks.

        A summary speaks of all that was said before it, so it cannot be taken over where other things were said.
        """
        conversation = self._memory.conversation(session)
        about: dict[str, Any] = {}
        messages: dict[str, Mapping[str, Any]] = {}
        for line in lines:
            if line.about:
                about.update(line.told)
            else:
                messages.setdefault(line.told["id"], line.told)
        log = self._parts.stores.log("conversation")
        held = {entry.id for entry in await log.entries(conversation.space, *messages)}
        fresh = [message for id, message in messages.items() if id not in held]
        if fresh and not await log.recent(conversation.space, limit=1):
            if "rolled" in about:  # it covers no more than there is
                covered = min(about["rolled"].get("messages", 0), len(fresh))
                about["rolled"] = {**about["rolled"], "messages": covered}
            await conversation.import_from({**about, "messages": fresh})
        elif fresh:
            await log.write(
                *(
                    conversation.drafted(
                        one["role"],
                        one["content"],
                        metadata=one.get("metadata"),
                        at=moment("timestamp", one["timestamp"]),
                        id=one["id"],
                    )
                    for one in fresh
                )
            )
            await conversation.settle()
        self._added["conversation"] += len(fresh)
        self._present["conversation"] += len(messages) - len(fresh)

    def _in_mind(self, working: WorkingMemory) -> None:
        """What somebody has in mind already is not replaced."""
        if is_blank(self._memory.working):
            self._keep_in_mind(working)
            self._added["working"] += 1
        else:
            self._present["working"] += 1

    def _restored(self, snapshot: Mapping[str, Any]) -> WorkingMemory:
        return WorkingMemory.from_snapshot(snapshot, llm=self._parts.llm, clock=self._parts.clock)

    def _records(self, tier: Any) -> Records:
        return self._parts.stores.records(tier)

    def _space(self, tier: Any) -> Space:
        return self._memory.scope.space(tier)


def _kind(line: Line) -> tuple[str, str]:
    """What is written together: lines of one kind, and of one procedure or session."""
    match line:
        case MemoryItem():
            return line.tier, line.key or "" if line.tier == "procedural" else ""
        case Happened():
            return "episodic", line.session
        case Said():
            return "conversation", line.session
        case _:
            return "working", ""


async def _in_one_history(store: Records, space: Space, key: str) -> None:
    """The values of a key that were here and those that came, as one history: each ends where the next begins."""
    values = sorted(
        await keyed.values(store, space, key), key=lambda one: (keyed.since(one), one.superseded_by is None)
    )
    # Of several that begin at one moment only the last one counted.
    beginnings = {keyed.since(value): value for value in values}
    for value in beginnings.values():
        await keyed.write(store, space, [], [value])
