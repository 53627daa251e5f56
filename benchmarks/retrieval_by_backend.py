"""Retrieval quality on LoCoMo with the facts on SQLite, PostgreSQL and Chroma: all evidence, and terms alone.

The rankings by terms alone are compared with FTS5's `bm25()`. Without `--model` the vectors are made from hashed words,
which is fast and compares the backends, but not the quality of a model. The servers are started and stopped here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

# The servers of the tests are used; they start on free ports of this machine.
sys.path.insert(0, str(Path(__file__).parents[1]))

import apsw
import numpy as np
from numpy.typing import NDArray
from report import create_progress, print_table, save_json

from recollect import AgentMemory
from recollect.clock import system_clock
from recollect.evals import locomo
from recollect.evals.locomo import LocomoConversation, LocomoTally
from recollect.language.analysis import analyze
from recollect.models.minilm import MiniLM
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.factory import StoreLocation, open_store
from recollect.stores.filters import Where
from recollect.stores.writes import Put
from recollect.testing.factories import find_matching, list_ids
from recollect.types import MemoryItem, Scope
from tests.embedders import HashEmbedder
from tests.servers.chroma import ChromaServer
from tests.servers.postgres import Server as PostgresServer

MEASURES = ("recall@1", "recall@5", "recall@10", "ndcg@10")
_DEPTH = 25
_BATCH = 128

Search = Callable[[str], list[str]]


class CachingEmbedder:
    """The local model with a cache, so that every backend gets the same vectors and each text is embedded once."""

    def __init__(self) -> None:
        self._model = MiniLM()
        self._cache: dict[str, NDArray[np.float32]] = {}
        self.name, self.dim, self.fingerprint = self._model.name, self._model.dim, self._model.fingerprint

    def embed(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self.embed_batch([text])[0]
        return vector

    def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        missing = [text for text in dict.fromkeys(texts) if text not in self._cache]
        if missing:
            self._cache.update(zip(missing, self._model.embed_batch(missing), strict=True))
        return np.stack([self._cache[text] for text in texts])


def build_fts5_search(conversation: LocomoConversation, *, our_terms: bool) -> Search:
    """Return a search by FTS5's `bm25()` in a table of one conversation, with our terms or with its own tokenizer."""
    connection = apsw.Connection(":memory:")
    tokenizer = "unicode61" if our_terms else "porter unicode61"
    connection.execute(f"create virtual table turns using fts5(text, tokenize='{tokenizer}')")
    for number, turn in enumerate(conversation.turns):
        text = " ".join(analyze(turn.text)) if our_terms else turn.text
        connection.execute("insert into turns (rowid, text) values (?, ?)", (number, text))

    def search(question: str) -> list[str]:
        terms = analyze(question) if our_terms else re.findall(r"\w+", question.lower())
        if not terms:
            return []
        query = " OR ".join(f'"{term}"' for term in dict.fromkeys(terms))
        rows = connection.execute(
            "select rowid from turns where turns match ? order by bm25(turns), rowid limit ?", (query, _DEPTH)
        )
        return [conversation.turns[int(row[0])].id for row in rows]

    return search


async def evaluate_terms(store: Records, conversations: list[LocomoConversation]) -> LocomoTally:
    """Write the conversations into a store and rank their turns by terms alone."""
    tally = LocomoTally()
    for conversation in conversations:
        scope = Scope("terms", conversation.id)
        for start in range(0, len(conversation.turns), _BATCH):
            turns = conversation.turns[start : start + _BATCH]
            await store.write(
                *(
                    Put(
                        item=MemoryItem(id=turn.id, content=turn.text, scope=scope, created_at=turn.at),
                        terms=tuple(analyze(turn.text)),
                    )
                    for turn in turns
                )
            )
        for question in conversation.questions:
            terms = tuple(dict.fromkeys(analyze(question.text)))
            matches = await find_matching(store, Where(scope.space("semantic")), *terms, limit=_DEPTH)
            tally.add(list_ids(matches), question)
    return tally


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    conversations = locomo.load_conversations(arguments.path)[: arguments.conversations]
    embedder: Any = CachingEmbedder() if arguments.model else HashEmbedder(dim=256)
    figures: dict[str, Any] = {"terms": {}, "all": {}}
    for name, our_terms in (("FTS5, its tokenizer, bm25()", False), ("FTS5, our terms, bm25()", True)):
        tally = LocomoTally()
        for conversation in conversations:
            search = build_fts5_search(conversation, our_terms=our_terms)
            for question in conversation.questions:
                tally.add(search(question.text), question)
        figures["terms"][name] = tally.report()["turn"]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack, create_progress() as bar:
        for name, records_location, memory_location in start_backends(Path(directory), stack):
            store = await open_store(records_location, Settings(), system_clock)
            assert isinstance(store, Records)
            figures["terms"][name] = (await evaluate_terms(store, conversations)).report()["turn"]
            await store.close()
            task = bar.add_task(name, total=None)
            async with AgentMemory.open(memory_location, tenant="locomo", embedder=embedder) as memory:
                report = await locomo.evaluate(
                    memory, conversations, lambda progress, task=task: bar.update(task, completed=progress.done)
                )
            figures["all"][name] = report["turn"]
            figures["questions"] = report["questions"]
    return figures


def start_backends(directory: Path, stack: ExitStack) -> list[tuple[str, str, StoreLocation]]:
    """Return the name of each backend, the location of a store for terms alone, and the location of a memory."""
    postgres = PostgresServer()
    stack.callback(postgres.close)
    chroma = ChromaServer(directory / "chroma").start()
    stack.callback(chroma.kill)
    file = str(directory / "rest.db")
    return [
        ("SQLite", str(directory / "terms.db"), str(directory / "all.db")),
        ("PostgreSQL", postgres.create("terms"), postgres.create("whole")),
        ("Chroma", f"chroma:{directory / 'terms'}", {"default": file, "semantic": chroma.create("all")}),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=os.environ.get("RECOLLECT_LOCOMO"), help="locomo10.json")
    parser.add_argument("--conversations", type=int, default=10, help="number of conversations, up to 10")
    parser.add_argument("--model", action="store_true", help="use the local model instead of hashed words")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    arguments = parser.parse_args()
    if arguments.path is None:
        parser.error("give the path of locomo10.json, or set RECOLLECT_LOCOMO")
    figures = asyncio.run(measure(arguments))
    vectors = "the local model" if arguments.model else "hashed words"
    for part, title in (("terms", "Terms alone"), ("all", f"All evidence, {vectors}")):
        rows = [(name, *(f"{row[column]:.4f}" for column in MEASURES)) for name, row in figures[part].items()]
        print_table(f"{title}: LoCoMo, {figures['questions']} questions", ("", *MEASURES), rows)
    save_json(figures, arguments.json)


if __name__ == "__main__":
    main()
