"""Superseded log entries: statements that a later statement of the user has ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from recollect.language.claims import ClaimClause, SlotClaim, contradicts
from recollect.language.rules import ENGLISH, LanguageRules
from recollect.language.sentences import MAX_MESSAGE_LENGTH, NON_USER_ROLES, has_content_words, split_sentences
from recollect.retrieval.query import is_small_talk
from recollect.stores.base import Records
from recollect.stores.filters import Where, matches_where
from recollect.tiers.contradiction import ENDED_BY, is_user_statement
from recollect.tiers.facts import get_valid_from
from recollect.tiers.lifecycle_notes import name_slot_values
from recollect.types import MemoryItem, Scope, Space, make_content_id

# A replacement may have been replaced, too. Each step is a read.
_MAX_SUCCESSORS = 8

# Metadata keys of summaries, which messages do not have.
_SUMMARY_KEYS = {"noted", "unanswered"}

# Hashes of texts without claims, which are most texts. Only hashes: cleared and erased texts must not remain here.
_MAX_CACHED = 8192
_without_claims: set[tuple[int, int, bool]] = set()

_Facts = Mapping[str, tuple[MemoryItem, tuple[SlotClaim, ...]]]


@dataclass(frozen=True, slots=True)
class SupersededEntry:
    """The end of a statement in a log entry."""

    since: datetime
    replacement: MemoryItem | None
    """The later statement; None if the user has forgotten it since."""
    remaining_text: str
    """The text without the ended statements; empty if nothing remains."""


@dataclass(frozen=True, slots=True)
class _ClaimingSentence:
    """A sentence of an entry that makes claims about the user."""

    item: MemoryItem
    text: str
    clauses: tuple[ClaimClause, ...]
    by_user: bool


async def find_superseded_entries(
    records: Records, scope: Scope, entries: Iterable[MemoryItem], where: Where, rules: LanguageRules = ENGLISH
) -> dict[str, SupersededEntry]:
    """Return the superseded entries by id. `where` selects the space of the facts and the time.

    Nothing is read from the store unless an entry makes a claim, which few do.
    """
    sentences = [sentence for item in entries for sentence in _find_claiming_sentences(item, rules)]
    if not sentences:
        return {}
    facts = await _load_related_facts(records, scope, sentences, where)
    claims = {id: (item, rules.extract_claims(item.content)) for id, item in facts.items()}
    found: dict[str, SupersededEntry] = {}
    for sentence in sentences:
        superseded = _judge_sentence(sentence, found.get(sentence.item.id), claims, where)
        if superseded is not None:
            found[sentence.item.id] = superseded
    return found


def _find_claiming_sentences(item: MemoryItem, rules: LanguageRules) -> list[_ClaimingSentence]:
    role = str(item.metadata.get("role") or item.source).lower()
    by_user = role not in NON_USER_ROLES
    if role == "tool" or not _may_contain_claims(item.content, by_user, rules):
        return []
    return [
        _ClaimingSentence(item, statement.text, clauses, by_user)
        for statement in rules.parse_statements(item.content)
        if not (statement.is_question or statement.is_supposed)
        and (clauses := rules.parse_clauses(statement.text, by_user))
    ]


def _may_contain_claims(text: str, by_user: bool, rules: LanguageRules) -> bool:
    key = (hash(text), len(text), by_user)
    if key in _without_claims:
        return False
    if any(rules.parse_clauses(sentence, by_user) for sentence in split_sentences(text[:MAX_MESSAGE_LENGTH])):
        return True
    if len(_without_claims) >= _MAX_CACHED:
        _without_claims.clear()
    _without_claims.add(key)
    return False


async def _load_related_facts(
    records: Records, scope: Scope, sentences: Sequence[_ClaimingSentence], where: Where
) -> dict[str, MemoryItem]:
    """Return the facts about the same slots, with their successors.

    A promoted sentence has the id of its fact, so one read finds most facts. For other wordings, the notes of the
    lifecycle list the facts that last gave a value of the slot.
    """
    ids = [make_content_id(where.space, sentence.text) for sentence in sentences]
    facts = await _load_with_successors(records, where.space, set(ids))
    others = (sentence for sentence, id in zip(sentences, ids, strict=True) if id not in facts)
    slots = {slot for sentence in others for clause in sentence.clauses for slot in clause.claim.slots}
    if slots:
        note_space = replace(scope, session=None).space("lifecycle")
        notes = await records.get(note_space, *map(name_slot_values, sorted(slots)))
        recent = {str(id) for note in notes for id in note.metadata.get("items", ())}
        facts |= await _load_with_successors(records, where.space, recent - facts.keys())
    return facts


async def _load_with_successors(records: Records, space: Space, wanted: set[str]) -> dict[str, MemoryItem]:
    facts: dict[str, MemoryItem] = {}
    for _ in range(_MAX_SUCCESSORS):
        if not wanted:
            break
        found = await records.get(space, *sorted(wanted))
        facts |= {item.id: item for item in found}
        wanted = {item.superseded_by for item in found if item.superseded_by is not None} - facts.keys()
    return facts


def _judge_sentence(
    sentence: _ClaimingSentence, before: SupersededEntry | None, facts: _Facts, where: Where
) -> SupersededEntry | None:
    """Return the state of the entry after this sentence; None while all of it holds."""
    ends = [(clause, _find_end(clause.claim, sentence, facts, where)) for clause in sentence.clauses]
    ended = [end for _, end in ends if end is not None]
    if not ended:
        return before
    text = sentence.item.content
    if before is not None:
        ended.append((before.since, before.replacement))
        text = before.remaining_text
    # An assistant's sentence was rewritten for parsing, so it is shown whole or not at all.
    remaining = " and ".join(clause.text for clause, end in ends if end is None) if sentence.by_user else ""
    text = text.replace(sentence.text, remaining, 1)
    since, replacement = max(ended, key=lambda end: (end[1] is not None, end[0]))
    is_empty = is_small_talk(text) or not has_content_words(text)
    return SupersededEntry(since, replacement, "" if is_empty else " ".join(text.split()))


def _find_end(
    claim: SlotClaim, sentence: _ClaimingSentence, facts: _Facts, where: Where
) -> tuple[datetime, MemoryItem | None] | None:
    """Return when a claim ended and its replacement; None while it holds, or if it holds again."""
    stated_at, now = _get_statement_time(sentence.item), where.live_at
    current = [(item, claims) for item, claims in facts.values() if matches_where(where, item)]
    if any(claim in claims for _, claims in current):
        return None
    replacements = [
        (any(later.is_affirmed for later in claims), get_valid_from(item), item)
        for item, claims in current
        if get_valid_from(item) > stated_at
        and (item.trust >= sentence.item.trust or not sentence.by_user)
        and is_user_statement(item)
        and any(contradicts(later, claim) for later in claims)
    ]
    if replacements:
        # "I live in Porto" says more than "I don't live in Lisbon any more".
        _, since, replacement = max(replacements, key=lambda candidate: candidate[:2])
        return since, replacement
    for item, claims in facts.values():
        ended_at = item.valid_to
        if ended_at is None or now is None or not stated_at < ended_at <= now or ENDED_BY not in item.metadata:
            continue
        if claim in claims:
            return ended_at, _find_successor(item, facts, where)
    return None


def _get_statement_time(item: MemoryItem) -> datetime:
    """Return the time of the entry; for a summary the earliest time, since its statements are of unknown age."""
    return datetime.min.replace(tzinfo=UTC) if item.metadata.keys() >= _SUMMARY_KEYS else item.created_at


def _find_successor(item: MemoryItem, facts: _Facts, where: Where) -> MemoryItem | None:
    for _ in range(_MAX_SUCCESSORS):
        successor = facts.get(item.superseded_by or "")
        if successor is None:
            return None
        item = successor[0]
        if matches_where(where, item):
            return item
    return None
