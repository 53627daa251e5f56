"""What happened and what was said lately, as far as a question is about it: the sources that read logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from recollect.errors import EmbedderFailed
from recollect.inference.base import Embedding
from recollect.memory.asked import Asked
from recollect.memory.in_confidence import is_confided
from recollect.recall.across import Found, together
from recollect.recall.calibrate import DEFAULT, Calibration, calibrated
from recollect.recall.echoes import echoes, key
from recollect.recall.leaning import is_bare, leans
from recollect.recall.lines import CURRENT, RECENT, Line, is_recalled, without_recalled
from recollect.recall.recent import NEWEST, NOTHING_SHARED, Seen, Shared, excerpt, judged, shared_words
from recollect.stores.base import Log
from recollect.stores.ops import Entry
from recollect.tiers.entries import entire
from recollect.tiers.episodic import episode_of
from recollect.tiers.facts import Fact
from recollect.tiers.messages import ROLES
from recollect.values import Hit, MemoryItem, Scope, Space, Tier, Turn

LASTS: Mapping[Tier, int] = {"working": 5, "semantic": 4, "procedural": 3, "episodic": 2, "conversation": 1}
"""Of tiers that hold the same text, the one that is shown: what is being done, what is known, how it is done, and only
then what happened and what was said."""

# The newest so many of a log are looked at: for older ones each tier has a search of its own.
_EPISODES = 24
_MESSAGES = 24


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a log is read beyond this session: the newest so many entries of the newest so many others."""

    entries: int
    sessions: int
    kinds: Sequence[str] = ()


_EPISODES_ELSEWHERE = Reach(20, 16)
# Instructions and summaries are of their own session alone.
_MESSAGES_ELSEWHERE = Reach(16, 12, ("user", "assistant", "tool"))

# So many of the newest are compared by meaning, and so much of each: a text costs the model what a question does.
_COMPARED = 12
_COMPARED_LENGTH = 600

# Whoever asks has the last messages before their eyes, more often than not.
_NEWEST_MESSAGES = 3

# Some milliseconds of reading.
_LONG_TO_READ = 40_000

# A summary tells of everything; the part of it that a question is about takes no more than another line.
_OF_A_SUMMARY = 800

# The kinds of entries that may be nothing but politeness.
_SPOKEN = (*ROLES, "turn")

_SUMMARY = "earlier in this session"
_TRUST_IN_TOOLS = Fact(content="", source="tool").trusted


class Meanings:
    """The vectors of one question and of the texts it is held against."""

    def __init__(self, embedding: Embedding, query: str) -> None:
        self._embedding = embedding
        self._query = query
        # One at a time, so that the second who asks finds in the embedder's cache what the first has had made.
        self._turn = asyncio.Lock()
        self._failed: EmbedderFailed | None = None

    async def of_the_question(self) -> None:
        """Have the question embedded, once for everybody who is going to ask with it."""
        await self._embedded([])

    async def cosines(self, texts: Sequence[str]) -> tuple[list[float], Calibration] | None:
        """How near each text is to the question; None while the embedder is down."""
        try:
            rows = await self._embedded([text[:_COMPARED_LENGTH] for text in texts])
            calibration = await self._calibrated()
        except EmbedderFailed:
            return None
        return (rows[1:] @ rows[0]).tolist(), calibration

    async def _embedded(self, texts: list[str]) -> Any:
        async with self._turn:
            if self._failed is not None:  # it is not waited for again and again
                raise self._failed
            try:
                return await self._embedding.embed([self._query, *texts])
            except EmbedderFailed as error:
                self._failed = error
                raise

    async def _calibrated(self) -> Calibration:
        known = _CALIBRATED.get(self._embedding)
        if known is None or known[0] != self._embedding.fingerprint:
            known = (self._embedding.fingerprint, await calibrated(self._embedding))
            _CALIBRATED[self._embedding] = known
        return known[1]


_CALIBRATED: WeakKeyDictionary[Embedding, tuple[str, Calibration]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry that may be told. `age` counts the newer ones of its session; None where that does not matter."""

    space: Space
    entry: Entry
    age: int | None = None
    lean: int = NEWEST
    """Up to which age it may be leaned on."""
    session: Sequence[Entry] = ()
    """All that was read of its session, where that is another one."""

    @property
    def recency(self) -> int | None:
        return self.age if self.age is not None and self.age < self.lean else None

    @property
    def confided(self) -> bool:
        return bool(self.session) and is_confided(self.session, self.session.index(self.entry))


@dataclass(frozen=True, slots=True)
class Told:
    """An entry that is told, and what it is told as."""

    entry: Entry
    space: Space
    hit: Hit

    def line(self, section: str, label: str) -> Line:
        hit = self.hit
        return Line(hit=hit, section=section, worth=hit.relevance, label=label, lasts=LASTS[hit.tier])


class Lately:
    """Two sources: what happened and what was said, in this session and in the user's others."""

    def __init__(self, asked: Asked, scope: Scope, meanings: Meanings) -> None:
        self._asked = asked
        self._scope = scope
        self._meanings = meanings
        self._leaning = leans(asked.query)

    async def happened(self, log: Log) -> Found:
        """Episodes that the question is about, newest last."""
        if not self._asked.n:
            return Found()
        here = self._scope.space("episodic")
        mine, others = await together(self._read(log, here, _EPISODES), self._elsewhere(log, here, _EPISODES_ELSEWHERE))
        own = self._aged(here, mine)
        told = sorted(await self._told([*own, *self._of_others(own, others)]), key=lambda one: one.entry.at)
        return Found([one.line(RECENT, _kind_of(one)) for one in told])

    async def said(self, log: Log, summary: Callable[[], Awaitable[str | None]]) -> Found:
        """The summary of this session and the messages that the question is about, newest last."""
        if not self._asked.n:
            return Found()
        here = self._scope.space("conversation")
        mine, others = await together(self._read(log, here, _MESSAGES), self._elsewhere(log, here, _MESSAGES_ELSEWHERE))
        # Instructions are no news to anybody, and a message may be nothing but calls of tools.
        spoken = [one for one in mine if one.kind in ROLES and one.kind != "system" and one.content.strip()]
        own = self._aged(here, spoken, _NEWEST_MESSAGES)
        summed_up = await self._summed_up(mine, summary)
        before = [] if summed_up is None else [Candidate(here, summed_up, 0)]
        told = await self._told([*self._of_others(own, others), *before, *own])
        elsewhere = sorted((one for one in told if one.space != here), key=lambda one: one.entry.at)
        return Found(
            [
                *(one.line(RECENT, one.entry.kind) for one in elsewhere),
                *(
                    one.line(CURRENT, one.entry.kind) if one.entry.kind in ROLES else self._part_of_summary(one)
                    for one in told
                    if one.space == here
                ),
            ]
        )

    def _aged(self, space: Space, entries: Sequence[Entry], lean: int = NEWEST) -> list[Candidate]:
        """The entries of a session with their ages; what says nothing by itself has none, and is not counted."""
        found: list[Candidate] = []
        age = 0
        for entry in reversed(entries):
            # Who writes a question down before they ask it is not to be told that they asked.
            if self._leaning is not None and entry.content.strip() == self._asked.query.strip():
                continue
            bare = entry.kind in _SPOKEN and is_bare(entry.content)
            found.append(Candidate(space, entry, None if bare else age, lean))
            age += not bare
        return found[::-1]

    def _of_others(self, own: Sequence[Candidate], others: Mapping[Space, Sequence[Entry]]) -> list[Candidate]:
        """The entries of other sessions. In a session that has only begun, "last time" was in the newest of them."""
        begun = any(one.age is not None for one in own)
        newest = None if begun or not others else max(others, key=lambda space: others[space][-1].at)
        found: list[Candidate] = []
        for space, entries in others.items():
            if space == newest:
                found += (replace(one, session=entries) for one in self._aged(space, entries))
            else:
                found += (Candidate(space, entry, session=entries) for entry in entries)
        return found

    def _part_of_summary(self, summary: Told) -> Line:
        """The part that the question is about; compared is the whole, since each part would be new to the embedder."""
        line, item = summary.line(CURRENT, _SUMMARY), summary.hit.item
        part = excerpt(item.content, self._asked.query, _OF_A_SUMMARY)
        return replace(line, hit=replace(summary.hit, item=replace(item, content=part)))

    async def _summed_up(self, entries: Sequence[Entry], summary: Callable[[], Awaitable[str | None]]) -> Entry | None:
        """What stands for the older messages, as an entry."""
        summaries = [one for one in entries if one.kind not in ROLES]
        if not summaries:
            return None
        newest = max(summaries, key=_reach)
        if self._asked.as_of is not None or any(one.seq <= _reach(newest) for one in entries if one is not newest):
            return newest if newest.content.strip() else None
        # What it covers is not among the newest; it may have been cleared, which the conversation knows.
        text = await summary()
        return replace(newest, content=text) if text and text.strip() else None

    async def _read(self, log: Log, space: Space, limit: int, kinds: Sequence[str] = ()) -> list[Entry]:
        then = self._asked.as_of
        if then is None:
            entries = await log.recent(space, limit=limit)
        else:
            entries = [entry for entry in await entire(log, space) if entry.at <= then][-limit:]
        if kinds:
            # Few are of another kind, and a store that has to look at them all the same takes longer to pick.
            entries = [entry for entry in entries if entry.kind in kinds]
        long = sum(len(entry.content) for entry in entries) > _LONG_TO_READ
        return await asyncio.to_thread(_own_words, entries) if long else _own_words(entries)

    async def _elsewhere(self, log: Log, here: Space, reach: Reach) -> dict[Space, list[Entry]]:
        """The newest entries of the user's other sessions."""
        others = [space for space in await log.logs(here) if space != here]
        if not others:
            return {}
        others = others[-reach.sessions :]
        read = await together(*(self._read(log, space, reach.entries, reach.kinds) for space in others))
        return {
            space: told
            for space, entries in zip(others, read, strict=True)
            if (told := [entry for entry in entries if entry.content.strip()])
        }

    async def _told(self, candidates: Sequence[Candidate]) -> list[Told]:
        """The candidates that the question is about, at most `n`, in their order."""
        asked = self._asked
        meant = [one for one in candidates if not asked.conditions or asked.means(_item(self._scope, one))]
        if not meant:
            return []
        words = await self._words([one.entry.content for one in meant])
        near, calibration = await self._near(meant)
        places = range(len(meant))
        seen = Seen(
            shared=[words.get(at, NOTHING_SHARED) for at in places],
            cosines=[near.get(at) for at in places],
            ages=[one.recency for one in meant],
        )
        found = judged(seen, calibration, self._leaning)
        worth = list(found.relevance)
        good = [at for at in places if worth[at] >= asked.min_relevance and not meant[at].confided]
        good = _without_echoes(good, worth, [key(meant[at].entry.content) for at in good])
        good = sorted(good, key=lambda at: (worth[at], meant[at].entry.at, at), reverse=True)[: asked.n]
        return [
            Told(meant[at].entry, meant[at].space, Hit(item, item.tier, worth[at], worth[at], found.why(at)))
            for at in sorted(good)
            for item in [_item(self._scope, meant[at])]
        ]

    async def _words(self, texts: Sequence[str]) -> dict[int, Shared]:
        if sum(map(len, texts)) > _LONG_TO_READ:
            return await asyncio.to_thread(shared_words, self._asked.query, texts)
        return shared_words(self._asked.query, texts)

    async def _near(self, candidates: Sequence[Candidate]) -> tuple[dict[int, float], Calibration]:
        """The cosines of the newest, by place; nothing while the embedder is down."""
        newest = [at for at, one in enumerate(candidates) if one.age is not None and one.age < _COMPARED]
        found = await self._meanings.cosines([candidates[at].entry.content for at in newest]) if newest else None
        if found is None:
            return {}, DEFAULT
        return dict(zip(newest, found[0], strict=True)), found[1]


def _own_words(entries: list[Entry]) -> list[Entry]:
    """Words with a block of ours among them are told without it: it would be recalled twice."""
    if not any(is_recalled(one.content) for one in entries):
        return entries
    own = (replace(one, content=without_recalled(one.content)) for one in entries)
    return [entry for entry in own if entry.content]


def _without_echoes(places: Sequence[int], worth: list[float], keys: Sequence[str]) -> list[int]:
    """The places without those that only repeat another one, which becomes worth as much as they are."""
    found = echoes(keys)
    for echo, said in found.items():
        worth[places[said]] = max(worth[places[said]], worth[places[echo]])
    return [at for place, at in enumerate(places) if place not in found]


def _item(scope: Scope, one: Candidate) -> MemoryItem:
    """An entry as the item that it is shown as."""
    entry, space = one.entry, one.space
    session = space.session or None
    from_tool = entry.kind in ("tool", "tool_call")
    spoken_by = entry.kind if entry.kind in ROLES else None
    return MemoryItem(
        id=entry.id,
        content=entry.content,
        scope=scope if scope.session == session else replace(scope, session=session),
        created_at=entry.at,
        tier=space.tier,
        metadata=episode_of(space, entry).metadata if space.tier == "episodic" else entry.metadata,
        importance=entry.importance,
        expires_at=entry.expires_at,
        source="tool" if from_tool else spoken_by or "user",
        trust=_TRUST_IN_TOOLS if from_tool else 1.0,
        turn=None if session is None else Turn(session, float(entry.seq), spoken_by),
    )


def _kind_of(episode: Told) -> str:
    """What an episode is; of a turn, who said it, where that is known."""
    if episode.entry.kind != "turn":
        return episode.entry.kind.replace("_", " ")
    role = episode.hit.item.metadata.get("role")
    return role if isinstance(role, str) else ""


def _reach(summary: Entry) -> int:
    """Up to which message a summary goes: up to its own place, if it does not say."""
    return int(summary.metadata.get("covers", summary.seq))
