"""What deserves to last is taken out of the logs before it expires: page by page, each read once and for good."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from recollect.errors import Conflict
from recollect.lifecycle import marks
from recollect.lifecycle.extraction import Extraction
from recollect.lifecycle.facts import Facts
from recollect.lifecycle.promote import Worthy, fact_like
from recollect.lifecycle.run import Run
from recollect.lifecycle.spoken import Spoken, spoken
from recollect.lifecycle.statements import fingerprint
from recollect.stores.base import Log
from recollect.stores.ops import Entry, Model, Put
from recollect.tiers.indexing import index_terms
from recollect.tiers.one_model import under_one_model
from recollect.tiers.patience import pause
from recollect.tiers.semantic import embedded
from recollect.values import Space, content_id

_PAGE = 100
_TRIES = 8


@dataclass(frozen=True, slots=True)
class Heard:
    """What was found in one entry: what deserves to last, and what would if it were said again."""

    spoken: Spoken
    worthy: tuple[Worthy, ...]
    declared: tuple[str, ...]


class Promotion:
    """Reads the conversations and episodes of one user and agent, from where the last run ended.

    Expired entries are read too, as long as they are there: whoever looks late must not have looked in vain. How far
    a log was read is written in the same batch as the facts, so that no entry is learned from twice.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._marks = marks.Marks(run.ground, run.scope)
        self._extraction = Extraction(run)

    async def run(self) -> None:
        means, scope = self._run.means, self._run.scope
        # The conversation has the words whole; an episode is often its twin.
        logs = [
            (log, space)
            for log, tier in ((means.conversation, "conversation"), (means.episodic, "episodic"))
            for space in await log.logs(scope.space(tier), hidden=True)  # type: ignore[arg-type]
        ]
        for at, (log, space) in enumerate(logs):
            await self._read(log, space)
            self._run.progress("promote", at + 1, len(logs))

    async def _read(self, log: Log, space: Space) -> None:
        name = marks.read_up_to(space)
        for tries in range(_TRIES):
            after = marks.seq_of((await self._marks.get([name])).get(name))
            try:
                while page := await log.read(space, after=after, limit=_PAGE, hidden=True):
                    await self._page(space, page)
                    after = page[-1].seq
            except Conflict:  # somebody else is reading it, or has changed a fact that is to end
                await pause(tries)
                continue
            self._run.read_up_to[space] = after
            return
        self._run.ledger.note(f"the log {space.tier}:{space.session} is being read by others; left for the next run")

    async def _page(self, space: Space, page: Sequence[Entry]) -> None:
        heard = await asyncio.to_thread(_heard, space, page)
        facts = Facts(self._run, self._marks)
        ids = {marks.kept(content_id(self._run.facts, one.text)) for each in heard for one in each.worthy}
        said = {marks.said(fingerprint(text)) for each in heard for text in each.declared}
        await facts.load(ids | said | {marks.read_up_to(space)})
        for each in heard:
            for one in each.worthy:
                await facts.consider(each.spoken, one.text, one.rule)
            for text in each.declared:
                await self._declared(facts, each.spoken, text)
        for found in await self._extraction.of([each.spoken for each in heard if each.spoken.by == "user"]):
            if not any(found.quote in one.text or one.text in found.quote for each in heard for one in each.worthy):
                await facts.consider(found.spoken, found.fact, "extracted", quote=found.quote)
        facts.set_note(marks.read_up_to(space), {"seq": page[-1].seq})
        await self._write(facts)
        self._run.ledger.add("promoted", facts.actions)
        self._run.ledger.examined += len(page)

    async def _declared(self, facts: Facts, spoken: Spoken, text: str) -> None:
        name = marks.said(fingerprint(text))
        before = await facts.note(name)
        told = marks.with_occurrence(before, spoken.space.session, spoken.entry.at, spoken.entry.id)
        if marks.is_repeated(told) and not told.get("kept"):
            await facts.consider(spoken, text, "repeated", origins=tuple(one[2] for one in told["said"]))
            told["kept"] = True
        if told != before:
            facts.set_note(name, told)

    async def _write(self, facts: Facts) -> None:
        items = list(facts.fresh.values())
        if not items or self._run.dry:
            await self._run.ground.write(*(Put(item=item, expect=0) for item in items), *facts.puts())
            return

        async def write(model: Model) -> None:
            vectors = await embedded(self._run.means.embedding, items)
            fresh = [
                Put(item=item, vectors=rows, terms=index_terms(item), model=model, expect=0)
                for item, rows in zip(items, vectors, strict=True)
            ]
            await self._run.ground.write(*fresh, *facts.puts())

        await under_one_model(self._run.means.embedding, write)


def _heard(space: Space, page: Sequence[Entry]) -> list[Heard]:
    """What each entry says; in a thread, since a long page takes its time."""
    heard = []
    for entry in page:
        words = spoken(space, entry)
        if words is None:
            continue
        worthy = tuple(words.worthy())
        told = {one.text for one in worthy}
        declared = (one.text for one in fact_like(words.text)) if words.by == "user" else ()
        heard.append(Heard(words, worthy, tuple(text for text in declared if text not in told)))
    return heard
