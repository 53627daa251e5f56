"""The lines of an export: items and entries as JSON and back, each checked before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from datetime import datetime
from itertools import chain
from types import MappingProxyType
from typing import Any

from recollect.errors import BadInput
from recollect.lifecycle.forget import ENDED_BY
from recollect.stores.admission import admitted
from recollect.stores.ops import Entry, Put
from recollect.tiers import keyed
from recollect.tiers.entries import (
    checked_content,
    checked_id,
    checked_importance,
    checked_metadata,
)
from recollect.tiers.episodic import KINDS
from recollect.tiers.facts import in_utc
from recollect.tiers.outcomes import Outcomes
from recollect.tiers.procedure import changed, procedure_of, version_id
from recollect.tiers.procedure_input import (
    checked_description,
    checked_key,
    checked_note,
    checked_success,
    checked_tags,
    checked_trust,
    checked_version,
)
from recollect.values import NOTHING, MemoryItem, Scope, Space, Tier, Turn, content_id

FORMAT = 1

_READ_SO_FAR = "log:"
_KEPT = "kept:"

# Kept beside an item but not by it: whose it is, in which tier, and how often this store has rewritten it.
_APART = ("scope", "tier", "version")
_WHO = ("user", "agent", "session")
_OWNERS: Mapping[str, tuple[str, ...]] = {
    "semantic": ("user",),
    "procedural": ("agent",),
    "lifecycle": ("user", "agent"),
    "quarantine": ("user",),
}
_ITEM = {field.name: str(field.type) for field in fields(MemoryItem) if field.name not in _APART}
_DEFAULTS = {field.name: field.default for field in fields(MemoryItem) if field.default is not MISSING}
_ENTRY = ("id", "kind", "content", "at", "metadata", "importance", "expires_at")


def item_line(item: MemoryItem) -> dict[str, Any]:
    """An item; what is as it would be anyway is left out."""
    given = {name: getattr(item, name) for name in _ITEM}
    told = {
        name: _plain(value)
        for name, value in given.items()
        if not (name in _DEFAULTS and value == _DEFAULTS[name])
        and not (name in ("metadata", "derived_from") and not value)
    }
    who = {part: name for part in _WHO if (name := getattr(item.scope, part)) is not None}
    return {"tier": item.tier, "by": who, **told}


def is_portable(note: MemoryItem) -> bool:
    """Whether a note of the lifecycle says something elsewhere: how far a log was read does not, but what was made
    of it does, or what somebody has forgotten since would be promoted again."""
    return not note.id.startswith(_READ_SO_FAR)


def entry_line(tier: Tier, session: str, entry: Entry) -> dict[str, Any]:
    told = {name: _plain(getattr(entry, name)) for name in _ENTRY}
    return {
        "tier": tier,
        "session": session,
        **{name: value for name, value in told.items() if value not in (None, {})},
    }


def item_of(line: Mapping[str, Any], tier: Tier, source: Scope, target: Scope, longest: int) -> MemoryItem:
    """The item of a line, in the target's space whatever the line says; or `BadInput`."""
    given = {name: value for name, value in line.items() if name not in ("tier", "by")}
    unknown = sorted(set(given) - set(_ITEM))
    if unknown:
        raise BadInput(f"an item has no {', '.join(map(repr, unknown[:5]))}")
    for name in ("id", "content", "created_at"):
        if name not in given:
            raise BadInput(f"an item needs its {name!r}")
    checked = {name: _value(name, _ITEM[name], value) for name, value in given.items()}
    if len(checked["content"]) > longest:
        raise BadInput(f"the text has more than max_content characters ({longest:,}); raise the setting to import it")
    item = MemoryItem(**checked, scope=_scope(line.get("by", {}), tier, source, target), tier=tier)
    if item.access_count < 0 or (item.access_count == 0) != (item.last_accessed is None):
        raise BadInput("access_count and last_accessed do not go together")
    admitted(Put(item=item))
    return _checked_procedure(item, source) if tier == "procedural" else item


def moved_id(item: MemoryItem, source: Space, target: Space) -> str:
    """The id that an item of the source has in the target: derived from its content there, and so it is here.

    What is remembered again after an import is then still the same item. And an id that does not fit its content is
    not taken over: whoever forged it could else stand in the way of what has that id by right.
    """
    if item.tier == "procedural":
        return version_id(target, item.key or "", procedure_of(item).version)
    if item.tier not in ("semantic", "quarantine"):
        return item.id
    if item.tier == "quarantine":  # its id is that of the fact it would be
        source, target = replace(source, tier="semantic"), replace(target, tier="semantic")
    # The first: promoted again by the lifecycle, when what it had promoted was over.
    for parts in chain(([item.created_at.isoformat()],), keyed.identities(item)):
        if item.id == content_id(source, item.content, *parts):
            return content_id(target, item.content, *parts)
    return content_id(target, item.content, "imported", item.id)


def moved(item: MemoryItem, ids: Mapping[str, str]) -> MemoryItem:
    """The item under its new id, and with what it refers to under theirs."""
    if not ids:
        return item
    if item.tier == "lifecycle":
        kept = item.id.removeprefix(_KEPT)
        about = {name: _renamed(value, ids) for name, value in item.metadata.items()}
        name = f"{_KEPT}{ids.get(kept, kept)}" if item.id.startswith(_KEPT) else item.id
        return replace(item, id=name, content=name, metadata=about)
    heir = item.metadata.get(ENDED_BY)
    return replace(
        item,
        id=ids.get(item.id, item.id),
        metadata=item.metadata if heir is None else {**item.metadata, ENDED_BY: _renamed(heir, ids)},
        superseded_by=None if item.superseded_by is None else ids.get(item.superseded_by, item.superseded_by),
        derived_from=tuple(ids.get(id, id) for id in item.derived_from),
    )


def _renamed(value: Any, ids: Mapping[str, str]) -> Any:
    """What refers to items, one or several, by their new ids."""
    if isinstance(value, list | tuple):
        return [_renamed(one, ids) for one in value]
    return ids.get(value, value) if isinstance(value, str) else value


def entry_of(line: Mapping[str, Any], longest: int) -> Entry:
    """The episode of a line; or `BadInput`."""
    unknown = sorted(set(line) - {"tier", "session", *_ENTRY})
    if unknown:
        raise BadInput(f"an episode has no {', '.join(map(repr, unknown[:5]))}")
    if line.get("kind") not in KINDS:
        raise BadInput(f"the kind of an episode is one of {', '.join(KINDS)}, not {line.get('kind')!r:.80}")
    metadata = checked_metadata(line.get("metadata"))
    if not set(metadata) <= {"given", "whole"} or not all(isinstance(part, dict) for part in metadata.values()):
        raise BadInput("the metadata of an episode holds what was 'given' with it and its 'whole', both as dicts")
    whole = metadata.get("whole")
    if whole is not None and not (isinstance(whole.get("size"), int) and isinstance(whole.get("sha256"), str)):
        raise BadInput("the 'whole' of an episode has a size and a sha256")
    return Entry(
        id=checked_id(line.get("id")),
        kind=line["kind"],
        content=checked_content(line.get("content"), longest),
        at=moment("at", line.get("at")),
        metadata=metadata,
        importance=checked_importance(line.get("importance")),
        expires_at=None if line.get("expires_at") is None else moment("expires_at", line["expires_at"]),
    )


def session_of(line: Mapping[str, Any]) -> str:
    """The session that a line belongs to; the one without a name is the empty text."""
    session = line.get("session")
    if not isinstance(session, str):
        raise BadInput(f"a session is a name, not {session!r:.80}")
    Scope(session=session or None)
    return session


def _checked_procedure(item: MemoryItem, source: Scope) -> MemoryItem:
    try:
        procedure = procedure_of(item)
        # What is made of it again is what was read, or something in it is not of its kind.
        same = changed(item, procedure)
        fits = (same.content, dict(same.metadata)) == (item.content, dict(item.metadata)) and item.id == version_id(
            source.space("procedural"), procedure.key, procedure.version
        )
        checked_version(procedure.version)
        checked_tags(procedure.tags)
        checked_description(procedure.description)
        _check_outcomes(procedure.outcomes)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadInput("the metadata of a procedure does not say its version, standing and outcomes") from error
    checked_key(item.key)
    checked_trust(item.source, item.trust)
    if not fits or procedure.standing not in ("current", "superseded", "retired") or not procedure.body.strip():
        raise BadInput("the id, body or standing of this procedure is not one that was exported")
    return item


def _check_outcomes(outcomes: Outcomes) -> None:
    """Numbers where numbers are counted with, or `BadInput`."""
    counts = (outcomes.trials, outcomes.successes, outcomes.timed)
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 0 for count in counts):
        raise BadInput("the trials of a procedure are counted in whole numbers")
    if outcomes.successes > outcomes.trials:
        raise BadInput("a procedure has worked more often than it was tried")
    for number in (outcomes.seconds, outcomes.bar):
        if number is not None:
            _number("seconds", number)
    for note in outcomes.notes:
        checked_success(note.success)
        checked_note(note.text)
    if not all(isinstance(one, str) for one in (*outcomes.counted, *(by for note in outcomes.notes for by in note.by))):
        raise BadInput("trials and who they are by are names")


def _scope(who: Any, tier: Tier, source: Scope, target: Scope) -> Scope:
    """Who it is by: names of the source are the target's here, and what the space is made of is always the target's."""
    if not isinstance(who, Mapping) or not set(who) <= set(_WHO):
        raise BadInput(f"'by' names the {', '.join(_WHO)} that an item is by")
    Scope(**who)  # names that could be names
    names: dict[str, Any] = {"tenant": target.tenant}
    for part in ("user", "agent"):
        name = who.get(part, getattr(source, part))
        names[part] = getattr(target, part) if part in _OWNERS[tier] or name == getattr(source, part) else name
    return Scope(**names, session=None if tier == "lifecycle" else who.get("session"))


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case Turn():
            return {"session": value.session, "position": value.position, "speaker": value.speaker}
        case tuple():
            return list(value)
        case Mapping():
            return dict(value)
        case _:
            return value


def _value(name: str, kind: str, value: Any) -> Any:
    """A value of the type that the field has; None only where that is one."""
    if value is None and "None" in kind:
        return None
    match kind.split(" ")[0]:
        case "datetime":
            return moment(name, value)
        case "float":
            return checked_importance(value) if name == "importance" else _number(name, value)
        case "int" if isinstance(value, int) and not isinstance(value, bool):
            return value
        case "bool" if isinstance(value, bool):
            return value
        case "str" if isinstance(value, str):
            return value
        case "Turn":
            return _turn(value)
        case "tuple[str," if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
        case "Mapping[str,":
            plain = checked_metadata(value)
            return MappingProxyType(plain) if plain else NOTHING
        case _:
            raise BadInput(f"{name!r} cannot be {value!r:.80}")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"{name!r} is a number, not {value!r:.80}")
    return float(value)


def _turn(value: Any) -> Turn:
    if not isinstance(value, Mapping) or set(value) != {"session", "position", "speaker"}:
        raise BadInput("a turn has a session, a position and a speaker")
    session, speaker = value["session"], value["speaker"]
    if not isinstance(session, str) or not (speaker is None or isinstance(speaker, str)):
        raise BadInput("the session and the speaker of a turn are names")
    return Turn(session, _number("position", value["position"]), speaker)


def moment(name: str, value: Any) -> datetime:
    """A time as an export writes it."""
    if not isinstance(value, str):
        raise BadInput(f"{name!r} is a time such as '2026-11-12T09:30:00+00:00', not {value!r:.80}")
    try:
        return in_utc(name, datetime.fromisoformat(value))
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"{name!r} is {value!r:.80}, not an ISO time") from error
