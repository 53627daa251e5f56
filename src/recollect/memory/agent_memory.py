"""AgentMemory: the parts of one scope, and the calls that concern more than one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from recollect.clock import Clock
from recollect.doctor import DoctorReport
from recollect.errors import BadInput
from recollect.inference.base import Embedder
from recollect.inference.connect import connect_embedder
from recollect.lifecycle import ErasureReceipt, Lifecycle, Subject, Verification
from recollect.memory.asked import Options, asked
from recollect.memory.by_source import SourceForgotten, forget_source
from recollect.memory.examining import examine_memory
from recollect.memory.export_file import check_new, checked_path
from recollect.memory.exporting import Exported, ExportReport, export
from recollect.memory.importing import Import, ImportReport
from recollect.memory.opening import Opening, not_opened, open_parts
from recollect.memory.parts import Parts
from recollect.memory.recalling import recalled
from recollect.memory.reembedding import holding_vectors, reembed
from recollect.memory.stats import Stats, stats_of
from recollect.memory.step_memory import Minds
from recollect.memory.task_life import StepRecord, TaskLife, TaskOutcome
from recollect.memory.turn_record import TurnRecord, record, turn_of
from recollect.memory.turn_removal import Followed
from recollect.runtime.checkpoints import Checkpoints
from recollect.settings import Settings
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.episodic import EpisodicMemory
from recollect.tiers.facts import FactOptions
from recollect.tiers.procedural import ProceduralMemory
from recollect.tiers.quarantine import Quarantine
from recollect.tiers.semantic import SemanticMemory
from recollect.tiers.working import WorkingMemory
from recollect.values import Context, MemoryItem, Scope, TierNames


class AgentMemory:
    """Memory for one scope. `await AgentMemory.open(...)`, or use it with `async with`."""

    def __new__(cls, *given: Any, **named: Any) -> Self:
        if not given or not isinstance(given[0], Parts):
            raise not_opened("async with AgentMemory.open(…) as memory, or memory = await AgentMemory.open(…)")
        return super().__new__(cls)

    def __init__(self, parts: Parts, scope: Scope) -> None:
        self._parts = parts
        self.scope = scope
        stores, settings, clock = parts.stores, parts.settings, parts.clock
        self.working = WorkingMemory(max_items=settings.tier("working").max_items, llm=parts.llm, clock=clock)
        self.conversation = ConversationMemory(
            stores.log("conversation"),
            scope=scope,
            settings=settings,
            clock=clock,
            summarise=parts.summarise if parts.llm else None,
            ids=parts.new_id,
            index=Followed(parts.said, stores.log("conversation"), stores.records("semantic")),
        )
        self.episodic = EpisodicMemory(
            stores.log("episodic"), scope=scope, settings=settings, clock=clock, ids=parts.new_id
        )
        self.semantic = SemanticMemory(
            stores.records("semantic"),
            parts.embedding,
            parts.facts.search,
            scope=scope,
            settings=settings,
            clock=clock,
        )
        self.quarantine = Quarantine(stores.records("semantic"), scope=scope, keep=self.semantic.approved)
        self.procedural = ProceduralMemory(
            stores.records("procedural"),
            parts.embedding,
            parts.procedures.search,
            scope=scope,
            settings=settings,
            clock=clock,
            act=parts.act,
        )
        self.checkpoints = Checkpoints(
            stores.tasks(),
            scope=scope,
            settings=settings,
            clock=clock,
            minds=Minds(self, parts, lambda parts: AgentMemory(parts, scope)),
        )
        self.lifecycle = Lifecycle(parts.means, scope)
        parts.lifecycles.add(self.lifecycle)
        self._tasks = TaskLife(self, parts)
        parts.memories.add(self)

    @classmethod
    def open(  # noqa: PLR0913 - the front door fixes these
        cls,
        store: str | Path | Mapping[str, str] | None = None,
        *,
        tenant: str = "default",
        user: str = "default",
        agent: str = "default",
        session: str | None = None,
        embedder: str | Embedder | Callable[[Any], Any] | None = None,
        llm: str | Callable[[str], Any] | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> Opening[AgentMemory]:
        """Open a store and look at it as one scope; the store is `recollect.db` here, or the setting's.

        `store` is a file, a URL (`postgresql://…`, `memory://`), or a mapping of tiers to these. `tenant`, `user`,
        `agent` and `session` say whose memory it is; conversation and episodes want a `session`. `embedder` and `llm`
        are names such as `"openai:text-embedding-3-small"`, or callables; without an `llm` everything is done
        offline. `settings` replaces what the environment and `recollect.toml` say, `clock` tells the time.
        """
        scope = Scope(tenant, user, agent, session)

        async def begin() -> AgentMemory:
            return cls(await open_parts(store, embedder, llm, settings, clock), scope)

        return Opening(begin)

    def scoped(
        self,
        *,
        user: str | None = None,
        agent: str | None = None,
        session: str | None = None,
        tenant: str | None = None,
    ) -> AgentMemory:
        """The same stores under another scope; closing either closes both."""
        changed = {"tenant": tenant, "user": user, "agent": agent, "session": session}
        scope = replace(self.scope, **{part: name for part, name in changed.items() if name is not None})
        return AgentMemory(self._parts, scope)

    async def remember(self, content: str, **options: Unpack[FactOptions]) -> MemoryItem:
        """Keep a fact; the same content in the same scope is the same item. A `key` supersedes its older value.

        `importance` is from 0 to 1, scored from the text when not given; `pinned` is never faded or forgotten.
        `metadata` is JSON to filter by. `source` says where it comes from and `trust`, from 0 to 1, how far that is
        believed. `at` is when it was said, `valid_from` and `valid_to` when it is true: moments with a time zone.
        `session`, `position` and `speaker` mark a turn of a dialogue.
        """
        return await self.semantic.add(content, **options)

    async def recall(
        self,
        query: str,
        n: int = 5,
        *,
        tiers: TierNames | None = None,
        budget: int | None = None,
        min_relevance: float | None = None,
        as_of: datetime | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Context:
        """What matters for this query, from every tier, within `budget` tokens; empty and falsy when nothing does.

        `n` is how many hits a tier may have, `tiers` which of them are asked. `min_relevance` is from 0, which ranks
        everything, to 1; 0.6 unless set. `as_of` answers from what was true at that moment. `where` filters by
        metadata, as in `{"project": "billing", "year": {"gte": 2025}}`.
        """
        options = Options(tiers=tiers, budget=budget, min_relevance=min_relevance, as_of=as_of, where=where)
        least, now = self._parts.settings.min_relevance, self._parts.clock()
        await self._tasks.look_back()
        return await recalled(self._parts, self, asked(query, n, options, min_relevance=least, now=now))

    async def record_turn(
        self,
        user: str | None = None,
        assistant: str | None = None,
        *,
        tool_calls: Iterable[Any] = (),
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> TurnRecord:
        """Keep a turn in the conversation and among the episodes, in one transaction where both live in one store.

        `tool_calls` are OpenAI's or Anthropic's calls and results, or dicts with `name`, `arguments` and `result`. The
        same `id` again, or the same `id` in the metadata, is the same turn: what was kept of it is left as it is.
        """
        longest = self._parts.settings.max_content
        turn = turn_of((user, assistant), tool_calls, metadata, id, longest, self._parts.new_id)
        logs = (self._parts.stores.log("conversation"), self._parts.stores.log("episodic"))
        return await record(turn, self.conversation, self.episodic, logs, longest)

    async def start_task(self, task: str) -> str:
        """Begin a task, and return its id; the one under way, if any, is given up, and nothing is learned from it."""
        return await self._tasks.start(task)

    async def record_step(
        self,
        thought: str | None,
        action: Any = None,
        result: Any = None,
        *,
        success: bool | None = None,
        procedure: str | None = None,
        trust: float | None = None,
    ) -> StepRecord:
        """Note a step of the task: what was thought, what was done (a text or a tool call), what came of it.

        A step fails when `success` says so, or when its result is an exception. Under a procedure, which is named by
        `procedure` or by the action itself, a step is one trial of it, with the outcome of the step. `trust` is how far
        what it tells is trusted, where that is less than a tool is.
        """
        return await self._tasks.step(thought, action, result, success=success, procedure=procedure, trust=trust)

    async def end_task(self, success: bool, outcome: str, *, trust: float | None = None) -> TaskOutcome:
        """End the task and learn from it, whether it succeeded or failed: what was tried, and why it did not work.

        A failure is also one for each procedure that its steps followed, unless one of those steps failed already.
        `trust` is how far the outcome is trusted: no further than the least trusted thing it was made of.
        """
        return await self._tasks.end(success, outcome, trust)

    async def forget(self, id: str) -> bool:
        """Drop one item; False when there is no such item."""
        return await self.semantic.forget(id)

    async def forget_source(self, source: str) -> SourceForgotten:
        """Take a source back: a page by its address, a site by its host, a tool by its name.

        What came from it goes, and all that was made of that; what it had superseded holds again.
        """
        return await forget_source(self._parts.stores, self.scope, source)

    async def erase(
        self,
        *,
        user: str | None = None,
        tenant: str | None = None,
        session: str | None = None,
        agent: str | None = None,
    ) -> ErasureReceipt:
        """Erase everything of a user, a session, an agent or a tenant, in every tier, and prove it.

        A user or an agent is one of this tenant, and a session one of this user with this agent, unless named
        otherwise. What others said too stays theirs. The receipt is `complete` when no byte of it was found in any
        file of the store; otherwise `pending_physical`, and the lifecycle tries again.
        """
        subject = Subject.named(self.scope, tenant=tenant, user=user, agent=agent, session=session)
        return await self._parts.erasures.erase(subject)

    async def erasures(self) -> list[ErasureReceipt]:
        """The receipts of every erasure in this store that is complete, oldest first."""
        return await self._parts.erasures.receipts()

    async def verify_erasure(self, receipt: ErasureReceipt) -> Verification:
        """Whether a receipt still holds: its chain is recomputed, and what was erased is looked for once more."""
        if not isinstance(receipt, ErasureReceipt):
            raise BadInput(f"a receipt is what erase or erasures gives, not {type(receipt).__name__}")
        return await self._parts.erasures.verify(receipt)

    def clear_mind(self) -> None:
        """Forget the task at hand; what was kept of it in the store stays."""
        self.working.clear()
        self._tasks = TaskLife(self, self._parts)

    async def export(
        self,
        path: str | Path,
        *,
        overwrite: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> ExportReport:
        """Write the memory of this scope to a new file of JSON lines: every tier, and every session of this user.

        Tasks with their checkpoints are left out, for they belong to an agent, whoever its users are, and one that
        went on here and there would do its work twice; `backup` and `migrate_store` take them along.
        The file is there whole or not at all, readable by its owner alone. `overwrite` replaces an older export and
        nothing else. Vectors are left out: they are made again by whichever model the importing store has. What others
        write meanwhile may be in it or not; `backup` is the copy of one moment.
        """
        await self._tasks.look_back()
        return await export(self._exported(), checked_path(path), overwrite=overwrite, progress=progress)

    async def import_from(
        self,
        path: str | Path,
        *,
        trust: float | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> ImportReport:
        """Take an export into this scope, whosever it was; what is here already stays, so twice is the same as once.

        Every line is checked before the first is written: a bad one is named and nothing is imported. The writing is
        in batches that are each whole or not there (a procedure with its versions, a conversation, 256 facts or
        episodes); after a crash, run it again. `trust` caps how far a doubtful file is trusted, in every tier.
        """
        await self._tasks.look_back()
        work = Import(self._parts, self._exported(), lambda working: setattr(self, "working", working))
        return await work.run(checked_path(path), trust=trust, progress=progress)

    async def backup(self, path: str | Path) -> None:
        """A consistent copy of every store, made while others read and write; several get numbered names."""
        stores, target = self._parts.stores.every, checked_path(path)
        targets = [target if len(stores) == 1 else target.with_name(f"{target.name}.{n}") for n in range(len(stores))]
        for one in targets:
            await asyncio.to_thread(check_new, one)
        try:
            for store, one in zip(stores, targets, strict=True):
                await store.backup(str(one))
        except BaseException:  # a part of a memory is no copy of it
            for one in targets:
                await asyncio.to_thread(one.unlink, missing_ok=True)
            raise

    async def stats(self, *, everybody: bool = False) -> Stats:
        """What this scope holds, tier by tier, and how large its store is; how much `everybody` has only if asked."""
        spent = self._parts.ledger.spent
        return await stats_of(self.scope, self._parts.stores, self.working, spent, everybody=everybody)

    async def check(self) -> list[str]:
        """What is wrong with the stored data, a sentence each; empty when it is sound."""
        return [line for store in self._parts.stores.every for line in await store.check()]

    async def doctor(
        self, *, fix: bool = False, progress: Callable[[str, int, int], None] | None = None
    ) -> DoctorReport:
        """Go through 35 points: each is a pass, a warning or a failure, with the command that puts it right.

        It looks at every store as a whole, whosever scope this is, and tells nothing of what is kept. With `fix`, what
        nothing can be lost by is put right: permissions of files, the log, the room kept back, the index of words and
        that of turns.
        """
        return await examine_memory(self._parts, fix=fix, progress=progress)

    async def reembed(
        self,
        embedder: str | Embedder | Callable[[Any], Any],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Change the store's embedding model while it answers; run it again after a crash and it goes on.

        Returns how many items were embedded. This memory uses the new model afterwards; others have to be reopened.
        """
        fresh = await connect_embedder(embedder, self._parts.settings, ledger=self._parts.ledger)
        try:
            return await reembed(holding_vectors(self._parts.stores), self._parts.embedding, fresh, progress)
        finally:
            fresh.close()
            await fresh.release()  # nothing, once this memory uses it

    def _exported(self) -> Exported:
        @lru_cache(maxsize=8)
        def conversation(session: str) -> ConversationMemory:
            return AgentMemory(self._parts, replace(self.scope, session=session or None)).conversation

        return Exported(self.scope, self._parts.stores, self.working, conversation)

    async def close(self) -> None:
        """Finish what was begun and let go of files and threads; safe to call twice."""
        for lifecycle in list(self._parts.lifecycles):
            await lifecycle.stop()
        await self._parts.said.close()
        await self._parts.close_models()
        await self._parts.stores.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
