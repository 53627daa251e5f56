"""Export of a scope to JSON lines in a stable order, and decoding of these lines with every value checked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from recollect.engine import list_vector_stores
from recollect.errors import BadInput
from recollect.portability.safe_file import EXPORT_MARK, ExportFile
from recollect.stores.factory import TierStores
from recollect.stores.filters import Where
from recollect.stores.overlay import iter_pages
from recollect.stores.validation import validate_write
from recollect.stores.writes import Entry, Put
from recollect.tiers.contradiction import ENDED_BY
from recollect.tiers.conversation import ConversationMemory, parse_export_time
from recollect.tiers.episodic import EPISODE_KINDS
from recollect.tiers.facts import candidate_id_parts, check_metadata
from recollect.tiers.indexing import find_all
from recollect.tiers.lifecycle_notes import name_promoted_fact
from recollect.tiers.log_entries import check_id, read_all_entries
from recollect.tiers.procedural import (
    TrialOutcomes,
    procedure_from_item,
    procedure_version_id,
    update_procedure_item,
    validate_description,
    validate_note,
    validate_procedure_key,
    validate_procedure_trust,
    validate_tags,
)
from recollect.tiers.working import WorkingMemory
from recollect.types import (
    EMPTY_MAPPING,
    MemoryItem,
    Progress,
    ProgressCallback,
    Scope,
    Space,
    Tier,
    Turn,
    make_content_id,
)
from recollect.validation import check_choice, check_count, check_flag, check_fraction, check_number, check_text

EXPORT_FORMAT = 1

_LOG_POSITION_PREFIX = "log:"

# Fields of an item that a line stores in another way, or not at all.
_OMITTED_FIELDS = ("scope", "tier", "version")
_SCOPE_FIELDS = ("user", "agent", "session")
_ITEM_TYPES = {field.name: str(field.type) for field in fields(MemoryItem) if field.name not in _OMITTED_FIELDS}
# `MISSING` differs from every value.
_ITEM_DEFAULTS: dict[str, Any] = {**{field.name: field.default for field in fields(MemoryItem)}, "metadata": {}}
_ENTRY_FIELDS = ("id", "kind", "content", "at", "metadata", "importance", "expires_at")


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The file, and the number of lines by tier."""

    path: Path
    lines: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ExportSource:
    """The scope that is exported, and its tiers."""

    scope: Scope
    stores: TierStores
    working: WorkingMemory
    open_conversation: Callable[[str], ConversationMemory]
    """Opens the conversation of a session by name."""


async def export_scope(
    source: ExportSource, path: Path, *, overwrite: bool, progress: ProgressCallback | None
) -> ExportReport:
    """Write the scope to a new file, which appears complete or not at all."""
    total = await _count_items(source)
    file = await asyncio.to_thread(ExportFile, path, overwrite=overwrite)
    counts: Counter[str] = Counter()
    try:
        names = {part: getattr(source.scope, part) for part in ("tenant", "user", "agent")}
        await asyncio.to_thread(file.write, [{EXPORT_MARK: EXPORT_FORMAT, "scope": names}])
        async for lines in _iterate_lines(source):
            await asyncio.to_thread(file.write, lines)
            counts.update(line["tier"] for line in lines)
            if progress is not None:
                progress(Progress("export", counts.total(), max(total, counts.total())))
        await asyncio.to_thread(file.write, [{"end": counts.total()}])
        await asyncio.to_thread(file.finish)
    finally:
        await asyncio.to_thread(file.abandon)
    return ExportReport(path, dict(counts))


async def _iterate_lines(source: ExportSource) -> AsyncIterator[list[dict[str, Any]]]:
    records, scope = source.stores.records("semantic"), source.scope
    for space in (scope.space("semantic"), scope.space("quarantine"), replace(scope, session=None).space("lifecycle")):
        async for page in iter_pages(records, Where(space)):
            yield [build_item_line(item) for item in page if space.tier != "lifecycle" or is_portable(item)]
    procedures = await find_all(source.stores.records("procedural"), Where(scope.space("procedural")))
    # The versions of a procedure follow each other, because they are imported in one batch.
    procedures.sort(key=lambda item: (item.key or "", item.metadata["number"], item.id))
    yield [build_item_line(item) for item in procedures]
    for space in await _list_sessions(source, "episodic"):
        entries = await read_all_entries(source.stores.log("episodic"), space)
        yield [build_entry_line("episodic", space.session, entry) for entry in entries]
    for space in await _list_sessions(source, "conversation"):
        about = await source.open_conversation(space.session).export()
        messages = about.pop("messages")
        # The summary comes first, so that a reader of the messages knows which of them it covers.
        contents = [{"about": about}, *({"message": message} for message in messages)]
        yield [{"tier": "conversation", "session": space.session, **content} for content in contents]
    if not source.working.is_empty:
        yield [{"tier": "working", "snapshot": source.working.snapshot()}]


async def _list_sessions(source: ExportSource, tier: Literal["conversation", "episodic"]) -> list[Space]:
    spaces = await source.stores.log(tier).logs(source.scope.space(tier))
    return sorted(spaces, key=lambda space: space.session)


async def _count_items(source: ExportSource) -> int:
    """Return the number of items; messages and episodes are counted as they are written."""
    spaces = {source.scope.space("semantic"), source.scope.space("quarantine"), source.scope.space("procedural")}
    stores = list_vector_stores(source.stores)
    counts = [count for store in stores for count in await store.spaces(source.scope.tenant)]
    return sum(count.items for count in counts if count.space in spaces)


def build_item_line(item: MemoryItem) -> dict[str, Any]:
    """Return an item as a line without the fields that have their default."""
    values = {name: getattr(item, name) for name in _ITEM_TYPES}
    return {
        "tier": item.tier,
        "by": {part: name for part in _SCOPE_FIELDS if (name := getattr(item.scope, part)) is not None},
        **{name: value for name, value in values.items() if value != _ITEM_DEFAULTS[name]},
    }


def build_entry_line(tier: Tier, session: str, entry: Entry) -> dict[str, Any]:
    values = {name: getattr(entry, name) for name in _ENTRY_FIELDS}
    return {
        "tier": tier,
        "session": session,
        **{name: value for name, value in values.items() if value not in (None, {})},
    }


def is_portable(note: MemoryItem) -> bool:
    """Return False for lifecycle notes about positions in a log, which are not valid in another store."""
    return not note.id.startswith(_LOG_POSITION_PREFIX)


def parse_item(line: Mapping[str, Any], tier: Tier, source: Scope, target: Scope, max_characters: int) -> MemoryItem:
    """Decode an item into the target's scope, whatever the line says. Raise `BadInput` if a value is invalid."""
    values = {name: value for name, value in line.items() if name not in ("tier", "by")}
    if unknown := sorted(set(values) - set(_ITEM_TYPES)):
        raise BadInput(f"an item has no field {', '.join(map(repr, unknown[:5]))}")
    for name in ("id", "content", "created_at"):
        if name not in values:
            raise BadInput(f"an item must have the field {name!r}")
    checked = {name: _parse_value(name, _ITEM_TYPES[name], value) for name, value in values.items()}
    if len(checked["content"]) > max_characters:
        raise BadInput(
            f"content must have at most {max_characters:,} characters; got {len(checked['content']):,}; "
            "raise max_content to import it"
        )
    item = MemoryItem(**checked, scope=_parse_scope(line.get("by", {}), tier, source, target), tier=tier)
    if item.access_count < 0 or (item.access_count == 0) != (item.last_accessed is None):
        raise BadInput("access_count must be above 0 exactly if there is a last_accessed")
    validate_write(Put(item=item))
    if tier == "procedural":
        _check_procedure(item, source)
    return item


def parse_entry(line: Mapping[str, Any], max_characters: int) -> Entry:
    """Decode an episode. Raise `BadInput` if a value is invalid."""
    if unknown := sorted(set(line) - {"tier", "session", *_ENTRY_FIELDS}):
        raise BadInput(f"an episode has no field {', '.join(map(repr, unknown[:5]))}")
    metadata = check_metadata(line.get("metadata"))
    if not set(metadata) <= {"given", "whole"} or not all(isinstance(part, dict) for part in metadata.values()):
        raise BadInput("the metadata of an episode must have no keys but 'given' and 'whole', both dicts")
    whole = metadata.get("whole")
    if whole is not None and not (isinstance(whole.get("size"), int) and isinstance(whole.get("sha256"), str)):
        raise BadInput("the 'whole' of an episode must have a size and a sha256")
    return Entry(
        id=check_id(line.get("id")),
        kind=check_choice("kind", line.get("kind"), EPISODE_KINDS),
        content=check_text("content", line.get("content"), max_length=max_characters),
        at=parse_time("at", line.get("at")),
        metadata=metadata,
        importance=check_fraction("importance", line.get("importance")),
        expires_at=None if line.get("expires_at") is None else parse_time("expires_at", line["expires_at"]),
    )


def parse_session(line: Mapping[str, Any]) -> str:
    """Return the session of a line; an empty string for the session without a name."""
    session = line.get("session")
    if not isinstance(session, str):
        raise BadInput(f"session must be a string; got {session!r:.80}")
    Scope(session=session or None)  # checks the name
    return session


def parse_time(name: str, value: Any) -> datetime:
    time = parse_export_time(name, value)
    if time is None:
        raise BadInput(f"{name} must be a time such as '2026-11-12T09:30:00+00:00'; got None")
    return time


def map_id(item: MemoryItem, source: Space, target: Space) -> str:
    """Return the id of an item in the target. It is derived from the content, as in the source.

    So a fact that is remembered again after an import is the same item. An id that does not match its content is
    replaced, so that a forged file cannot take the id of other content.
    """
    if item.tier == "procedural":
        return procedure_version_id(target, item.key or "", procedure_from_item(item).version)
    if item.tier not in ("semantic", "quarantine"):
        return item.id
    if item.tier == "quarantine":  # it has the id of the fact that it would be
        source, target = replace(source, tier="semantic"), replace(target, tier="semantic")
    # The first are the id parts of a fact that was promoted again after its end.
    for parts in chain(([item.created_at.isoformat()],), candidate_id_parts(item)):
        if item.id == make_content_id(source, item.content, *parts):
            return make_content_id(target, item.content, *parts)
    return make_content_id(target, item.content, "imported", item.id)


def remap_item(item: MemoryItem, ids: Mapping[str, str]) -> MemoryItem:
    """Return the item with its own id, and the ids that it refers to, replaced."""
    if item.tier == "lifecycle":
        kept = item.id.removeprefix(name_promoted_fact(""))
        name = name_promoted_fact(ids[kept]) if kept != item.id and kept in ids else item.id
        metadata = {key: _remap_ids(value, ids) for key, value in item.metadata.items()}
        return replace(item, id=name, content=name, metadata=metadata)
    ended_by = item.metadata.get(ENDED_BY)
    return replace(
        item,
        id=ids.get(item.id, item.id),
        metadata=item.metadata if ended_by is None else {**item.metadata, ENDED_BY: _remap_ids(ended_by, ids)},
        superseded_by=None if item.superseded_by is None else ids.get(item.superseded_by, item.superseded_by),
        derived_from=tuple(ids.get(id, id) for id in item.derived_from),
    )


def _remap_ids(value: Any, ids: Mapping[str, str]) -> Any:
    if isinstance(value, list | tuple):
        return [_remap_ids(part, ids) for part in value]
    return ids.get(value, value) if isinstance(value, str) else value


def _check_procedure(item: MemoryItem, source: Scope) -> None:
    try:
        procedure = procedure_from_item(item)
        encoded = update_procedure_item(item, procedure)
        is_consistent = (
            encoded.content == item.content
            and dict(encoded.metadata) == dict(item.metadata)
            and item.id == procedure_version_id(source.space("procedural"), procedure.key, procedure.version)
        )
        check_count("version", procedure.version, minimum=1)
        validate_tags(procedure.tags)
        validate_description(procedure.description)
        _check_outcomes(procedure.outcomes)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadInput("the metadata of a procedure must have a valid version, standing and outcomes") from error
    validate_procedure_key(item.key)
    validate_procedure_trust(item.source, item.trust)
    standings = ("current", "superseded", "retired")
    if not is_consistent or procedure.standing not in standings or not procedure.body.strip():
        raise BadInput("the id, body or standing of a procedure does not match its metadata; export it again")


def _check_outcomes(outcomes: TrialOutcomes) -> None:
    for count in (outcomes.trials, outcomes.timed):
        check_count("trials", count)
    check_count("successes", outcomes.successes, maximum=outcomes.trials)
    for seconds in (outcomes.seconds, outcomes.bar):
        if seconds is not None:
            _parse_number("seconds", seconds)
    for note in outcomes.notes:
        check_flag("success", note.success)
        validate_note(note.text)
    hashes = (*outcomes.counted, *(author for note in outcomes.notes for author in note.author_hashes))
    if not all(isinstance(value, str) for value in hashes):
        raise BadInput("the trials of a procedure and their authors must be strings")


def _parse_scope(names: Any, tier: Tier, source: Scope, target: Scope) -> Scope:
    """Return the scope of an item. Names of the source become the target's, and the owner is always the target."""
    if not isinstance(names, Mapping) or not set(names) <= set(_SCOPE_FIELDS):
        raise BadInput(f"'by' must have no keys but {', '.join(_SCOPE_FIELDS)}; got {names!r:.80}")
    named = replace(source, **names)  # checks the names
    owner = target.space(tier)
    return Scope(
        target.tenant,
        target.user if owner.user or named.user == source.user else named.user,
        target.agent if owner.agent or named.agent == source.agent else named.agent,
        None if tier == "lifecycle" else names.get("session"),
    )


def _parse_value(name: str, kind: str, value: Any) -> Any:
    """Decode a value of the type that the field declares."""
    if value is None and "None" in kind:
        return None
    match kind.split(" ")[0]:
        case "datetime":
            return parse_time(name, value)
        case "float":
            return check_fraction(name, value) if name == "importance" else _parse_number(name, value)
        case "int" | "bool" | "str" as plain if type(value).__name__ == plain:
            return value
        case "Turn":
            return _parse_turn(value)
        case "tuple[str," if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return tuple(value)
        case "Mapping[str,":
            metadata = check_metadata(value)
            return MappingProxyType(metadata) if metadata else EMPTY_MAPPING
        case _:
            raise BadInput(f"{name} must be of the type {kind}; got {value!r:.80}")


def _parse_number(name: str, value: Any) -> float:
    return check_number(name, value, minimum=-float("inf"))


def _parse_turn(value: Any) -> Turn:
    if not isinstance(value, Mapping) or set(value) != {"session", "position", "speaker"}:
        raise BadInput(f"a turn must have a session, a position and a speaker; got {value!r:.80}")
    session, speaker = value["session"], value["speaker"]
    if not isinstance(session, str) or not (speaker is None or isinstance(speaker, str)):
        raise BadInput(f"the session and the speaker of a turn must be strings; got {value!r:.80}")
    return Turn(session, _parse_number("position", value["position"]), speaker)
