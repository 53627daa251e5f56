"""AgentMemory: the one object an application holds; it wires the parts together and holds no policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from recollect.clock import Clock, system_clock
from recollect.errors import BadInput, BadSettings, Conflict
from recollect.inference.base import Embedder, Embedding
from recollect.inference.connect import connect_embedder
from recollect.inference.llm import LanguageModel, language_model, summary_of
from recollect.inference.summarise import Passage
from recollect.recall.pack import pack
from recollect.recall.recall import Recall
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.connect import Stores, connect
from recollect.stores.ops import Embed, Model
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.episodic import EpisodicMemory
from recollect.tiers.facts import FactOptions
from recollect.tiers.messages import Message
from recollect.tiers.procedural import ProceduralMemory
from recollect.tiers.semantic import SemanticMemory, embedded
from recollect.tiers.working import WorkingMemory
from recollect.values import TIER_NAMES, Context, MemoryItem, Scope, Tier

_REEMBED_TOGETHER = 256
_SUMMARY_TOKENS = 1000
_LLM_TIMEOUT = 60.0
_SEARCHED: tuple[Tier, Tier] = ("semantic", "procedural")


@dataclass(frozen=True, slots=True)
class Stats:
    """What a scope and its store hold."""

    items: int
    newest: datetime | None
    spaces: int
    all_items: int
    model: str | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What every scope of one opened memory shares."""

    stores: Stores
    embedding: Embedding
    facts: Recall
    procedures: Recall
    settings: Settings
    clock: Clock
    llm: LanguageModel | None

    async def summarise(self, messages: list[Message], before: str | None) -> str:
        """What was said, in short: by the language model if there is one, and without it otherwise."""
        said = [f"{message.role}: {message.content}" for message in messages]
        passages = [Passage(text) for text in ([before, *said] if before else said)]
        return (await summary_of(passages, _SUMMARY_TOKENS, model=self.llm)).text


class AgentMemory:
    """Memory for one scope. `await AgentMemory.open(...)`, or use it with `async with`."""

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
        )
        self.episodic = EpisodicMemory(stores.log("episodic"), scope=scope, settings=settings, clock=clock)
        self.semantic = SemanticMemory(
            stores.records("semantic"),
            parts.embedding,
            parts.facts.search,
            scope=scope,
            settings=settings,
            clock=clock,
        )
        self.procedural = ProceduralMemory(
            stores.records("procedural"),
            parts.embedding,
            parts.procedures.search,
            scope=scope,
            settings=settings,
            clock=clock,
        )

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
        llm: Callable[[str], Any] | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> Opening:
        """Open a store and look at it as one scope; the store is `recollect.db` here, or the setting's."""
        scope = Scope(tenant, user, agent, session)
        return Opening(lambda: _open(store, scope, embedder, llm, settings, clock))

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
        """Keep a fact; the same content in the same scope is the same item. A `key` supersedes its older value."""
        return await self.semantic.add(content, **options)

    async def recall(
        self,
        query: str,
        n: int = 5,
        *,
        tiers: Collection[str] | None = None,
        budget: int | None = None,
        min_relevance: float | None = None,
        as_of: datetime | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Context:
        """What matters for this query, packed into `budget` tokens; empty and falsy when nothing does."""
        if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 0):
            raise BadInput(f"budget is a number of tokens from 0, not {budget!r}")
        if not _includes(tiers, "semantic"):
            return Context(query)
        hits = await self.semantic.search(query, n, min_relevance=min_relevance, as_of=as_of, where=where)
        return pack(query, hits, budget)

    async def forget(self, id: str) -> bool:
        """Drop one item; False when there is no such item."""
        return await self.semantic.forget(id)

    async def backup(self, path: str | Path) -> None:
        """A consistent copy of every store, made while others read and write; several get numbered names."""
        stores = self._parts.stores.every
        for number, store in enumerate(stores):
            await store.backup(str(path) if len(stores) == 1 else f"{path}.{number}")

    async def stats(self) -> Stats:
        records = self._parts.stores.records("semantic")
        spaces = await records.spaces()
        mine = [count for count in spaces if count.space == self.semantic.space]
        model = await records.model()
        return Stats(
            items=sum(count.items for count in mine),
            newest=max((count.newest for count in mine if count.newest), default=None),
            spaces=len(spaces),
            all_items=sum(count.items for count in spaces),
            model=model.name if model else None,
            bytes=await records.size(),
        )

    async def check(self) -> list[str]:
        """What is wrong with the stored data, a sentence each; empty when it is sound."""
        return [line for store in self._parts.stores.every for line in await store.check()]

    async def reembed(
        self,
        embedder: str | Embedder | Callable[[Any], Any],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Change the store's embedding model while it answers; run it again after a crash and it goes on.

        Returns how many items were embedded. This memory uses the new model afterwards; others have to be reopened.
        """
        fresh = await connect_embedder(embedder, self._parts.settings)
        try:
            return await _reembed(_records(self._parts.stores), self._parts.embedding, fresh, progress)
        finally:
            fresh.close()

    async def close(self) -> None:
        """Finish what was begun and let go of files and threads; safe to call twice."""
        self._parts.embedding.close()
        await self._parts.stores.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _includes(tiers: Collection[str] | None, tier: str) -> bool:
    if tiers is None:
        return True
    if isinstance(tiers, str) or not isinstance(tiers, Collection) or not all(name in TIER_NAMES for name in tiers):
        raise BadInput(f"tiers is a list of names out of {', '.join(TIER_NAMES)}, not {tiers!r}")
    return tier in tiers


class Opening:
    """A memory that is being opened: await it, or enter it with `async with`."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin
        self._memory: AgentMemory | None = None

    def __await__(self) -> Generator[Any, None, AgentMemory]:
        return self._begin().__await__()  # type: ignore[no-any-return]

    async def __aenter__(self) -> AgentMemory:
        self._memory = await self._begin()
        return self._memory

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._memory is not None:
            await self._memory.close()


async def reembed_store(
    store: str | Path | None,
    embedder: str | Embedder | Callable[[Any], Any],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """As `AgentMemory.reembed`, for a store whose own model nobody has any more: only the new one is needed."""
    options = await asyncio.to_thread(Settings.load)
    fresh = await connect_embedder(embedder, options)
    try:
        stores = await connect(options.store if store is None else store, options, system_clock)
        try:
            return await _reembed(_records(stores), fresh, fresh, progress)
        finally:
            await stores.close()
    finally:
        fresh.close()


def _records(stores: Stores) -> list[Records]:
    """The stores that hold vectors, each once."""
    both = (stores.records("semantic"), stores.records("procedural"))
    return list({id(store): store for store in both}.values())


async def _reembed(
    stores: list[Records], current: Embedding, fresh: Embedding, progress: Callable[[int, int], None] | None
) -> int:
    model = Model(fresh.name, fresh.dim, fresh.fingerprint)
    total = sum([sum(count.items for count in await records.spaces()) for records in stores])
    done = 0
    while True:
        for records in stores:
            while items := await records.unembedded(model, limit=_REEMBED_TOGETHER):
                vectors = await embedded(fresh, items)
                await records.write(
                    *(
                        Embed(item.scope.space(item.tier), item.id, rows, model, expect=item.version)
                        for item, rows in zip(items, vectors, strict=True)
                    )
                )
                done += len(items)
                if progress is not None:
                    progress(done, max(total, done))
        try:
            async with current.changing:
                for records in stores:
                    await records.switch(model)
                current.become(fresh)
        except Conflict:  # something was stored since we looked
            continue
        return done


async def _open(
    store: str | Path | Mapping[str, str] | None,
    scope: Scope,
    embedder: str | Embedder | Callable[[Any], Any] | None,
    llm: Callable[[str], Any] | None,
    settings: Settings | None,
    clock: Clock | None,
) -> AgentMemory:
    if llm is not None and not callable(llm):
        raise BadSettings(f"llm is a callable that answers a prompt with a text, not {type(llm).__name__}")
    options = settings if settings is not None else await asyncio.to_thread(Settings.load)
    now = clock or system_clock
    embedding = await connect_embedder(embedder, options)
    stores = await connect(options.store if store is None else store, options, now)
    try:
        for records in _records(stores):
            if await records.model() is not None:
                await records.adopt(Model(embedding.name, embedding.dim, embedding.fingerprint))
    except BaseException:
        await stores.close()
        raise
    facts, procedures = (Recall(stores.records(tier), embedding, options) for tier in _SEARCHED)
    model = language_model(llm, timeout=_LLM_TIMEOUT, clock=now)
    parts = Parts(
        stores=stores, embedding=embedding, facts=facts, procedures=procedures, settings=options, clock=now, llm=model
    )
    return AgentMemory(parts, scope)
