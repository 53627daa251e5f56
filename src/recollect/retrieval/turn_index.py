"""The search index of conversation turns, built by a background task that resumes at the last indexed position."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

import numpy as np

from recollect.clock import Clock, to_utc
from recollect.errors import BadVector, EmbedderFailed, StoreClosed, StoreFull
from recollect.language.confidentiality import is_confided
from recollect.language.extractive_summary import extract_text
from recollect.language.recalled_text import remove_recalled
from recollect.language.sentences import is_off_the_record
from recollect.models.embedding import Embedding
from recollect.retrieval.query import is_small_talk
from recollect.stores.base import Log, LogTail, Records, TailLimits
from recollect.stores.filters import Condition, Where
from recollect.stores.writes import Append, Clear, Delete, Entry, Model, Put, Vectors
from recollect.tiers.indexing import (
    extract_index_terms,
    find_all,
    retry_on_conflict,
    texts_to_embed,
    with_current_model,
)
from recollect.tiers.lifecycle_notes import build_note
from recollect.tiers.log_entries import is_quarantined, read_all_entries
from recollect.tiers.messages import BLOCKS_KEY, is_tool_output, message_trust, parse_message
from recollect.types import MemoryItem, Scope, Space, Turn, get_turn_space, make_content_id

_log = logging.getLogger("recollect.index")

INDEXED_KINDS = frozenset(("user", "assistant", "tool"))
"""Kinds of entries that are indexed; system messages belong to their own session only."""

# The extract of a tool result is enough to find it; the log has the full text.
_MAX_TOOL_TOKENS = 200
# Provider formats of a message, which are as long as the message itself.
_LOG_ONLY_METADATA = (BLOCKS_KEY, "tool_calls")
_MARK_PREFIX = "log:index:"

# One page is one transaction. A waiting query is delayed by one embedding batch at most.
_PAGE_SIZE = 64
_EMBED_BATCH_SIZE = 8
# A query waits for this many entries, which take the default model two seconds, but not longer than the timeout.
_MAX_AWAITED_ENTRIES = 256
_CATCH_UP_TIMEOUT = 2.0
_CLOSE_TIMEOUT = 10.0
_MAX_KNOWN_LOGS = 100_000
_ALL_SESSIONS = 1 << 20


@lru_cache(maxsize=1024)
def get_owner(names: Scope | Space) -> Scope:
    """Return the scope of a conversation's user and agent, for all sessions."""
    return Scope(names.tenant, names.user, names.agent)


def build_turn_item(space: Space, entry: Entry) -> MemoryItem | None:
    """Build the indexed item of an entry; None for small talk, recalled text and quarantined text."""
    text = remove_recalled(entry.content) if entry.kind in INDEXED_KINDS else ""
    if not text.strip() or is_small_talk(text) or is_quarantined(entry):
        return None
    return MemoryItem(
        id=make_content_id(space, entry.id),
        content=extract_text(text, _MAX_TOOL_TOKENS) if entry.kind == "tool" else text,
        scope=get_owner(space),
        created_at=entry.at,
        tier="conversation",
        metadata={name: value for name, value in entry.metadata.items() if name not in _LOG_ONLY_METADATA},
        importance=entry.importance,
        source="tool" if is_tool_output(entry.kind, entry.metadata) else entry.kind,
        trust=message_trust(parse_message(entry)),
        turn=Turn(space.session, float(entry.seq), entry.kind),
        derived_from=(entry.id,),
    )


def parse_turn_item(item: MemoryItem) -> tuple[Space, Entry, MemoryItem]:
    """Return the log of an indexed item, its entry as far as it is known, and the item as it is shown."""
    assert item.turn is not None and item.turn.speaker is not None
    session = item.turn.session or None
    scope = replace(item.scope, session=session)
    [id] = item.derived_from
    entry = Entry(
        id=id,
        kind=item.turn.speaker,
        content=item.content,
        at=item.created_at,
        metadata=item.metadata,
        importance=item.importance,
        seq=int(item.turn.position),
    )
    shown = replace(item, id=id, scope=scope, turn=None if session is None else item.turn, derived_from=(), version=1)
    return scope.space("conversation"), entry, shown


def build_mark_name(space: Space) -> str:
    return f"{_MARK_PREFIX}{space.session}"


def build_mark(space: Space, metadata: Mapping[str, Any], current: MemoryItem | None, now: datetime) -> MemoryItem:
    """Build the mark that says how far a log is indexed. It is a lifecycle note, which is not exported."""
    return build_note(get_owner(space), build_mark_name(space), metadata, current, now)


class TurnIndex:
    """Indexes conversations, one log at a time, in one background task for all scopes of an open memory.

    The mark of a log is written in the same batch as its items, with the version of the mark that was read. Clearing a
    log deletes the mark, so a concurrent indexer gets a conflict and does not restore cleared items.
    """

    def __init__(self, records: Records, log: Log, embedding: Embedding, clock: Clock) -> None:
        self.records = records
        self.log = log
        self._embedding = embedding
        self._clock = clock
        self._queue: dict[Space, None] = {}
        self._failed: dict[Space, None] = {}
        self._indexed_seqs: dict[Space, int] = {}
        self._known_owners: set[Scope] = set()
        self._checked_owners: set[Scope] = set()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._terms_only = False
        self._warned: set[str] = set()

    @property
    def is_separate_store(self) -> bool:
        """True if the index is in another store than the logs."""
        return self.records is not self.log  # type: ignore[comparison-overlap]

    @property
    def now(self) -> datetime:
        return to_utc(self._clock())

    @property
    def is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def notify(self, space: Space) -> None:
        """Schedule a log that was written to or cleared."""
        if len(self._indexed_seqs) > _MAX_KNOWN_LOGS:  # these are caches
            self._indexed_seqs.clear()
            self._checked_owners.clear()
            self._known_owners.clear()
        self._known_owners.add(get_owner(space))
        self._schedule([space])

    def has_turns(self, scope: Scope) -> bool:
        """Return True if this user and agent are known to have turns."""
        return get_owner(scope) in self._known_owners

    async def catch_up_tails(self, scope: Scope, tails: Sequence[LogTail], *, model_is_up: bool) -> bool:
        """Index the ends of logs as far as a query may wait; return True if there may be more to find.

        The first call for an owner checks all of its logs, because another process may have left them unindexed. While
        the model is down, failed logs are not tried again.
        """
        owner = get_owner(scope)
        ends = [tail for tail in tails if tail and tail[-1].seq > self._indexed_seqs.get(tail.space, 0)]
        if owner not in self._checked_owners and any(tails):
            self._checked_owners.add(owner)
            self._known_owners.add(owner)
            ends = await self._read_ends(owner)
        behind = await self._find_behind(ends)
        if not model_is_up:
            self._schedule(behind, model_is_up=False)
            return False
        behind |= self._find_failed(owner)
        if not behind:
            return False
        self._schedule(behind)
        if sum(behind.values()) > _MAX_AWAITED_ENTRIES:
            return False
        await self._wait(_CATCH_UP_TIMEOUT)
        if failed := self._find_failed(owner):  # the model may have been down when the task tried
            self._schedule(failed)
            await self._wait(_CATCH_UP_TIMEOUT)
        return True

    async def count_behind(self, scope: Scope) -> int:
        """Return how many entries of this user and agent are not indexed; waits up to two seconds for current work."""
        await self._wait(_CATCH_UP_TIMEOUT)
        return sum((await self._find_behind(await self._read_ends(get_owner(scope)))).values())

    async def catch_up(self, scope: Scope) -> None:
        """Index all entries of this user and agent."""
        self._schedule(await self._find_behind(await self._read_ends(get_owner(scope))))
        await self._wait()

    async def close(self) -> None:
        """Finish current work within ten seconds; the rest is indexed after the next opening."""
        self._is_closed = True
        if self._task is None:
            return
        _, unfinished = await asyncio.wait([self._task], timeout=_CLOSE_TIMEOUT)
        if unfinished:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def draft_removals(self, space: Space) -> list[Delete]:
        """Build the deletions of all items of a log."""
        where = Where(_get_turn_space(space), conditions=(Condition("session", "eq", space.session),))
        return [Delete(where.space, item.id) for item in await find_all(self.records, where)]

    async def _wait(self, seconds: float | None = None) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)

    def _find_failed(self, owner: Scope) -> dict[Space, int]:
        return {space: 1 for space in self._failed if get_owner(space) == owner}

    def _schedule(self, spaces: Iterable[Space], *, model_is_up: bool = True) -> None:
        if self._is_closed:
            return
        for space in spaces:
            self._failed.pop(space, None)
            self._queue[space] = None
        self._terms_only = not model_is_up
        if self._queue and not self.is_busy:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="recollect-index")

    async def _run(self) -> None:
        """Index the queued logs. An error is logged once per type, and its log is left for later."""
        while self._queue:
            # Removed first, so that an entry written meanwhile queues the log again.
            space = next(iter(self._queue))
            del self._queue[space]
            try:
                await self._index_log(space, terms_only=self._terms_only)
            except StoreClosed:
                return
            except Exception as error:  # noqa: BLE001 - a background task must not end silently
                self._terms_only = self._terms_only or isinstance(error, EmbedderFailed)
                self._failed[space] = None
                # The message of an error may quote stored text, so only its type is logged.
                kind = type(error).__name__
                if kind not in self._warned:
                    self._warned.add(kind)
                    _log.warning("a conversation could not be indexed (%s); retrying later", kind)

    async def _read_ends(self, owner: Scope) -> list[LogTail]:
        """Read the last entry of each log."""
        limits = TailLimits(own_entries=1, other_logs=_ALL_SESSIONS, entries_per_log=1)
        return await self.log.read_tails(owner.space("conversation"), limits)

    async def _find_behind(self, tails: Sequence[LogTail]) -> dict[Space, int]:
        """Return the logs that are longer than their index, with the number of entries at most."""
        ends = {tail.space: tail[-1].seq for tail in tails if tail}
        if not ends:
            return {}
        marks = await self._load_marks(list(ends))
        self._indexed_seqs |= {space: _get_marked_seq(marks.get(space)) for space in ends}
        return {
            space: end - self._indexed_seqs[space] for space, end in ends.items() if end > self._indexed_seqs[space]
        }

    async def _load_marks(self, spaces: Sequence[Space]) -> dict[Space, MemoryItem]:
        by_name = {build_mark_name(space): space for space in spaces}
        marks = await self.records.get(get_owner(spaces[0]).space("lifecycle"), *by_name)
        return {by_name[mark.id]: mark for mark in marks}

    async def _index_log(self, space: Space, *, terms_only: bool) -> None:
        """Index a log from its mark to its end; by terms only while the embedder is down."""
        failure = EmbedderFailed("the embedder is down")
        if not terms_only:
            try:
                return await self._index_pages(space, terms_only=False)
            except EmbedderFailed as error:
                failure = error
        await self._index_pages(space, terms_only=True)
        raise failure

    async def _index_pages(self, space: Space, *, terms_only: bool) -> None:
        has_more = True
        while has_more:  # another process may index or clear the log meanwhile
            has_more = await retry_on_conflict(
                partial(self._index_page, space, terms_only=terms_only), "indexing a log"
            )

    async def _index_page(self, space: Space, *, terms_only: bool) -> bool:
        """Index the next page; return False if there is none."""
        mark = (await self._load_marks([space])).get(space) or await self._create_mark(space)
        if mark is None:
            self._indexed_seqs.pop(space, None)
            return False
        after = max(_get_marked_seq(mark), mark.metadata.get("words", 0)) if terms_only else _get_marked_seq(mark)
        page = await self.log.read(space, after=after, limit=_PAGE_SIZE)
        if page:
            try:
                await self._write_page(space, page, mark, terms_only=terms_only)
            except BadVector:  # the model has no vector for a text, and will not have one later
                metadata = _build_mark_metadata(page, mark, terms_only=terms_only)
                await self._write_page(space, page, mark, terms_only=True, metadata=metadata)
        elif not terms_only:
            self._indexed_seqs[space] = _get_marked_seq(mark)
        return bool(page)

    async def _create_mark(self, space: Space) -> MemoryItem | None:
        """Create the mark of a new or cleared log, and delete what is left of its items in the same batch."""
        removals = await self.draft_removals(space)
        is_empty = not await self.log.recent(space, limit=1)
        if is_empty and not removals:
            return None
        new_mark = Put(item=build_mark(space, {"seq": 0}, None, self.now), expect=0)
        if is_empty:
            notes = get_owner(space).space("lifecycle")
            await self.records.write(*removals, new_mark, Delete(notes, build_mark_name(space)))
            return None
        await self.records.write(*removals, new_mark)
        return (await self._load_marks([space])).get(space)

    async def _write_page(
        self,
        space: Space,
        page: list[Entry],
        mark: MemoryItem,
        *,
        terms_only: bool,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the items of a page and its mark in one batch. Retracted turns are deleted first, without a model."""
        private = await self._find_private(space, page, mark)
        if private:
            await self.records.write(
                *(Delete(_get_turn_space(space), make_content_id(space, entry.id)) for entry in private)
            )
        private_ids = {entry.id for entry in private}
        public = [entry for entry in page if entry.id not in private_ids]
        items, terms = await asyncio.to_thread(_build_items, space, public)
        if metadata is None:
            metadata = _build_mark_metadata(page, mark, terms_only=terms_only)
        new_mark = build_mark(space, metadata, mark, self.now)

        async def write(model: Model) -> None:
            rows: Sequence[Any] = [None] * len(items) if terms_only else await self._embed(items)
            puts = [
                Put(item=item, vectors=vectors, terms=item_terms, model=None if vectors is None else model)
                for item, vectors, item_terms in zip(items, rows, terms, strict=True)
            ]
            await self.records.write(*puts, Put(item=new_mark, expect=mark.version))

        await with_current_model(self._embedding, write)

    async def _find_private(self, space: Space, page: list[Entry], mark: MemoryItem) -> list[Entry]:
        """Return the entries of a log that were confided or retracted; these are for their own session only."""
        if not mark.metadata.get("private") and not any(map(_is_private, page)):
            return []
        entries = await read_all_entries(self.log, space)
        return [entry for at, entry in enumerate(entries) if is_confided(entries, at)]

    async def _embed(self, items: Sequence[MemoryItem]) -> list[Vectors]:
        """Embed the passages of all items in small batches, between which a waiting query gets its turn."""
        passages = [texts_to_embed(item) for item in items]
        texts = [text for item_texts in passages for text in item_texts]
        batches = range(0, len(texts), _EMBED_BATCH_SIZE)
        rows = [await self._embedding.embed(texts[at : at + _EMBED_BATCH_SIZE]) for at in batches]
        if not items:
            return []
        return np.split(np.concatenate(rows), np.cumsum([len(item_texts) for item_texts in passages])[:-1])


class TurnIndexHook:
    """The index as one conversation sees it, through stores that buffer their writes in a running step."""

    def __init__(self, index: TurnIndex, log: Log, records: Records) -> None:
        self._index = index
        self._log = log
        self._records = records

    async def notify(self, space: Space) -> None:
        """Schedule a log; it is indexed when the caller next waits, usually after its answer."""
        was_busy = self._index.is_busy
        self._index.notify(space)
        if was_busy:  # a store that never waits must not starve the index
            await asyncio.sleep(0)

    async def clear(self, space: Space, *replacements: Append) -> None:
        """Clear a log with its items and its mark; append `replacements`. With two stores, the items are deleted first.

        A concurrent indexer finds another mark than the one it read, and starts over.
        """
        if self._records is self._log:  # type: ignore[comparison-overlap]
            await self._clear_atomically(space, *replacements)
        else:
            await self._delete_items(space)
            await self._log.write(Clear(space), *replacements)
            await self._delete_items(space)  # it may have been indexed in between
        self._index.notify(space)

    async def _clear_atomically(self, space: Space, *replacements: Append) -> None:
        # A buffered write is committed later, when the mark may have changed; the next query removes what is left.

        async def clear(is_checked: bool) -> None:
            removals = await self._draft_deletions(space, is_checked=is_checked)
            await self._log.write(*removals, Clear(space), *replacements)

        try:
            await retry_on_conflict(partial(clear, self._log is self._index.log), "clearing the conversation")
        except StoreFull:  # writing a mark needs space; a full store has no concurrent indexer
            await clear(is_checked=False)

    async def _delete_items(self, space: Space) -> None:
        if removals := await self._draft_deletions(space, is_checked=False):
            await self._records.write(*removals)

    async def _draft_deletions(self, space: Space, *, is_checked: bool) -> list[Put | Delete]:
        """Build the deletion of a log's index; if `is_checked`, it conflicts with changes since this read."""
        notes, name = get_owner(space).space("lifecycle"), build_mark_name(space)
        marks = await self._index.records.get(notes, name)
        removals = await self._index.draft_removals(space)
        if marks or not is_checked:
            return [*removals, *(Delete(notes, name, mark.version if is_checked else None) for mark in marks)]
        # Writing a new mark checks that there is still none.
        new_mark = Put(item=build_mark(space, {"seq": 0}, None, self._index.now), expect=0)
        return [*removals, new_mark, Delete(notes, name)]


def _get_turn_space(space: Space) -> Space:
    return get_turn_space(get_owner(space))


def _build_items(space: Space, entries: Iterable[Entry]) -> tuple[list[MemoryItem], list[tuple[str, ...]]]:
    items = [item for entry in entries if (item := build_turn_item(space, entry)) is not None]
    return items, [extract_index_terms(item) for item in items]


def _is_private(entry: Entry) -> bool:
    return entry.kind == "user" and is_off_the_record(entry.content)


def _build_mark_metadata(page: Sequence[Entry], mark: MemoryItem, *, terms_only: bool) -> Mapping[str, Any]:
    """Return the metadata of the mark after a page: the position, and if the next answer may be private."""
    users = [entry for entry in page if entry.kind == "user"]
    was_private = bool(mark.metadata.get("private"))
    is_private = _is_private(users[-1]) if users else was_private
    if terms_only:
        return {"seq": _get_marked_seq(mark), "words": page[-1].seq, "private": is_private or was_private}
    return {"seq": page[-1].seq, "private": is_private}


def _get_marked_seq(mark: MemoryItem | None) -> int:
    return int(mark.metadata["seq"]) if mark is not None else 0
