"""Who is timed: each contender answers one question about one user's memories with the ten best texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from synthetic import Collection

from recollect import AgentMemory
from recollect.inference.base import Embedding
from recollect.stores.base import Records
from recollect.stores.question import Mode
from recollect.stores.where import Where

N = 10
# Larger batches are refused by chromadb.
_CHROMA_TOGETHER = 5000


class Contender(Protocol):
    name: str

    async def ask(self, about: Collection, question: int) -> Iterable[str] | None:
        """The texts found, or None from a contender that finds nothing by its nature."""


class BareScan:
    """The floor: one matrix product over the scope's float32 rows and a partial sort, in process, nothing kept."""

    name = "bare numpy scan"

    async def ask(self, about: Collection, question: int) -> Iterable[str]:
        scores = about.rows @ about.asked[question]
        count = min(N, len(scores))
        best = np.argpartition(-scores, count - 1)[:count]
        return [about.texts[at] for at in best[np.argsort(-scores[best])]]


class Recollect:
    """`semantic.search` through the public API, as an application calls it, access counts and all."""

    def __init__(self, memory: AgentMemory, mode: Mode) -> None:
        self.name = f"recollect {mode}"
        self._memory = memory
        self._mode = mode

    async def ask(self, about: Collection, question: int) -> Iterable[str]:
        semantic = self._memory.scoped(user=about.user).semantic
        hits = await semantic.search(about.questions[question], N, mode=self._mode, min_relevance=0.0)
        return [hit.item.content for hit in hits]


class Nearest:
    """The store alone, below planning, ranking and the reading of whole items."""

    name = "recollect store.nearest"

    def __init__(self, memory: AgentMemory, records: Records) -> None:
        self._memory = memory
        self._records = records

    async def ask(self, about: Collection, question: int) -> None:
        space = self._memory.scoped(user=about.user).semantic.space
        await self._records.nearest(Where(space), about.asked[question], limit=N)


class Chroma:
    """chromadb on disk, everybody's memories in one collection, the user as a metadata filter."""

    name = "chromadb where user"

    def __init__(self, directory: Path) -> None:
        import chromadb

        client = chromadb.PersistentClient(str(directory), chromadb.Settings(anonymized_telemetry=False))
        self._held: Any = client.create_collection("memories", configuration={"hnsw": {"space": "cosine"}})

    def add(self, some: Collection, report: Callable[[int], None]) -> None:
        for start in range(0, len(some.texts), _CHROMA_TOGETHER):
            texts = some.texts[start : start + _CHROMA_TOGETHER]
            self._held.add(
                ids=[text.split()[0] for text in texts],
                documents=texts,
                embeddings=some.rows[start : start + _CHROMA_TOGETHER],
                metadatas=[{"user": some.user}] * len(texts),
            )
            report(len(texts))

    async def ask(self, about: Collection, question: int) -> Iterable[str]:
        found = self._held.query(
            query_embeddings=about.asked[question : question + 1], n_results=N, where={"user": about.user}
        )
        return list(found["documents"][0])


class QueryEmbedding:
    """What any search has to pay first: the model reading one question it has not seen."""

    name = "embedding the query"

    def __init__(self, embedding: Embedding) -> None:
        self._embedding = embedding
        self._asked = 0

    async def ask(self, about: Collection, question: int) -> None:
        self._asked += 1
        await self._embedding.embed([f"What did we decide about delivery number {self._asked} last spring?"])


def recall(found: Iterable[str], exact: set[str]) -> float:
    return len(exact.intersection(found)) / len(exact)


def exact_answers(about: Collection) -> list[set[str]]:
    return [about.exact(question, N) for question in range(len(about.questions))]
