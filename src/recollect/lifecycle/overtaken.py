"""What was said once and is no longer so: words of a log whose claim a later word of the user has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from recollect.lifecycle import marks
from recollect.lifecycle.claims import Claim, Clause, claims_of, clauses_of, ends
from recollect.lifecycle.forget import ENDED_BY
from recollect.lifecycle.phrasing import either, pattern
from recollect.lifecycle.retold import as_they_would_say
from recollect.lifecycle.spoken import NOT_THE_USER
from recollect.lifecycle.statements import LONGEST_MESSAGE, says_something, sentences, statements
from recollect.lifecycle.succession import is_own, since
from recollect.recall.leaning import is_bare
from recollect.stores.base import Records
from recollect.stores.where import Where, holds
from recollect.values import MemoryItem, Scope, Space, content_id

# An heir may have an heir: so many moves are followed, each of which is a read.
_MOVES = 8

# What the metadata of a summary has, and of a message has not.
_IN_SUMMARIES = {"noted", "unanswered"}

_PAST = pattern(
    r"\b",
    either("""
        did, was, were, had, used to, before, previous, previously, former, formerly, past, earlier, ever, originally,
        until, ago, old, once, history, back then, back when, at first, in \\d{4}, last (?:year|month|week)
    """),
    r"\b",
)


@dataclass(frozen=True, slots=True)
class Overtaken:
    """What has become of something said: since when it is not so, what is so instead, and what else was said."""

    since: datetime
    heir: MemoryItem | None
    """What the user said instead; None where they have forgotten that since."""
    rest: str
    """The words without those that are overtaken; empty where nothing is left."""


@dataclass(frozen=True, slots=True)
class _Said:
    """One sentence of an entry, as it stands there, and what it claims about the user."""

    item: MemoryItem
    sentence: str
    clauses: tuple[Clause, ...]
    by_them: bool
    """Whether they said it themselves; an assistant has it from them."""


async def overtaken(records: Records, scope: Scope, told: Iterable[MemoryItem], where: Where) -> dict[str, Overtaken]:
    """What of the entries of a log is no longer so, by their ids; `where` says as of when, in the space of the facts.

    Nothing is read unless an entry claims something that may have changed, which few do.
    """
    said = [one for item in told for one in _claimed_in(item)]
    if not said:
        return {}
    facts = await _facts(records, scope, said, where)
    found: dict[str, Overtaken] = {}
    for one in said:
        judged = _judged(one, found.get(one.item.id), facts, where)
        if judged is not None:
            found[one.item.id] = judged
    return found


def asks_of_the_past(query: str) -> bool:
    """Whether somebody asks how it was: then what is over is the answer, told as what is over."""
    return bool(_PAST.search(query))


def _claimed_in(item: MemoryItem) -> list[_Said]:
    """The sentences of an entry that claim something about the user, by whoever told it."""
    speaker = str(item.metadata.get("role") or item.source).lower()
    by_them = speaker not in NOT_THE_USER
    if speaker == "tool" or not _CLAIMS.may_be_in(item.content, by_them):
        return []
    return [
        _Said(item, statement.text, clauses, by_them)
        for statement in statements(item.content)
        if not (statement.is_question or statement.is_supposed)
        and (clauses := clauses_of(as_they_would_say(statement.text, by_them)))
    ]


class _Claims:
    """Which texts claim nothing, as most do: a block quotes the same ones again and again.

    It knows them by their hashes alone: what is cleared or erased must not live on here.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._without: set[tuple[int, int, bool]] = set()

    def may_be_in(self, text: str, by_them: bool) -> bool:
        key = (hash(text), len(text), by_them)
        if key in self._without:
            return False
        told = sentences(text[:LONGEST_MESSAGE])
        if any(clauses_of(as_they_would_say(one, by_them)) for one in told):
            return True
        if len(self._without) >= self._size:
            self._without.clear()
        self._without.add(key)
        return False


_CLAIMS = _Claims(8192)


async def _facts(records: Records, scope: Scope, said: Sequence[_Said], where: Where) -> dict[str, MemoryItem]:
    """What has been told of the same slots, with what has taken its place.

    A sentence that was made a fact has its id, and so one read tells of most. Only of what was said in other words the
    notes know which facts have told the value of its slots lately.
    """
    own = [content_id(where.space, one.sentence) for one in said]
    facts = await _with_heirs(records, where.space, set(own))
    others = (one for one, id in zip(said, own, strict=True) if id not in facts)
    slots = {slot for one in others for clause in one.clauses for slot in clause.claim.slots}
    if slots:
        notes = await records.get(replace(scope, session=None).space("lifecycle"), *map(marks.valued, sorted(slots)))
        lately = {str(id) for note in notes for id in note.metadata.get("items", ())}
        facts |= await _with_heirs(records, where.space, lately - facts.keys())
    return facts


async def _with_heirs(records: Records, space: Space, wanted: set[str]) -> dict[str, MemoryItem]:
    facts: dict[str, MemoryItem] = {}
    for _ in range(_MOVES):
        if not wanted:
            break
        found = await records.get(space, *sorted(wanted))
        facts |= {item.id: item for item in found}
        wanted = {item.superseded_by for item in found if item.superseded_by is not None} - facts.keys()
    return facts


def _judged(said: _Said, before: Overtaken | None, facts: dict[str, MemoryItem], where: Where) -> Overtaken | None:
    """What has become of the entry, up to this sentence of it; None while all of it holds."""
    ended: list[tuple[datetime, MemoryItem | None]] = []
    left: list[str] = []
    for clause in said.clauses:
        end = _end_of(clause.claim, said, facts, where)
        if end is None:
            left.append(clause.text)
        else:
            ended.append(end)
    if not ended:
        return before
    text = said.item.content
    if before is not None:
        ended.append((before.since, before.heir))
        text = before.rest
    # An assistant's sentence was read as the user would say it: it is shown as it was said, or not at all.
    rest = text.replace(said.sentence, " and ".join(left) if said.by_them else "", 1)
    at, heir = max(ended, key=lambda one: (one[1] is not None, one[0]))
    return Overtaken(at, heir, "" if is_bare(rest) or not says_something(rest) else " ".join(rest.split()))


def _end_of(
    claim: Claim, said: _Said, facts: dict[str, MemoryItem], where: Where
) -> tuple[datetime, MemoryItem | None] | None:
    """When a claim ended and what ended it; None while it holds, also where it holds again."""
    then, now = _said_at(said.item), where.live_at
    standing = [item for item in facts.values() if holds(where, item)]
    if any(claim in claims_of(item.content) for item in standing):
        return None
    heirs = [
        item
        for item in standing
        if since(item) > then
        and (item.trust >= said.item.trust or not said.by_them)
        and is_own(item)
        and any(ends(later, claim) for later in claims_of(item.content))
    ]
    if heirs:
        # "I live in Porto" tells more than "I don't live in Lisbon any more".
        heir = max(heirs, key=lambda item: (any(later.holds for later in claims_of(item.content)), since(item)))
        return since(heir), heir
    for item in facts.values():
        over = item.valid_to
        if over is None or now is None or not then < over <= now or ENDED_BY not in item.metadata:
            continue
        if claim in claims_of(item.content):
            return over, _successor(item, facts, where)
    return None


def _said_at(item: MemoryItem) -> datetime:
    """When it was said. What is summed up was said before the summary, and all that was said later too may be in it."""
    return datetime.min.replace(tzinfo=UTC) if item.metadata.keys() >= _IN_SUMMARIES else item.created_at


def _successor(item: MemoryItem, facts: dict[str, MemoryItem], where: Where) -> MemoryItem | None:
    for _ in range(_MOVES):
        heir = facts.get(item.superseded_by or "")
        if heir is None or holds(where, heir):
            return heir
        item = heir
    return None
