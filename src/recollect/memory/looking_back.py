"""What happened and what was said lately, as far as a question is about it: the sources that read logs."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from recollect.lifecycle.statements import asks_to_be_forgotten
from recollect.memory.asked import Asked
from recollect.memory.candidates import LASTS, Candidate, Session, Told
from recollect.memory.meanings import Meanings
from recollect.memory.said import Heard, Said, open_to_all
from recollect.recall.across import Found, together
from recollect.recall.calibrate import DEFAULT, Calibration
from recollect.recall.echoes import echoes, key
from recollect.recall.leaning import is_bare, leans
from recollect.recall.learned import Learned
from recollect.recall.lines import CURRENT, RECENT, Line, is_recalled, without_recalled
from recollect.recall.recent import NEWEST, NOTHING_SHARED, Seen, Shared, excerpt, judged, shared_with, unread
from recollect.stores.base import Log
from recollect.stores.ops import Entry
from recollect.stores.tails import Reach, Tail
from recollect.tiers.entries import entire
from recollect.tiers.messages import ROLES
from recollect.values import Hit, Scope, Space

__all__ = ["LASTS", "Lately"]

# The newest so many of a log are looked at. Of what was said this is what a question may lean on, and what is so new
# that it may not be indexed yet; all the rest is found by the index.
_EPISODES = Reach(own=24, others=16, of_each=20)
_MESSAGES = Reach(own=24, others=2, of_each=16)
# Instructions and summaries are of their own session alone.
_SAID_ELSEWHERE = frozenset(("user", "assistant", "tool"))
_SPEAKERS = frozenset(ROLES) - {"system"}

# So many of the newest are compared by meaning: a text costs the model what a question does.
_COMPARED = 12

# Whoever asks has the last messages before their eyes, more often than not.
_NEWEST_MESSAGES = 3

# Some milliseconds of reading.
_LONG_TO_READ = 40_000

# A summary tells of everything; the part of it that a question is about takes no more than another line.
_OF_A_SUMMARY = 800

# The kinds of entries that may be nothing but politeness.
_SPOKEN = (*ROLES, "turn")

# By which a question may differ from the same one: a question mark more, a space at its end.
_SIGNS = 8
_WORD = re.compile(r"\w+")

_SUMMARY = "earlier in this session"

Summary = Callable[[], Awaitable[str | None]]
"""Asks a conversation for what stands for its older messages."""


class Lately:
    """Two sources: what happened and what was said, in this session and in the user's others."""

    def __init__(self, asked: Asked, scope: Scope, meanings: Meanings) -> None:
        self._asked = asked
        self._scope = scope
        self._meanings = meanings
        self._leaning = leans(asked.query)
        self._words_asked = _words_of(asked.query)

    async def happened(self, log: Log) -> Found:
        """Episodes that the question is about, newest last."""
        if not self._asked.n:
            return Found()
        here = self._scope.space("episodic")
        mine, *others = await self._read(log, here, _EPISODES)
        own = self._aged(mine)
        told = sorted(await self._told([own, *self._of_others(own, others)]), key=lambda one: one.entry.at)
        return Found([one.line(RECENT, _kind_of(one)) for one in told])

    async def said(self, log: Log, summary: Summary, index: Said) -> Found:
        """The summary of this session and the messages that the question is about, of any session, newest last."""
        if not self._asked.n:
            return Found()
        here = self._scope.space("conversation")
        ((mine, *others), summed_up), heard = await self._read_and_heard(log, here, summary, index)
        # Instructions are no news to anybody, and a message may be nothing but calls of tools.
        own = self._aged(_saying(mine, _SPEAKERS), _NEWEST_MESSAGES)
        before = [] if summed_up is None else [Session(Tail.of(here, [summed_up]), [0], {0: 0})]
        told = await self._told([*self._of_others(own, others), *before, own])
        told = _each_once(told, open_to_all(heard.told, here, others), here, self._asked.n)
        elsewhere = [one for one in told if one.space != here]
        in_turn = [one for one in told if one.space == here]
        return Found(
            [
                *(one.line(RECENT, one.entry.kind) for one in sorted(elsewhere, key=_said_at)),
                *(
                    one.line(CURRENT, one.entry.kind) if one.entry.kind in ROLES else self._part_of_summary(one)
                    for one in sorted(in_turn, key=lambda one: (one.entry.kind in ROLES, one.entry.seq))
                ),
            ],
            warnings=heard.warnings,
        )

    async def _read_and_heard(
        self, log: Log, here: Space, summary: Summary, index: Said
    ) -> tuple[tuple[list[Tail], Entry | None], Heard]:
        """The ends of the logs and what the index has, at once; again, when the ends were not indexed yet."""
        reading = self._read_and_summed_up(log, here, summary)
        if index.anything:
            read, heard = await together(reading, self._heard(index))
        else:
            read, heard = await reading, None
        tails = read[0]
        if not any(tails):
            return read, heard or Heard()
        await self._meanings.of_the_question_if_it_can_be()
        if await index.caught_up(tails, model_is_up=not self._meanings.failed) or heard is None:
            heard = await self._heard(index)
        return read, heard

    async def _read_and_summed_up(self, log: Log, here: Space, summary: Summary) -> tuple[list[Tail], Entry | None]:
        """The ends of the logs, and what stands for the older messages of this session."""
        tails = await self._read(log, here, _MESSAGES, _SAID_ELSEWHERE)
        return tails, await self._summed_up(tails[0], summary)

    async def _heard(self, index: Said) -> Heard:
        await self._meanings.of_the_question_if_it_can_be()
        return await index.found(self._repeats, model_is_up=not self._meanings.failed)

    def _aged(self, tail: Tail, lean: int = NEWEST, *, elsewhere: bool = False) -> Session:
        """A session with the ages of its entries; what says nothing by itself has none, and is not counted."""
        places, bare = self._new_in(tail), _BARE.of(tail.texts)
        aged = [at for at in places if at not in bare or tail.kinds[at] not in _SPOKEN]
        ages = {at: age for age, at in enumerate(reversed(aged))}
        return Session(tail, places, ages, lean, elsewhere)

    def _new_in(self, tail: Tail) -> list[int]:
        """The places of what does not only ask again; few texts are as long as the question."""
        shortest, longest = len(self._asked.query) - _SIGNS, len(self._asked.query) + _SIGNS
        return [
            at for at, text in enumerate(tail.texts) if not shortest <= len(text) <= longest or not self._repeats(text)
        ]

    def _repeats(self, text: str) -> bool:
        """Whether a text is the question itself: that it was asked before answers nothing."""
        return abs(len(text) - len(self._asked.query)) <= _SIGNS and _words_of(text) == self._words_asked

    def _of_others(self, own: Session, others: Sequence[Tail]) -> list[Session]:
        """The other sessions. In a session that has only begun, "last time" was in the newest of them."""
        newest = None if own.ages or not others else max(others, key=lambda tail: tail[-1].at)
        return [
            self._aged(tail, elsewhere=True) if tail is newest else Session(tail, self._new_in(tail), elsewhere=True)
            for tail in others
        ]

    def _part_of_summary(self, summary: Told) -> Line:
        """The part that the question is about; compared is the whole, since each part would be new to the embedder."""
        line, item = summary.line(CURRENT, _SUMMARY), summary.hit.item
        part = excerpt(item.content, self._asked.query, _OF_A_SUMMARY)
        return replace(line, hit=replace(summary.hit, item=replace(item, content=part)))

    async def _summed_up(self, entries: Tail, summary: Summary) -> Entry | None:
        """What stands for the older messages, as an entry."""
        summaries = [entries[at] for at, kind in enumerate(entries.kinds) if kind not in ROLES]
        if not summaries:
            return None
        newest = max(summaries, key=_reach)
        # Where the first of the others is not among what it covers, none is.
        first = next((one for one in entries if one is not newest), newest)
        if self._asked.as_of is not None or (first is not newest and first.seq <= _reach(newest)):
            return newest if newest.content.strip() else None
        # What it covers is not among the newest; it may have been cleared, which the conversation knows.
        text = await summary()
        return replace(newest, content=text) if text and text.strip() else None

    async def _read(self, log: Log, here: Space, reach: Reach, elsewhere: frozenset[str] = frozenset()) -> list[Tail]:
        """The end of this session, and those of the user's newest others that say something."""
        then = self._asked.as_of
        mine, *others = await (log.tails(here, reach) if then is None else _tails_then(log, here, reach, then))
        # Few are of another kind, and a store that has to look at them all the same takes longer to pick.
        tails = [mine, *(_saying(tail, elsewhere) for tail in others)]
        new = sum(len(text) for texts in _OURS.new(tail.texts for tail in tails) for text in _RECALLED.new(texts))
        tails = await asyncio.to_thread(_own_words, tails) if new > _LONG_TO_READ else _own_words(tails)
        return [tails[0], *filter(None, tails[1:])]

    async def _told(self, sessions: Sequence[Session]) -> list[Told]:
        """The entries that the question is about, at most `n`, in their order."""
        asked = self._asked
        if asked.conditions:
            sessions = [session.only(lambda one: asked.means(one.item(self._scope))) for session in sessions]
        meant: list[Candidate] = []
        shared: list[Shared] = []
        for session, words in zip(sessions, await self._words([one.texts for one in sessions]), strict=True):
            # What nothing speaks for is worth nothing, and that is most of it.
            spoken_for = sorted({*words, *session.newest(_COMPARED)})
            some = spoken_for if asked.min_relevance > 0.0 else range(len(session.places))
            meant += session.candidates(some)
            shared += [words.get(nth, NOTHING_SHARED) for nth in some]
        if not meant:
            return []
        near, calibration = await self._near(meant)
        places = range(len(meant))
        seen = Seen(shared=shared, cosines=[near.get(at) for at in places], ages=[one.recency for one in meant])
        found = judged(seen, calibration, self._leaning)
        worth = list(found.relevance)
        good = [at for at in places if worth[at] >= asked.min_relevance and not meant[at].quarantined]
        if not good:
            return []
        good = _without_confided(good, meant)
        good = _without_echoes(good, worth, [key(meant[at].content) for at in good])
        good = sorted(good, key=lambda at: (worth[at], meant[at].entry.at, at), reverse=True)[: asked.n]
        return [
            Told(meant[at].entry, meant[at].tail.space, Hit(item, item.tier, worth[at], worth[at], found.why(at)))
            for at in sorted(good)
            for item in [meant[at].item(self._scope)]
        ]

    async def _words(self, texts: Sequence[tuple[str, ...]]) -> list[dict[int, Shared]]:
        if unread(texts) > _LONG_TO_READ:
            return await asyncio.to_thread(shared_with, self._asked.query, texts)
        return shared_with(self._asked.query, texts)

    async def _near(self, candidates: Sequence[Candidate]) -> tuple[dict[int, float], Calibration]:
        """The cosines of the newest, by place; nothing while the embedder is down."""
        newest = [at for at, one in enumerate(candidates) if one.age is not None and one.age < _COMPARED]
        found = await self._meanings.cosines([candidates[at].content for at in newest]) if newest else None
        if found is None:
            return {}, DEFAULT
        return dict(zip(newest, found[0], strict=True)), found[1]


async def _tails_then(log: Log, here: Space, reach: Reach, then: datetime) -> list[Tail]:
    """What `tails` would have said then, as far as it is still there."""
    others = [space for space in await log.logs(here) if space != here][-reach.others :]
    spaces = [here, *others]
    read = await together(*(entire(log, space) for space in spaces))
    limits = [reach.own, *(reach.of_each for _ in others)]
    return [
        Tail.of(space, [entry for entry in entries if entry.at <= then][-limit:])
        for space, entries, limit in zip(spaces, read, limits, strict=True)
    ]


def _saying(tail: Tail, kinds: frozenset[str]) -> Tail:
    """The tail without what says nothing, and without other kinds, where some are named."""
    if (not kinds or kinds.issuperset(tail.kinds)) and all(tail.texts) and not any(map(str.isspace, tail.texts)):
        return tail
    spoken = enumerate(zip(tail.texts, tail.kinds, strict=True))
    return tail.only(at for at, (text, kind) in spoken if (not kinds or kind in kinds) and text.strip())


_RECALLED = Learned(is_recalled, 8192)
# As a whole too: sessions that are over are the same every time.
_OURS: Learned[tuple[str, ...], bool] = Learned(lambda texts: any(map(_RECALLED.of, texts)), 512)


_BARELY = Learned(is_bare, 8192)
_BARE: Learned[tuple[str, ...], frozenset[int]] = Learned(
    lambda texts: frozenset(at for at, text in enumerate(texts) if _BARELY.of(text)), 512
)


def _words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _own_words(tails: Sequence[Tail]) -> list[Tail]:
    """Words with a block of ours among them are told without it: it would be recalled twice."""
    return [_without_ours(tail) if _OURS.of(tail.texts) else tail for tail in tails]


def _without_ours(tail: Tail) -> Tail:
    own = (replace(one, content=without_recalled(one.content)) for one in tail)
    return Tail.of(tail.space, [entry for entry in own if entry.content])


def _without_confided(places: Sequence[int], candidates: Sequence[Candidate]) -> list[int]:
    """The places without what was said in confidence, in another session."""
    several = Counter(candidates[at].tail for at in places)
    # Each is looked at with all that follows it, so that a session which is told as a whole is looked through first.
    open_to_all = {tail for tail, n in several.items() if n > 1 and not any(map(asks_to_be_forgotten, tail.texts))}
    return [at for at in places if candidates[at].tail in open_to_all or not candidates[at].confided]


def _without_echoes(places: Sequence[int], worth: list[float], keys: Sequence[str]) -> list[int]:
    """The places without those that only repeat another one, which becomes worth as much as they are."""
    found = echoes(keys)
    for echo, said in found.items():
        worth[places[said]] = max(worth[places[said]], worth[places[echo]])
    return [at for place, at in enumerate(places) if place not in found]


def _each_once(told: Sequence[Told], heard: Sequence[Told], here: Space, n: int) -> list[Told]:
    """What was found in two ways once, as relevant as it is in the better of them; the best `n`.

    A search knows all that was ever said, and what it has not found among the best of another session comes last:
    held against the question by itself, as the newest are, a text seems better than it is beside the others.
    """
    best = {(one.space, one.entry.id): one for one in told}
    for one in heard:
        place = (one.space, one.entry.id)
        known = best.get(place)
        if known is None:
            best[place] = one
        elif one.hit.relevance > known.hit.relevance:
            # The log has the words whole.
            best[place] = replace(known, hit=replace(one.hit, item=known.hit.item))
    searched = {(one.space, one.entry.id) for one in heard}

    def worth(place: tuple[Space, str]) -> Any:
        one = best[place]
        first = place in searched or one.space == here or bool(one.hit.why.reason)
        return first, one.hit.relevance, *_said_at(one)

    return [best[place] for place in sorted(best, key=worth, reverse=True)[:n]]


def _said_at(one: Told) -> tuple[datetime, str, int]:
    return one.entry.at, one.space.session, one.entry.seq


def _kind_of(episode: Told) -> str:
    """What an episode is; of a turn, who said it, where that is known."""
    if episode.entry.kind != "turn":
        return episode.entry.kind.replace("_", " ")
    role = episode.hit.item.metadata.get("role")
    return role if isinstance(role, str) else ""


def _reach(summary: Entry) -> int:
    """Up to which message a summary goes: up to its own place, if it does not say."""
    return int(summary.metadata.get("covers", summary.seq))
