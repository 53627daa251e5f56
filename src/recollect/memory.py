"""AgentMemory: the public memory object of one scope; it wires the tiers and the operations on all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self

from recollect.clock import Clock
from recollect.durable.checkpoints import Checkpoints
from recollect.durable.step_memory import NextActionId, RunMemory
from recollect.engine import Engine, Opening, build_not_opened_error, list_vector_stores, open_engine
from recollect.erasure.eraser import Verification
from recollect.erasure.source import SourceForgotten, forget_entry, forget_procedure_version, forget_source
from recollect.erasure.subject import ErasureSubject
from recollect.errors import BadInput
from recollect.health.examine import examine_memory
from recollect.health.report import DoctorReport
from recollect.health.stats import Stats, collect_stats
from recollect.lifecycle import Lifecycle, LifecycleContext
from recollect.models.embedding import Embedder
from recollect.models.factory import open_embedder
from recollect.portability.export import ExportReport, ExportSource, export_scope
from recollect.portability.importer import Importer, ImportReport
from recollect.portability.reembed import reembed_records
from recollect.portability.safe_file import check_path_is_new, parse_path
from recollect.recording.task import StepRecord, TaskOutcome, TaskRecorder
from recollect.recording.turn import TurnRecord, parse_turn, write_turn
from recollect.retrieval.recall import recall_from_tiers
from recollect.retrieval.request import parse_request
from recollect.retrieval.turn_index import TurnIndexHook
from recollect.settings import Settings
from recollect.stores.erasure import ErasureReceipt
from recollect.stores.factory import TierStores
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.episodic import EpisodicMemory
from recollect.tiers.procedural import ProceduralMemory
from recollect.tiers.quarantine import Quarantine
from recollect.tiers.semantic import SemanticMemory
from recollect.tiers.working import WorkingMemory
from recollect.types import Context, MemoryItem, ProgressCallback, Scope, TierNames


class AgentMemory:
    """Memory for one scope. Use `await AgentMemory.open(...)`, or `async with AgentMemory.open(...) as memory`."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        if not args or not isinstance(args[0], Engine):
            raise build_not_opened_error("`async with AgentMemory.open(…)` or `await AgentMemory.open(…)`")
        return super().__new__(cls)

    def __init__(self, engine: Engine, scope: Scope, *, is_view: bool = True) -> None:
        self._engine = engine
        self._is_view = is_view
        self.scope = scope
        stores, settings, clock, embedding = engine.stores, engine.settings, engine.clock, engine.embedding
        facts, conversation, episodes = stores.records("semantic"), stores.log("conversation"), stores.log("episodic")
        self.working = WorkingMemory(max_items=settings.tier("working").max_items, llm=engine.llm, clock=clock)
        self.conversation = ConversationMemory(
            conversation,
            scope=scope,
            settings=settings,
            clock=clock,
            summarizer=engine.summarize if engine.llm else None,
            ids=engine.new_id,
            index=TurnIndexHook(engine.turn_index, conversation, facts),
        )
        self.episodic = EpisodicMemory(episodes, scope=scope, settings=settings, clock=clock, ids=engine.new_id)
        self.semantic = SemanticMemory(
            facts, embedding, engine.fact_search, scope=scope, settings=settings, clock=clock
        )
        self.quarantine = Quarantine(facts, scope=scope, keep=self.semantic._add_approved)
        self.procedural = ProceduralMemory(
            stores.records("procedural"),
            embedding,
            engine.procedure_search,
            scope=scope,
            settings=settings,
            clock=clock,
            act=engine.next_action_id,
        )
        self.checkpoints = Checkpoints(
            stores.tasks(),
            scope=scope,
            settings=settings,
            clock=clock,
            begin_run=partial(RunMemory, self, engine, self._open_twin),
        )
        self.lifecycle = Lifecycle(build_lifecycle_context(engine), scope)
        engine.lifecycles.add(self.lifecycle)
        self._tasks = TaskRecorder(self, engine)
        engine.memories.add(self)

    @classmethod
    def open(  # noqa: PLR0913 - the public API names these
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
        """Open a store as one scope. Without `store`, the settings name it; the default is `recollect.db` here.

        `store` is a file, a URL (`postgresql://…`, `memory://`), or a mapping of tiers to these. Conversation and
        episodes need a `session`; its unfinished task, if any, is resumed. `embedder` and `llm` are names such as
        `"openai:text-embedding-3-small"`, or callables. Without an `llm`, everything runs offline. `settings` replaces
        the environment and `recollect.toml`. `clock` returns the current time.
        """
        scope = Scope(tenant, user, agent, session)

        async def begin() -> AgentMemory:
            memory = cls(await open_engine(store, embedder, llm, settings, clock), scope, is_view=False)
            await memory._tasks.try_resume()
            return memory

        return Opening(begin)

    def scoped(
        self,
        *,
        user: str | None = None,
        agent: str | None = None,
        session: str | None = None,
        tenant: str | None = None,
    ) -> AgentMemory:
        """Return a view of the same stores under another scope. Closing a view does nothing; close its owner."""
        changes = {"tenant": tenant, "user": user, "agent": agent, "session": session}
        scope = replace(self.scope, **{part: name for part, name in changes.items() if name is not None})
        return AgentMemory(self._engine, scope)

    async def remember(  # noqa: PLR0913 - the public API names these
        self,
        content: str,
        *,
        importance: float | None = None,
        key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        source: str | None = None,
        trust: float | None = None,
        at: datetime | None = None,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        pinned: bool | None = None,
        session: str | None = None,
        position: float | None = None,
        speaker: str | None = None,
    ) -> MemoryItem:
        """Store a fact. The same content in the same scope is the same item; a new value of a `key` supersedes the old.

        `importance` is from 0 to 1; by default it is scored from the text. `pinned` facts do not decay and are not
        forgotten. `metadata` is JSON to filter by. `source` names the origin ("user" by default), and `trust`, from 0
        to 1, how reliable it is. `at` is when it was said; `valid_from` and `valid_to` limit when it is true. Times
        need a time zone. `session`, `position` and `speaker` mark a turn of a dialogue.
        """
        return await self.semantic.add(
            content,
            importance=importance,
            key=key,
            metadata=metadata,
            source=source,
            trust=trust,
            at=at,
            valid_from=valid_from,
            valid_to=valid_to,
            pinned=pinned,
            session=session,
            position=position,
            speaker=speaker,
        )

    async def recall(
        self,
        query: str | list[str],
        n: int | None = None,
        *,
        tiers: TierNames | None = None,
        budget: int | None = None,
        min_relevance: float | None = None,
        as_of: datetime | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Context:
        """Return what is relevant for a query from every tier, in at most `budget` tokens; falsy if nothing is.

        A list is the question and further phrasings of what to look for, which find more. `n` limits the hits, and
        `tiers` the tiers. `min_relevance` is from 0, which returns every candidate, to 1; the default is 0.6. Without
        both, lines that are unlikely on the topic are left out. `as_of` answers from what was true at that time.
        `where` filters by metadata, as in `{"project": "billing", "year": {"gte": 2025}}`.
        """
        request = parse_request(
            query,
            n,
            tiers=tiers,
            budget=budget,
            min_relevance=self._engine.settings.min_relevance if min_relevance is None else min_relevance,
            as_of=as_of,
            where=where,
            now=self._engine.clock(),
        )
        return await recall_from_tiers(self._engine, self, request)

    async def record_turn(
        self,
        user: str | None = None,
        assistant: str | None = None,
        *,
        tool_calls: Iterable[Any] = (),
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> TurnRecord:
        """Store a turn in the conversation and the episodes; in one transaction if one store holds both.

        `tool_calls` are OpenAI or Anthropic calls and results, or dicts with `name`, `arguments` and `result`. A turn
        with the same `id` (or the same `id` in the metadata) is stored once; a repeated call changes nothing.
        """
        turn = parse_turn(self._engine, (user, assistant), tool_calls, metadata, id)
        return await write_turn(self._engine, turn, self.conversation, self.episodic)

    async def start_task(self, task: str) -> str:
        """Start a task and return its id. A task that is still open is abandoned; nothing is learned from it."""
        return await self._tasks.start(task)

    async def resume_task(self) -> str | None:
        """Restore the unfinished task of this session into working memory; return its id, or None if there is none.

        `open` does this for the session it names. Call it on a `scoped` view, or after a failure of the store.
        """
        return await self._tasks.resume()

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
        """Record a step of the task: the thought, the action (a text or a tool call) and the result.

        A step fails if `success` is False or its result is an exception. It counts as a trial of `procedure`, or of a
        procedure named like the action. `trust` lowers how far the result is trusted; by default as far as a tool.
        """
        return await self._tasks.record_step(thought, action, result, success=success, procedure=procedure, trust=trust)

    async def end_task(self, success: bool, outcome: str, *, trust: float | None = None) -> TaskOutcome:
        """End the task and store a lesson about it, for a success and for a failure.

        A failure counts against each procedure that its steps followed, except those that failed in a step already.
        `trust` lowers how far the outcome is trusted; it is never above the least trusted step.
        """
        return await self._tasks.end(success, outcome, trust)

    async def forget(self, id: str) -> bool:
        """Delete one item of any tier, with what was derived from it. Return False if there is no such item.

        The id of a message or an episode deletes both, if they were recorded as one turn.
        """
        if await self.semantic.forget(id):
            return True
        stores = self._engine.stores
        return await forget_entry(stores, self.scope, id) or await forget_procedure_version(stores, self.scope, id)

    async def forget_source(self, source: str) -> SourceForgotten:
        """Delete everything that came from `source` (a URL, a host or a tool name) and everything derived from it.

        Facts that it had superseded are current again.
        """
        return await forget_source(self._engine.stores, self.scope, source)

    async def erase(
        self,
        *,
        user: str | None = None,
        tenant: str | None = None,
        session: str | None = None,
        agent: str | None = None,
        thorough: bool = False,
    ) -> ErasureReceipt:
        """Erase everything of a user, a session, an agent or a tenant, in every tier, and return the proof.

        A user or an agent belongs to this tenant, and a session to this user and agent, unless given. Facts that others
        stated too remain theirs. The receipt is `complete` if no file of the store holds a byte of the erased data.
        Otherwise it is `pending_physical`, and the lifecycle tries again. `thorough` also overwrites what a PostgreSQL
        server keeps for all its databases: the write-ahead log and the planner statistics.
        """
        subject = ErasureSubject.from_names(self.scope, tenant=tenant, user=user, agent=agent, session=session)
        return await self._engine.erasures.erase(subject, thorough=thorough)

    async def erasures(self) -> list[ErasureReceipt]:
        """Return the receipts of all complete erasures in this store, oldest first."""
        return await self._engine.erasures.list_receipts()

    async def verify_erasure(self, receipt: ErasureReceipt) -> Verification:
        """Verify a receipt: recompute its chain and scan the store again for the erased data."""
        if not isinstance(receipt, ErasureReceipt):
            raise BadInput(
                f"receipt must be an ErasureReceipt from erase() or erasures(); got {type(receipt).__name__}"
            )
        return await self._engine.erasures.verify(receipt)

    async def export(
        self, path: str | Path, *, overwrite: bool = False, progress: ProgressCallback | None = None
    ) -> ExportReport:
        """Export this scope to a new JSONL file: every tier, and every session of this user.

        The file appears complete or not at all, readable by its owner only. `overwrite` replaces an older export and
        nothing else. Checkpoints are not exported, because a task must not run in two places; use `backup` or
        `migrate_store` for them. Vectors are not exported; the importing store computes its own. Concurrent writes may
        be missing; `backup` copies one moment.
        """
        return await export_scope(self._build_export_source(), parse_path(path), overwrite=overwrite, progress=progress)

    async def import_from(
        self,
        path: str | Path,
        *,
        trust: float | None = None,
        include_erased: bool = False,
        progress: ProgressCallback | None = None,
    ) -> ImportReport:
        """Import an export file into this scope. Existing items are kept, so importing twice is a no-op.

        Every line is checked before the first write. Each batch (a procedure with its versions, a conversation, or 256
        facts or episodes) is atomic; after a crash, import again. `trust` is the most that anything in the file is
        trusted. What this store erased since it was recorded is left out, unless `include_erased` is true.
        """
        importer = Importer(
            self._engine, self._build_export_source(), lambda working: setattr(self, "working", working)
        )
        return await importer.run(parse_path(path), trust=trust, include_erased=include_erased, progress=progress)

    async def backup(self, path: str | Path) -> None:
        """Copy every store consistently while it is in use. Several stores get numbered names."""
        stores, target = self._engine.stores.all_stores, parse_path(path)
        targets = [target if len(stores) == 1 else target.with_name(f"{target.name}.{n}") for n in range(len(stores))]
        for file in targets:
            await asyncio.to_thread(check_path_is_new, file)
        try:
            for store, file in zip(stores, targets, strict=True):
                await store.backup(str(file))
        except BaseException:  # an incomplete set of copies is not a backup
            for file in targets:
                await asyncio.to_thread(file.unlink, missing_ok=True)
            raise

    async def stats(self, *, whole_store: bool = False) -> Stats:
        """Return counts, ages and sizes of this scope by tier; with `whole_store`, also the counts of all users."""
        spent = self._engine.usage.by_model
        return await collect_stats(self.scope, self._engine.stores, self.working, spent, whole_store=whole_store)

    async def check(self) -> list[str]:
        """Return the integrity errors of the stored data, one sentence each; empty if there are none."""
        return [error for store in self._engine.stores.all_stores for error in await store.check()]

    async def doctor(self, *, fix: bool = False, progress: ProgressCallback | None = None) -> DoctorReport:
        """Run the 35 checks: each passes, warns or fails, with the command that fixes it.

        The checks concern whole stores, not this scope, and report no stored content. `fix` repairs what cannot lose
        data: file permissions, the write-ahead log, the reserve file, the full-text index and the turn index.
        """
        return await examine_memory(self._engine, fix=fix, progress=progress)

    async def reembed(
        self, embedder: str | Embedder | Callable[[Any], Any], *, progress: ProgressCallback | None = None
    ) -> int:
        """Change the embedding model of the store while it is in use; return how many items were embedded.

        After a crash, run it again to continue. This memory uses the new model afterwards; reopen others.
        """
        engine = self._engine
        fresh = await open_embedder(embedder, engine.settings, ledger=engine.usage)
        try:
            return await reembed_records(list_vector_stores(engine.stores), engine.embedding, fresh, progress)
        finally:
            fresh.close()
            await fresh.release()  # a no-op if this memory uses it now

    async def close(self) -> None:
        """Finish background work and close stores and models. A no-op on a `scoped` view and on a closed memory."""
        if not self._is_view:
            await self._engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _clear_working(self) -> None:
        """Clear the current task in this process; the store is not changed."""
        self.working.clear()
        self._tasks = TaskRecorder(self, self._engine)

    def _open_twin(self, stores: TierStores, next_action_id: NextActionId | None) -> AgentMemory:
        """Open this scope over other stores, for a step whose writes are buffered."""
        ids = next_action_id or self._engine.next_action_id
        return AgentMemory(replace(self._engine, stores=stores, next_action_id=ids), self.scope)

    def _build_export_source(self) -> ExportSource:
        @lru_cache(maxsize=8)
        def open_conversation(session: str) -> ConversationMemory:
            return AgentMemory(self._engine, replace(self.scope, session=session or None)).conversation

        return ExportSource(self.scope, self._engine.stores, self.working, open_conversation)


def build_lifecycle_context(engine: Engine) -> LifecycleContext:
    return LifecycleContext(
        records=engine.stores.records("semantic"),
        conversation=engine.stores.log("conversation"),
        episodic=engine.stores.log("episodic"),
        tasks=engine.stores.tasks(),
        embedding=engine.embedding,
        settings=engine.settings,
        clock=engine.clock,
        llm=engine.llm,
        index_turns=engine.turn_index.catch_up,
        eraser=engine.erasures,
    )
