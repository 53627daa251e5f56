"""Systems that `engine.py` times: each finds the ten best texts of one user for one question."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from synthetic import Collection

from recollect import AgentMemory
from recollect.models.embedding import Embedding
from recollect.stores.base import Records
from recollect.stores.filters import Where
from recollect.stores.search import EvidenceQuery, SearchMode

N = 10
# chromadb rejects larger batches.
_CHROMA_BATCH = 5000


class System(Protocol):
    name: str

    async def search(self, collection: Collection, question: int) -> Iterable[str] | None:
        """Return the texts found; None from a system that does not search."""


class NumpyScan:
    """Lower bound: a matrix product over the scope's float32 rows and a partial sort, in memory."""

    name = "bare numpy scan"

    async def search(self, collection: Collection, question: int) -> Iterable[str]:
        scores = collection.rows @ collection.question_rows[question]
        count = min(N, len(scores))
        best = np.argpartition(-scores, count - 1)[:count]
        return [collection.texts[at] for at in best[np.argsort(-scores[best])]]


class Recollect:
    """`semantic.search` through the public API, including the count of accesses."""

    def __init__(self, memory: AgentMemory, mode: SearchMode) -> None:
        self.name = f"recollect {mode}"
        self._memory = memory
        self._mode = mode

    async def search(self, collection: Collection, question: int) -> Iterable[str]:
        semantic = self._memory.scoped(user=collection.user).semantic
        hits = await semantic.search(collection.questions[question], N, mode=self._mode, min_relevance=0.0)
        return [hit.item.content for hit in hits]


class StoreGather:
    """The store alone, without planning, ranking and reading of items."""

    name = "recollect store.gather"

    def __init__(self, memory: AgentMemory, records: Records) -> None:
        self._memory = memory
        self._records = records

    async def search(self, collection: Collection, question: int) -> None:
        space = self._memory.scoped(user=collection.user).semantic._space
        query = EvidenceQuery(Where(space), collection.question_rows[question], (), limit=N, reach=0)
        await self._records.gather(query, lambda evidence, lookup: None)


class Chroma:
    """chromadb on disk: the memories of all users in one collection, with the user as a metadata filter."""

    name = "chromadb where user"

    def __init__(self, directory: Path) -> None:
        import chromadb

        client = chromadb.PersistentClient(str(directory), chromadb.Settings(anonymized_telemetry=False))
        self._collection: Any = client.create_collection("memories", configuration={"hnsw": {"space": "cosine"}})

    def add(self, collection: Collection, report: Callable[[int], None]) -> None:
        for start in range(0, len(collection.texts), _CHROMA_BATCH):
            texts = collection.texts[start : start + _CHROMA_BATCH]
            self._collection.add(
                ids=[text.split()[0] for text in texts],
                documents=texts,
                embeddings=collection.rows[start : start + _CHROMA_BATCH],
                metadatas=[{"user": collection.user}] * len(texts),
            )
            report(len(texts))

    async def search(self, collection: Collection, question: int) -> Iterable[str]:
        answer = self._collection.query(
            query_embeddings=collection.question_rows[question : question + 1],
            n_results=N,
            where={"user": collection.user},
        )
        return list(answer["documents"][0])


class QueryEmbedding:
    """The cost that every search has: the model embeds a question that is not cached."""

    name = "embedding the query"

    def __init__(self, embedding: Embedding) -> None:
        self._embedding = embedding
        self._count = 0

    async def search(self, collection: Collection, question: int) -> None:
        self._count += 1
        await self._embedding.embed([f"What did we decide about delivery number {self._count} last spring?"])


def compute_recall(texts: Iterable[str], exact: set[str]) -> float:
    return len(exact.intersection(texts)) / len(exact)


def find_exact_answers(collection: Collection) -> list[set[str]]:
    return [collection.find_exact(question, N) for question in range(len(collection.questions))]
