"""Systems that `retrieval.py` compares: each gets the same memories and questions through its public API."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from corpora import Item, Scope
from numpy.typing import NDArray

from recollect import AgentMemory
from recollect.models.minilm import MiniLM
from recollect.stores.search import SearchMode

_BATCH = 128


class System(Protocol):
    name: str

    async def remember(self, scope: Scope) -> None: ...

    async def rank(self, user: str, question: str, n: int) -> list[str]:
        """Return the ids of the n best items, best first, without a threshold."""

    async def answer(self, user: str, question: str, n: int) -> list[str]:
        """Return the ids of at most n items, best first, with the system's default threshold."""

    async def close(self) -> None: ...


def format_item(item: Item) -> str:
    """Return the text with its speaker in front, for systems without a field for speakers."""
    return f"{item.speaker}: {item.text}" if item.speaker else item.text


class Recollect:
    """Recollect with defaults; turns have session, position, speaker and time."""

    def __init__(self, memory: AgentMemory, mode: SearchMode, *, writes: bool) -> None:
        self.name = f"recollect {mode}"
        self._memory = memory
        self._mode = mode
        self._writes = writes

    async def remember(self, scope: Scope) -> None:
        if not self._writes:  # all modes share one store
            return
        semantic = self._memory.scoped(user=scope.user).semantic
        for start in range(0, len(scope.items), _BATCH):
            await semantic.add_many(
                {
                    "content": item.text,
                    "metadata": {"item": item.id},
                    "session": item.session,
                    "position": item.position,
                    "speaker": item.speaker,
                    "at": item.at,
                }
                for item in scope.items[start : start + _BATCH]
            )

    async def rank(self, user: str, question: str, n: int) -> list[str]:
        return await self._search(user, question, n, 0.0)

    async def answer(self, user: str, question: str, n: int) -> list[str]:
        return await self._search(user, question, n, None)

    async def _search(self, user: str, question: str, n: int, min_relevance: float | None) -> list[str]:
        semantic = self._memory.scoped(user=user).semantic
        hits = await semantic.search(question, n, mode=self._mode, min_relevance=min_relevance)
        return [str(hit.item.metadata["item"]) for hit in hits]

    async def close(self) -> None:
        await self._memory.close()


class SharedModel:
    """Our embedding model for the other systems, so that they differ in retrieval and not in vectors."""

    def __init__(self) -> None:
        self._model = MiniLM()
        self._cache: dict[str, NDArray[np.float32]] = {}
        self._lock = threading.Lock()

    @property
    def dim(self) -> int:
        return self._model.dim

    def embed(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        with self._lock:
            missing = [text for text in dict.fromkeys(texts) if text not in self._cache]
            if missing:
                self._cache.update(zip(missing, self._model.embed_batch(missing), strict=True))
            return [self._cache[text] for text in texts]


class Chroma:
    """chromadb on disk, with our model as the embedding function and the user as a metadata filter."""

    name = "chromadb"

    def __init__(self, directory: Path, model: SharedModel) -> None:
        import chromadb

        class Function(chromadb.EmbeddingFunction[Any]):
            def __init__(self) -> None:
                """Accept no arguments; the model is shared."""

            def __call__(self, input: Any) -> Any:
                return model.embed(list(input))

            @staticmethod
            def name() -> str:
                return "shared-minilm"

            def get_config(self) -> dict[str, Any]:
                return {}

            @staticmethod
            def build_from_config(config: dict[str, Any]) -> Function:
                return Function()

        client = chromadb.PersistentClient(str(directory), chromadb.Settings(anonymized_telemetry=False))
        self._collection: Any = client.create_collection(
            "memories", configuration={"hnsw": {"space": "cosine"}, "embedding_function": Function()}
        )

    async def remember(self, scope: Scope) -> None:
        for start in range(0, len(scope.items), _BATCH):
            items = scope.items[start : start + _BATCH]
            self._collection.add(
                ids=[f"{scope.user}/{item.id}" for item in items],
                documents=[format_item(item) for item in items],
                metadatas=[{"user": scope.user, "item": item.id} for item in items],
            )

    async def rank(self, user: str, question: str, n: int) -> list[str]:
        answer = self._collection.query(query_texts=[question], n_results=n, where={"user": user})
        return [str(metadata["item"]) for metadata in answer["metadatas"][0]]

    async def answer(self, user: str, question: str, n: int) -> list[str]:
        return await self.rank(user, question, n)

    async def close(self) -> None:
        """Do nothing; a persistent client has no method to close it."""


class Mem0:
    """mem0 with `infer=False`: texts are stored verbatim and no language model is called.

    mem0 gets embeddings over HTTP, so a loopback server offers our model through the API of OpenAI. Keyword matching is
    off, because it needs a package that downloads a model on first use.
    """

    name = "mem0 infer=False"

    def __init__(self, directory: Path, model: SharedModel) -> None:
        os.environ.update({"MEM0_TELEMETRY": "False", "MEM0_DIR": str(directory), "NO_PROXY": "127.0.0.1"})
        from mem0 import Memory

        self._model = model
        self._server = _serve_embeddings(model)
        url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._memory = Memory.from_config(
            {
                "embedder": {
                    "provider": "openai",
                    "config": {"api_key": "none", "openai_base_url": url, "model": "minilm"},
                },
                # Required, but never called.
                "llm": {"provider": "openai", "config": {"api_key": "none", "openai_base_url": url}},
                "vector_store": {
                    "provider": "qdrant",
                    "config": {
                        "path": str(directory / "qdrant"),
                        "on_disk": True,
                        "embedding_model_dims": model.dim,
                        "collection_name": "memories",
                    },
                },
                "history_db_path": str(directory / "history.db"),
            }
        )

    async def remember(self, scope: Scope) -> None:
        self._model.embed([format_item(item).replace("\n", " ") for item in scope.items])
        for item in scope.items:
            role = item.speaker if item.speaker in ("user", "assistant") else "user"
            self._memory.add(
                [{"role": role, "content": format_item(item)}],
                user_id=_escape_user(scope.user),
                metadata={"item": item.id},
                infer=False,
            )

    async def rank(self, user: str, question: str, n: int) -> list[str]:
        return self._list_ids(
            self._memory.search(question, top_k=n, filters={"user_id": _escape_user(user)}, threshold=0.0)
        )

    async def answer(self, user: str, question: str, n: int) -> list[str]:
        return self._list_ids(self._memory.search(question, top_k=n, filters={"user_id": _escape_user(user)}))

    async def close(self) -> None:
        self._memory.close()
        self._memory.vector_store.client.close()
        self._server.shutdown()
        self._server.server_close()

    @staticmethod
    def _list_ids(answer: dict[str, Any]) -> list[str]:
        return [str(result["metadata"]["item"]) for result in answer["results"]]


def _escape_user(user: str) -> str:
    """Return the name without spaces, which mem0 rejects."""
    return user.replace(" ", "_")


def _serve_embeddings(model: SharedModel) -> ThreadingHTTPServer:
    """Serve the route of the embeddings API that mem0 uses, on a free loopback port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Send headers and body in one packet: otherwise each response waits 40 ms for an acknowledgement.
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            texts = [request["input"]] if isinstance(request["input"], str) else request["input"]
            data = [
                {"object": "embedding", "index": at, "embedding": row.tolist()}
                for at, row in enumerate(model.embed(texts))
            ]
            usage = {"prompt_tokens": 0, "total_tokens": 0}
            body = json.dumps({"object": "list", "data": data, "model": "minilm", "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            """Write no log; the progress bar uses the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, name="embeddings", daemon=True).start()
    return server
