"""LoCoMo on every backend: the same answers by meaning and words, and by words alone beside FTS5's own ranking.

The servers are started for the occasion. Without `--model` the vectors are made from hashed words, which takes no time
and says nothing of meaning: what is compared is the backends.
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

# The servers are those of the tests, which start them on free ports of this machine.
sys.path.insert(0, str(Path(__file__).parents[1]))

import apsw
import numpy as np
from numpy.typing import NDArray
from report import progress, save, show

from recollect import AgentMemory
from recollect.clock import system_clock
from recollect.evals import locomo
from recollect.evals.locomo import Conversation, Tally
from recollect.inference.minilm import MiniLM
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.connect import Place, open_one
from recollect.stores.ops import Put
from recollect.stores.where import Where
from recollect.values import MemoryItem, Scope
from recollect.words import analyse
from tests.embedders import HashEmbedder
from tests.servers.chroma import ChromaServer
from tests.servers.postgres import Server as PostgresServer

COLUMNS = ("recall@1", "recall@5", "recall@10", "ndcg@10")
_DEPTH = 25

Ranking = Callable[[str], list[str]]


class Remembering:
    """The local model, asked once for each text: the backends are given the same vectors."""

    def __init__(self) -> None:
        self._model = MiniLM()
        self._known: dict[str, NDArray[np.float32]] = {}
        self.name, self.dim, self.fingerprint = self._model.name, self._model.dim, self._model.fingerprint

    def embed(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self.embed_batch([text])[0]
        return vector

    def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        if missing:
            self._known.update(zip(missing, self._model.embed_batch(missing), strict=True))
        return np.stack([self._known[text] for text in texts])


def fts5(conversation: Conversation, *, ours: bool) -> Ranking:
    """FTS5 with its own `bm25()`, a table for each conversation: with its tokenizer and stems, or with our terms."""
    connection = apsw.Connection(":memory:")
    tokenizer = "unicode61" if ours else "porter unicode61"
    connection.execute(f"create virtual table said using fts5(text, tokenize='{tokenizer}')")
    for number, turn in enumerate(conversation.turns):
        text = " ".join(analyse(turn.text)) if ours else turn.text
        connection.execute("insert into said (rowid, text) values (?, ?)", (number, text))

    def ranking(question: str) -> list[str]:
        terms = analyse(question) if ours else re.findall(r"\w+", question.lower())
        if not terms:
            return []
        asked = " OR ".join(f'"{term}"' for term in dict.fromkeys(terms))
        found = connection.execute(
            "select rowid from said where said match ? order by bm25(said), rowid limit ?", (asked, _DEPTH)
        )
        return [conversation.turns[int(row[0])].id for row in found]

    return ranking


async def by_words(store: Records, conversations: list[Conversation]) -> Tally:
    """What a store's own `matching` makes of the questions."""
    tally = Tally()
    for conversation in conversations:
        scope = Scope("words", conversation.id)
        for start in range(0, len(conversation.turns), 128):
            some = conversation.turns[start : start + 128]
            await store.write(
                *(
                    Put(
                        item=MemoryItem(id=turn.id, content=turn.text, scope=scope, created_at=turn.at),
                        terms=tuple(analyse(turn.text)),
                    )
                    for turn in some
                )
            )
        for asked in conversation.questions:
            terms = tuple(dict.fromkeys(analyse(asked.text)))
            found = await store.matching(Where(scope.space("semantic")), terms, limit=_DEPTH)
            tally.add([one.brief.id for one in found.found], asked)
    return tally


async def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    conversations = locomo.load(arguments.path)[: arguments.conversations]
    embedder: Any = Remembering() if arguments.model else HashEmbedder(dim=256)
    figures: dict[str, Any] = {"words": {}, "all": {}}
    for name, ours in (("FTS5, its tokenizer, bm25()", False), ("FTS5, our terms, bm25()", True)):
        tally = Tally()
        for conversation in conversations:
            ranking = fts5(conversation, ours=ours)
            for asked in conversation.questions:
                tally.add(ranking(asked.text), asked)
        figures["words"][name] = tally.report()["turn"]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack, progress() as bar:
        for name, records, place in places(Path(directory), stack):
            store = await open_one(records, Settings(), system_clock)
            assert isinstance(store, Records)
            figures["words"][name] = (await by_words(store, conversations)).report()["turn"]
            await store.close()
            task = bar.add_task(name, total=None)
            async with AgentMemory.open(place, tenant="locomo", embedder=embedder) as memory:
                report = await locomo.evaluate(
                    memory, conversations, lambda stage, done, total, task=task: bar.update(task, completed=done)
                )
            figures["all"][name] = report["turn"]
            figures["questions"] = report["questions"]
    return figures


def places(directory: Path, stack: ExitStack) -> list[tuple[str, str, Place]]:
    """The name of each, where its words are tried, and where a whole memory is."""
    postgres = PostgresServer()
    stack.callback(postgres.close)
    chroma = ChromaServer(directory / "chroma").start()
    stack.callback(chroma.kill)
    file = str(directory / "rest.db")
    return [
        ("SQLite", str(directory / "words.db"), str(directory / "all.db")),
        ("PostgreSQL", postgres.create("words"), postgres.create("whole")),
        ("Chroma", f"chroma:{directory / 'words'}", {"default": file, "semantic": chroma.create("all")}),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=os.environ.get("RECOLLECT_LOCOMO"), help="locomo10.json")
    parser.add_argument("--conversations", type=int, default=10, help="so many of the ten")
    parser.add_argument("--model", action="store_true", help="with the local model in place of hashed words")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    if arguments.path is None:
        parser.error("name a locomo10.json, or set RECOLLECT_LOCOMO")
    figures = asyncio.run(measured(arguments))
    vectors = "the local model" if arguments.model else "hashed words"
    for part, title in (("words", "By words alone"), ("all", f"By meaning and words, {vectors}")):
        rows = [(name, *(f"{row[column]:.4f}" for column in COLUMNS)) for name, row in figures[part].items()]
        show(f"{title}: LoCoMo, {figures['questions']} questions", ("", *COLUMNS), rows)
    save(figures, arguments.json)


if __name__ == "__main__":
    main()
