"""Recall over all tiers: each tier as a source of lines, all of them asked at once, and one block made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol

from recollect.errors import EmbedderFailed, StoreClosed, StoreError
from recollect.lifecycle.overtaken import Overtaken, asks_of_the_past, overtaken
from recollect.memory.asked import Asked
from recollect.memory.looking_back import LASTS, Lately
from recollect.memory.meanings import Meanings
from recollect.memory.parts import Parts
from recollect.memory.said import Said
from recollect.recall.across import Found, Source, across, together
from recollect.recall.clauses import clauses, uncovered
from recollect.recall.lines import CURRENT, KNOWLEDGE, PROCEDURES, Line
from recollect.recall.pack import pack
from recollect.recall.person import in_first_person
from recollect.recall.recent import shared_words
from recollect.stores.question import Mode, Question
from recollect.stores.where import Where
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.one_model import under_one_model
from recollect.tiers.procedural import ProceduralMemory
from recollect.tiers.procedure import Procedure, procedure_of
from recollect.tiers.semantic import SemanticMemory
from recollect.tiers.working import WorkingMemory
from recollect.values import Context, Hit, LeftOut, MemoryItem, Scope, Tier, Why

# The task at hand goes before everything that was looked up.
_ALWAYS = 2.0

# Stores have their own, shorter patience with locks; this is for one that never answers.
_PATIENCE = 30.0


class Tiers(Protocol):
    """The parts of a memory that are asked."""

    scope: Scope
    working: WorkingMemory
    conversation: ConversationMemory
    semantic: SemanticMemory
    procedural: ProceduralMemory


async def recalled(parts: Parts, tiers: Tiers, asked: Asked) -> Context:
    """What matters for a question, from every tier that was asked for."""
    found = await across(Recalling(parts, tiers, asked).sources())
    return pack(asked.query, found.lines, asked.budget, left_out=found.left_out, warnings=found.warnings)


class Recalling:
    """One question on its way through the tiers."""

    def __init__(self, parts: Parts, tiers: Tiers, asked: Asked) -> None:
        self._parts = parts
        self._tiers = tiers
        self._asked = asked
        self._meanings = Meanings(parts.embedding, asked.query)
        # Whoever spoke of themselves said "I"; a model that asks for them says "the user".
        theirs = in_first_person(asked.query)
        self._in_their_words = asked if theirs == asked.query else replace(asked, query=theirs)
        self._meanings_of_theirs = self._meanings if theirs == asked.query else Meanings(parts.embedding, theirs)

    def sources(self) -> list[Source]:
        """The tiers that were asked for, in the order in which they are read."""
        stores, patience = self._parts.stores, _PATIENCE + self._parts.settings.embed_timeout
        every: dict[Tier, Callable[[], Awaitable[Found]]] = {
            "working": self._working,
            "conversation": self._said,
            "episodic": lambda: self._as_it_is(self._lately.happened(stores.log("episodic"))),
            "semantic": self._semantic,
            "procedural": self._procedural,
        }
        return [
            Source(name=tier, ask=ask, patience=patience, stored=tier != "working", slow=tier == "semantic")
            for tier, ask in every.items()
            if tier in self._asked.tiers
        ]

    async def _working(self) -> Found:
        """The task at hand: always shown when there is one. It is of now, so a question about then leaves it out."""
        state = self._tiers.working
        text = state.get_context_string()
        if not text or not self._asked.n or self._asked.as_of is not None:
            return Found()
        item = MemoryItem(
            id=state.task_id,
            content=text,
            scope=self._tiers.scope,
            created_at=self._asked.now,
            tier="working",
            importance=1.0,
        )
        hit = Hit(item, "working", 1.0, _ALWAYS, Why(reason="the task at hand"))
        results = [value for value in state.results.values() if isinstance(value, str)]
        begun = f"Task begun: {state.task}"  # as the episode of its beginning tells it
        texts = (text, state.task, begun, state.current_goal, *state.subgoals, *state.scratchpad, *results)
        says = tuple(one for one in texts if isinstance(one, str) and one)
        return Found([Line(hit=hit, section=CURRENT, worth=_ALWAYS, lasts=LASTS["working"], says=says)])

    @cached_property
    def _lately(self) -> Lately:
        """Made by the first that needs it: by then the search of facts, which takes longest, is under way."""
        return Lately(self._in_their_words, self._tiers.scope, self._meanings_of_theirs)

    async def _said(self) -> Found:
        parts, tiers = self._parts, self._tiers
        said = Said(parts.said, parts.facts, parts.embedding, tiers.scope, self._in_their_words)
        log = parts.stores.log("conversation")
        return await self._as_it_is(self._lately.said(log, tiers.conversation.summary, said))

    async def _semantic(self) -> Found:
        asked, search = self._asked, self._tiers.semantic.search
        options: dict[str, Any] = {"min_relevance": asked.min_relevance, "as_of": asked.as_of, "where": asked.where}
        warnings: list[str] = []
        try:
            await self._meanings.of_the_question()
            hits = await search(asked.query, asked.n, **options)
        except EmbedderFailed as error:
            options["mode"] = "text"
            hits = await search(asked.query, asked.n, **options)
            warnings.append(f"semantic memory was searched by words alone: {error}")
        theirs = self._in_their_words.query
        if theirs != asked.query and asked.n:  # a fact may have been told either way
            hits = _best_of([hits, await search(theirs, asked.n, **options)], asked.n)
        # Two questions in one are near to neither answer: what the whole leaves open is asked by itself.
        parts = clauses(asked.query)
        left_open = uncovered(parts, [hit.item.content for hit in hits]) if parts and asked.n else []
        if left_open:
            more = await together(*(search(part, asked.n, **options) for part in left_open))
            hits = _best_of([hits, *more], asked.n)
        return Found([_line(hit, KNOWLEDGE) for hit in hits], warnings=warnings)

    async def _as_it_is(self, telling: Awaitable[Found]) -> Found:
        """What a log tells, with what has taken the place of words that are no longer so.

        Who asks for the last session itself, or how it was before, is told what was said, and that it is over.
        """
        found, asked = await telling, self._asked
        if not found.lines:
            return found
        moment = asked.now if asked.as_of is None else asked.as_of
        where = Where(self._tiers.semantic.space, live_at=moment, known_at=asked.as_of)
        records = self._parts.stores.records("semantic")
        try:
            over = await overtaken(records, self._tiers.scope, (line.hit.item for line in found.lines), where)
        except StoreClosed:
            raise
        except (StoreError, OSError) as error:
            # The facts may be on another server than the log, which has answered.
            said = f"whether all that was said is still so could not be looked up: {str(error) or type(error).__name__}"
            return Found(found.lines, found.left_out, [*found.warnings, said])
        if not over:
            return found
        of_the_past = asks_of_the_past(asked.query)
        lines: list[Line] = []
        left_out: list[LeftOut] = list(found.left_out)
        for line in found.lines:
            end = over.get(line.hit.item.id)
            if end is None:
                lines.append(line)
            elif of_the_past or line.hit.why.reason:
                lines.append(replace(line, note=f"no longer so since {end.since:%Y-%m-%d}"))
            elif shared_words(asked.query, [end.rest]):
                lines.append(replace(line, hit=replace(line.hit, item=replace(line.hit.item, content=end.rest))))
            else:
                left_out.append(LeftOut(line.hit.item, _superseded(end)))
                if end.heir is not None and "semantic" in asked.tiers and asked.means(end.heir):
                    why = Why(reason=f"said on {end.since:%Y-%m-%d}, in place of what the question is about")
                    hit = Hit(end.heir, "semantic", line.hit.relevance, line.hit.score, why)
                    lines.append(_line(hit, KNOWLEDGE))
        return Found(lines, left_out, found.warnings)

    async def _procedural(self) -> Found:
        asked = self._asked
        if asked.as_of is not None:
            # How a version has worked is known as of now only, so nothing is said about it.
            return Found([_line(one, PROCEDURES) for one in self._meant(await self._versions(asked.as_of))])
        warnings: list[str] = []
        try:
            await self._meanings.of_the_question()
            hits = await self._tiers.procedural.search(asked.query, asked.n, min_relevance=asked.min_relevance)
        except EmbedderFailed as error:
            hits = [hit for hit in await self._versions(asked.now, "text") if procedure_of(hit.item).current]
            warnings.append(f"procedural memory was searched by words alone: {error}")
        lines = [_line(one, PROCEDURES, measured(procedure_of(one.item))) for one in self._meant(hits)]
        return Found(lines, warnings=warnings)

    async def _versions(self, moment: datetime, mode: Mode = "hybrid") -> list[Hit]:
        """The versions that were in use at a moment: each says when it began and ended."""
        question = Question(
            text=self._asked.query,
            where=Where(self._tiers.procedural.space, live_at=moment, known_at=moment),
            n=self._asked.n,
            min_relevance=self._asked.min_relevance,
            now=moment,
            asked_at=self._asked.now,
            mode=mode,
        )
        return await under_one_model(self._parts.embedding, lambda _: self._parts.procedures.search(question))

    def _meant(self, hits: list[Hit]) -> list[Hit]:
        return [hit for hit in hits if self._asked.means(hit.item)]


def _superseded(end: Overtaken) -> str:
    by = "" if end.heir is None else f" by item {end.heir.id}"
    return f"superseded{by} on {end.since:%Y-%m-%d}"


def _best_of(several: Sequence[Sequence[Hit]], n: int) -> list[Hit]:
    """Each item once, as relevant as it is to the question it answers best; the best of every question stay."""
    best: dict[str, Hit] = {}
    for hit in (hit for hits in several for hit in hits):
        known = best.get(hit.item.id)
        if known is None or hit.relevance > known.relevance:
            best[hit.item.id] = hit
    firsts = {hits[0].item.id for hits in several if hits}
    kept = sorted(best.values(), key=lambda hit: (hit.item.id in firsts, hit.relevance), reverse=True)[:n]
    return sorted(kept, key=lambda hit: hit.relevance, reverse=True)


def measured(procedure: Procedure) -> str:
    """How a procedure has worked, in the words of its line."""
    trials = procedure.success_rate.trials
    if not trials:
        return "not tried yet"
    told = f"worked {procedure.outcomes.successes} of {trials} times"
    return f"{told}, failing lately" if procedure.demoted else told


def _line(hit: Hit, section: str, note: str = "") -> Line:
    return Line(hit=hit, section=section, worth=hit.relevance, note=note, lasts=LASTS[hit.tier])
