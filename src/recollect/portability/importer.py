"""Import of an export file: every line is checked before the first write, then written in atomic batches."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from recollect.engine import Engine
from recollect.erasure.ledger import find_last_erasure
from recollect.errors import BadInput, RecollectError, SchemaTooNew, SecretRefused
from recollect.portability.export import (
    EXPORT_FORMAT,
    ExportSource,
    is_portable,
    map_id,
    parse_entry,
    parse_item,
    parse_session,
    parse_time,
    remap_item,
)
from recollect.portability.safe_file import EXPORT_MARK, open_export
from recollect.security.injection import find_quarantine_reasons
from recollect.security.redaction import RedactionPolicy
from recollect.stores.base import Records
from recollect.stores.erasure import ErasureStore
from recollect.stores.filters import Where
from recollect.stores.writes import Append, Entry, Model
from recollect.tiers.conversation import EXPORT_FORMAT as CONVERSATION_FORMAT
from recollect.tiers.conversation import ConversationMemory, import_summary
from recollect.tiers.facts import find_values, get_valid_from, write_keyed_facts
from recollect.tiers.indexing import build_puts, retry_on_conflict, with_current_model
from recollect.tiers.messages import TRUST_KEY, episode_trust, message_trust, parse_message, sanitize_episode
from recollect.tiers.procedural import (
    MIN_PROCEDURE_TRUST,
    outcomes_from_json,
    procedure_from_item,
    update_procedure_item,
)
from recollect.tiers.quarantine import to_quarantine_item, write_new_items
from recollect.tiers.working import WorkingMemory
from recollect.types import MemoryItem, Progress, ProgressCallback, Scope, Space
from recollect.validation import check_fraction, check_text

_READ_BATCH_SIZE = 200
_WRITE_BATCH_SIZE = 256
# Metadata and JSON escapes may be longer than the text.
_MAX_LINE_BYTES = 64 << 20
# The number of messages that a summary covers is checked at the end of its session.
_UNKNOWN_COUNT = 1 << 62
# Tiers whose lines may be split into several batches.
_SPLITTABLE_TIERS = ("semantic", "quarantine", "lifecycle", "episodic")


LineKey = tuple[str, str, str]
"""Tier, group and id."""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The number of lines by tier: `added`, or `present` before (and left unchanged); and those `expired` since.

    `untrusted` counts versions of procedures that were left out because the given trust is too low to follow them.
    `erased` counts lines that were left out because an erasure in this store covers them.
    """

    added: Mapping[str, int]
    present: Mapping[str, int]
    expired: int
    untrusted: int = 0
    erased: int = 0


@dataclass(frozen=True, slots=True)
class ImportedLine:
    """A checked line. The lines of one tier and group (a session, or the key of a procedure) are written together."""

    tier: str
    group: str
    value: Any
    id: str = ""
    """Empty for the summary of a conversation and for the working memory."""
    at: datetime | None = None
    """When it was recorded; None if that is unknown."""

    @property
    def key(self) -> LineKey:
        return self.tier, self.group, self.id

    @property
    def is_summary(self) -> bool:
        return self.tier == "conversation" and not self.id

    def find_owner(self, target: Scope) -> Scope | Space:
        """Return the names of the owner in the target's scope, with the session that the line belongs to."""
        if self.tier == "procedural":
            return target.space("procedural")  # of the agent, for all users
        if isinstance(self.value, MemoryItem):
            scope, turn = self.value.scope, self.value.turn
            return scope if turn is None else replace(scope, session=turn.session)
        return replace(target, session=self.group or None)


class ImportReader:
    """The checked lines of one file in the target's scope."""

    def __init__(self, file: BinaryIO, engine: Engine, target: ExportSource, max_trust: float) -> None:
        self._file = file
        self._engine = engine
        self._target = target
        self._max_characters = engine.settings.max_content
        self._max_trust = max_trust
        self._policy = RedactionPolicy.from_settings(engine.settings)
        self._line_number = 0
        self.line_count = 0
        self.source = target.scope
        self.untrusted_count = 0

    async def read_batches(self) -> AsyncIterator[list[ImportedLine]]:
        """Read the file from its start; yield its lines, 200 at a time."""
        lines = self._iterate_lines()
        while batch := await asyncio.to_thread(self._read_batch, lines):
            yield batch

    def _read_batch(self, lines: Iterator[ImportedLine]) -> list[ImportedLine]:
        """Read the next lines; add the number of the current line to errors."""
        try:
            return list(islice(lines, _READ_BATCH_SIZE))
        except RecollectError as error:
            if isinstance(error, SchemaTooNew) and self._line_number == 1:
                raise
            kind = SecretRefused if isinstance(error, SecretRefused) else BadInput
            raise kind(f"line {self._line_number}: {error}") from error

    def _iterate_lines(self) -> Iterator[ImportedLine]:
        """Yield the lines after the header without the procedures that are too untrusted to follow."""
        self._file.seek(0)
        self._line_number = self.line_count = self.untrusted_count = 0
        self.source = _parse_header(self._read_line())
        while "end" not in (line := self._read_line()):
            self.line_count += 1
            value = self._parse_line(line)
            if value is None:
                self.untrusted_count += 1
            else:
                yield value
        if line != {"end": self.line_count}:
            raise BadInput(f"the end must count {self.line_count} lines; got {line['end']!r:.40}")
        if self._file.read(1):
            self._line_number += 1
            raise BadInput("the file must not go on after its end")

    def _read_line(self) -> dict[str, Any]:
        self._line_number += 1
        raw = self._file.readline(_MAX_LINE_BYTES + 8 * self._max_characters)
        if not raw.endswith(b"\n"):
            raise BadInput("the file is truncated, or the line is too long; export it again")
        try:
            line = json.loads(raw, parse_constant=_reject_constant)
        except (ValueError, RecursionError) as error:
            raise BadInput("the line is not valid JSON") from error
        if not isinstance(line, dict):
            raise BadInput(f"the line must be a JSON object; got {type(line).__name__}")
        return line

    def _parse_line(self, line: dict[str, Any]) -> ImportedLine | None:
        """Return a line without secrets; None for a procedure that is too untrusted to follow.

        The trust is capped first, because less trusted text is redacted more strictly.
        """
        match line.get("tier"):
            case "semantic" | "procedural" | "lifecycle" | "quarantine" as tier:
                item = parse_item(line, tier, self.source, self._target.scope, self._max_characters)
                if tier == "procedural" and self._max_trust < MIN_PROCEDURE_TRUST:
                    return None
                item = self._redact_item(replace(item, trust=min(item.trust, self._max_trust)))
                group = item.key or "" if tier == "procedural" else ""
                return ImportedLine(tier, group, item, item.id, item.created_at)
            case "episodic":
                session, entry = parse_session(line), self._parse_episode(line)
                return ImportedLine("episodic", session, entry, entry.id, entry.at)
            case "conversation":
                return self._parse_message(line, parse_session(line))
            case "working" if set(line) == {"tier", "snapshot"} and isinstance(line["snapshot"], dict):
                llm, clock = self._engine.llm, self._engine.clock
                return ImportedLine("working", "", WorkingMemory.from_snapshot(line["snapshot"], llm=llm, clock=clock))
            case tier:
                raise BadInput(f"there is no tier {tier!r:.80} in an export")

    def _redact_item(self, item: MemoryItem) -> MemoryItem:
        redact, redact_json = self._policy.redact_text, self._policy.redact_json
        if item.tier == "lifecycle":
            return item
        if item.tier != "procedural":
            text, metadata = redact("content", item.content), redact_json("metadata", item.metadata)
            has_secrets = text.kinds or metadata.kinds
            return replace(item, content=text.value, metadata=metadata.value) if has_secrets else item
        procedure = procedure_from_item(item)
        body, description = redact("body", procedure.body), redact("description", procedure.description)
        outcomes = redact_json("outcomes", item.metadata["outcomes"])
        if not (body.kinds or description.kinds or outcomes.kinds):
            return item
        clean = replace(procedure, body=body.value, description=description.value)
        return update_procedure_item(item, replace(clean, outcomes=outcomes_from_json(outcomes.value)))

    def _parse_episode(self, line: Mapping[str, Any]) -> Entry:
        entry = parse_entry(line, self._max_characters)
        given = entry.metadata.get("given", {})
        if episode_trust(entry.kind, given) > self._max_trust:
            metadata = {**entry.metadata, "given": {**given, TRUST_KEY: self._max_trust}}
            entry = replace(entry, metadata=metadata)
        return sanitize_episode(self._policy, entry)

    def _parse_message(self, line: Mapping[str, Any], session: str) -> ImportedLine:
        """Return `about`, the summary of a session, or a `message`, which its conversation will redact."""
        match line:
            case {"about": dict(about)} if len(line) == 3:
                return ImportedLine("conversation", session, self._check_about(about))
            case {"message": {"role": _, "content": _, "id": str(id)} as message} if len(line) == 3:
                entry = _build_message(self._target.open_conversation(session), message).entry  # checks the message
                if message_trust(parse_message(entry)) > self._max_trust:
                    message = {**message, "metadata": {**(message.get("metadata") or {}), TRUST_KEY: self._max_trust}}
                return ImportedLine("conversation", session, message, id, entry.at)
            case _:
                raise BadInput("a line of a conversation must have a message with an id, a role and a content")

    def _check_about(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Check the summary of a session now, because it is imported after many writes."""
        summary, rolled = about.get("summary"), about.get("rolled")
        if not isinstance(summary, str | None) or not isinstance(rolled, dict | None):
            raise BadInput("the summary of a conversation must be a string or null")
        if about.get("format", CONVERSATION_FORMAT) != CONVERSATION_FORMAT:
            raise BadInput(f"the conversation must have format {CONVERSATION_FORMAT}; got {about['format']!r:.40}")
        if summary is None:
            return {}
        check_text("content", summary, max_length=self._max_characters, allow_empty=True)
        _, known = import_summary(summary, rolled, _UNKNOWN_COUNT, _UNKNOWN_COUNT)
        return {"summary": summary, "rolled": {**(rolled or {}), TRUST_KEY: min(known.trust, self._max_trust)}}


def _parse_header(header: Mapping[str, Any]) -> Scope:
    """Return the scope that was exported."""
    version, scope = header.get(EXPORT_MARK), header.get("scope")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise BadInput("this is not a file that `export` wrote")
    if version > EXPORT_FORMAT:
        raise SchemaTooNew(
            f"the export has format {version}; this version reads formats up to {EXPORT_FORMAT}; upgrade Recollect"
        )
    if not isinstance(scope, Mapping) or set(scope) != {"tenant", "user", "agent"}:
        raise BadInput("the header must have a scope of tenant, user and agent")
    return Scope(**scope)


class Importer:
    """One import. Existing items are not changed, except that a newer value of a key supersedes an older one."""

    def __init__(self, engine: Engine, target: ExportSource, set_working: Callable[[WorkingMemory], None]) -> None:
        self._engine = engine
        self._target = target
        self._set_working = set_working
        self._new_ids: dict[str, str] = {}
        self._is_merge = True
        self._added: Counter[str] = Counter()
        self._present: Counter[str] = Counter()
        self._expired = 0

    async def run(
        self, path: Path, *, trust: float | None, include_erased: bool, progress: ProgressCallback | None
    ) -> ImportReport:
        max_trust = 1.0 if trust is None else check_fraction("trust", trust)
        file = await asyncio.to_thread(open_export, path)
        reader = ImportReader(file, self._engine, self._target, max_trust)
        try:
            erased = await self._check_lines(reader, include_erased=include_erased)
            total = reader.line_count
            self._is_merge = bool(await self._records("semantic").find(Where(self._space("semantic")), limit=1))
            erased_count = await self._write_lines(reader, erased, total, progress)
        finally:
            await asyncio.to_thread(file.close)
        added, present = dict(self._added), dict(self._present)
        return ImportReport(added, present, self._expired, reader.untrusted_count, erased_count)

    async def _check_lines(self, reader: ImportReader, *, include_erased: bool) -> set[LineKey]:
        """Check all lines before the first write; return the keys of those that this store has erased since."""
        stores = [store for store in self._engine.stores.all_stores if isinstance(store, ErasureStore)]
        has_erasures = not include_erased and any([await store.ledger() for store in stores])
        erased: set[LineKey] = set()
        erasures: dict[Scope | Space, datetime | None] = {}
        async for lines in reader.read_batches():
            for line in lines:
                if isinstance(item := line.value, MemoryItem):
                    id = map_id(item, reader.source.space(item.tier), self._space(item.tier))
                    if id != item.id:
                        self._new_ids[item.id] = id
                if not has_erasures or line.is_summary:
                    continue
                owner = line.find_owner(self._target.scope)
                if owner not in erasures:
                    erasures[owner] = await find_last_erasure(stores, owner)
                erased_at = erasures[owner]
                if erased_at is not None and (line.at is None or line.at <= erased_at):
                    erased |= {line.key, (line.tier, line.group, "")}  # the second is that of the summary
        return erased

    async def _write_lines(
        self, reader: ImportReader, erased: set[LineKey], total: int, progress: ProgressCallback | None
    ) -> int:
        """Write the lines that are not erased; return the number of those that are."""
        batch: list[ImportedLine] = []
        erased_count = 0
        async for lines in reader.read_batches():
            for line in lines:
                if line.key in erased:
                    erased_count += not line.is_summary
                    continue
                is_full = len(batch) >= _WRITE_BATCH_SIZE and line.tier in _SPLITTABLE_TIERS
                if batch and (is_full or (line.tier, line.group) != (batch[0].tier, batch[0].group)):
                    await self._write_batch(batch)
                    batch = []
                batch.append(line)
            if progress is not None:
                progress(Progress("import", reader.line_count, total))
        if batch:
            await self._write_batch(batch)
        return erased_count

    async def _write_batch(self, batch: list[ImportedLine]) -> None:
        tier, group, values = batch[0].tier, batch[0].group, [line.value for line in batch]
        if isinstance(values[0], MemoryItem):
            values = [remap_item(item, self._new_ids) for item in values]
        match tier:
            case "semantic":
                await self._write_facts(values)
            case "quarantine" | "lifecycle":  # a note keeps a forgotten fact from being promoted again
                await self._write_unindexed(values)
            case "procedural" if await self._records(tier).find(Where(self._space(tier), key=group), limit=1):
                self._present[tier] += len(values)  # a history in the target is not changed
            case "procedural":
                await self._write_items(values)
            case "episodic":
                await self._write_episodes(group, values)
            case "conversation":
                await self._write_conversation(group, batch)
            case _:  # a current task is not replaced
                is_new = self._target.working.is_empty
                if is_new:
                    self._set_working(values[-1])
                self._count("working", int(is_new), 1)

    async def _write_facts(self, items: list[MemoryItem]) -> None:
        reasons = [find_quarantine_reasons(item.content, item.trust) for item in items]
        checked = list(zip(items, reasons, strict=True))
        await self._write_unindexed([to_quarantine_item(item, why) for item, why in checked if why])
        added = await self._write_items([item for item, why in checked if not why])
        if self._is_merge:
            for key in dict.fromkeys(item.key for item in added if item.key is not None):
                await _merge_key_history(self._records("semantic"), self._space("semantic"), key)

    async def _write_unindexed(self, items: list[MemoryItem]) -> None:
        """Write quarantined items or lifecycle notes, which have no terms and vectors."""
        if items:
            portable = [item for item in items if is_portable(item)]
            self._count(items[0].tier, await write_new_items(self._records("semantic"), portable), len(items))

    async def _write_items(self, items: list[MemoryItem]) -> list[MemoryItem]:
        """Write the items that are not present, in one transaction; return them."""
        if not items:
            return []
        store, space = self._records(items[0].tier), self._space(items[0].tier)
        by_id = {item.id: item for item in reversed(items)}

        async def put(model: Model) -> list[MemoryItem]:
            present = {item.id for item in await store.get(space, *by_id)}
            new = [item for id, item in by_id.items() if id not in present]
            if new:
                await store.write(*await build_puts(self._engine.embedding, model, new))
            return new

        new = await retry_on_conflict(lambda: with_current_model(self._engine.embedding, put), "writing these items")
        self._count(items[0].tier, len(new), len(items))
        return new

    async def _write_episodes(self, session: str, entries: list[Entry]) -> None:
        log, now = self._engine.stores.log("episodic"), self._engine.clock()
        space = replace(self._target.scope, session=session or None).space("episodic")
        live = [entry for entry in entries if entry.expires_at is None or entry.expires_at > now]
        present = {entry.id for entry in await log.entries(space, *(entry.id for entry in live))}
        new = {entry.id: entry for entry in live if entry.id not in present}
        cap = self._engine.settings.tier("episodic").max_items
        if new:
            await log.write(*(Append(space=space, entry=entry, cap=cap) for entry in new.values()))
        self._count("episodic", len(new), len(live))
        self._expired += len(entries) - len(live)

    async def _write_conversation(self, session: str, lines: list[ImportedLine]) -> None:
        """Write the session with its summary if it is empty in the target; otherwise only the missing messages.

        A summary covers everything before it, so it cannot be added to a session with other messages.
        """
        conversation = self._target.open_conversation(session)
        about = {name: value for line in lines if line.is_summary for name, value in line.value.items()}
        by_id: dict[str, Mapping[str, Any]] = {}
        for line in lines:
            if not line.is_summary:
                by_id.setdefault(line.id, line.value)
        log = self._engine.stores.log("conversation")
        present = {entry.id for entry in await log.entries(conversation._space, *by_id)}
        new = [message for id, message in by_id.items() if id not in present]
        if new and not await log.recent(conversation._space, limit=1):
            if "rolled" in about:
                covered = min(about["rolled"].get("messages", 0), len(new))
                about["rolled"] = {**about["rolled"], "messages": covered}
            await conversation.import_from({**about, "messages": new})
        elif new:
            await log.write(*(_build_message(conversation, message) for message in new))
            await conversation._roll_summary()
        self._count("conversation", len(new), len(by_id))

    def _count(self, tier: str, added: int, total: int) -> None:
        self._added[tier] += added
        self._present[tier] += total - added

    def _records(self, tier: Any) -> Records:
        return self._engine.stores.records(tier)

    def _space(self, tier: Any) -> Space:
        return self._target.scope.space(tier)


def _build_message(conversation: ConversationMemory, message: Mapping[str, Any]) -> Append:
    return conversation._build_append(
        message["role"],
        message["content"],
        metadata=message.get("metadata"),
        at=parse_time("timestamp", message.get("timestamp")),
        id=message["id"],
    )


async def _merge_key_history(store: Records, space: Space, key: str) -> None:
    """Merge the present and the imported values of a key: each ends when the next begins."""
    values = await find_values(store, space, key)
    values = sorted(values, key=lambda value: (get_valid_from(value), value.superseded_by is None))
    # Of several values that begin at the same time, the last counts.
    for value in {get_valid_from(value): value for value in values}.values():
        write = partial(write_keyed_facts, store, space, [], [value])
        await retry_on_conflict(write, f"merging the values of {key!r}")


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
