"""Systems whose retrieval is compared: each is told the same memories through its public API and asked the same."""

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
from recollect.inference.minilm import MiniLM
from recollect.stores.question import Mode

_TOGETHER = 128


class System(Protocol):
    name: str

    async def remember(self, scope: Scope) -> None: ...

    async def ask(self, user: str, question: str, n: int) -> list[str]:
        """The ids of the n best items, best first, however weak they are."""

    async def answer(self, user: str, question: str, n: int) -> list[str]:
        """The same with the system's own idea of what is worth returning."""

    async def close(self) -> None: ...


def line(item: Item) -> str:
    """A turn as one writes it down for a store that knows nothing of speakers."""
    return f"{item.speaker}: {item.text}" if item.speaker else item.text


class Recollect:
    """Turns with session, position, speaker and time; the rest is defaults."""

    def __init__(self, memory: AgentMemory, mode: Mode, *, writes: bool) -> None:
        self.name = f"recollect {mode}"
        self._memory = memory
        self._mode = mode
        self._writes = writes

    async def remember(self, scope: Scope) -> None:
        if not self._writes:  # one store serves all modes
            return
        semantic = self._memory.scoped(user=scope.user).semantic
        for start in range(0, len(scope.items), _TOGETHER):
            await semantic.add_many(
                {
                    "content": item.text,
                    "metadata": {"item": item.id},
                    "session": item.session,
                    "position": item.position,
                    "speaker": item.speaker,
                    "at": item.at,
                }
                for item in scope.items[start : start + _TOGETHER]
            )

    async def ask(self, user: str, question: str, n: int) -> list[str]:
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
    """The product's own model for the peers, so that what differs is the system and not the vectors."""

    def __init__(self) -> None:
        self._model = MiniLM()
        self._known: dict[str, NDArray[np.float32]] = {}
        self._lock = threading.Lock()

    @property
    def dim(self) -> int:
        return self._model.dim

    def vectors(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        with self._lock:
            missing = [text for text in dict.fromkeys(texts) if text not in self._known]
            if missing:
                self._known.update(zip(missing, self._model.embed_batch(missing), strict=True))
            return [self._known[text] for text in texts]


class Chroma:
    """chromadb on disk with our model as its embedding function, and the user as a metadata filter."""

    name = "chromadb"

    def __init__(self, directory: Path, model: SharedModel) -> None:
        import chromadb

        class Function(chromadb.EmbeddingFunction[Any]):
            def __init__(self) -> None:
                """Nothing to set up: the model is shared."""

            def __call__(self, input: Any) -> Any:
                return model.vectors(list(input))

            @staticmethod
            def name() -> str:
                return "shared-minilm"

            def get_config(self) -> dict[str, Any]:
                return {}

            @staticmethod
            def build_from_config(config: dict[str, Any]) -> Function:
                return Function()

        client = chromadb.PersistentClient(str(directory), chromadb.Settings(anonymized_telemetry=False))
        self._held: Any = client.create_collection(
            "memories", configuration={"hnsw": {"space": "cosine"}, "embedding_function": Function()}
        )

    async def remember(self, scope: Scope) -> None:
        for start in range(0, len(scope.items), _TOGETHER):
            some = scope.items[start : start + _TOGETHER]
            self._held.add(
                ids=[f"{scope.user}/{item.id}" for item in some],
                documents=[line(item) for item in some],
                metadatas=[{"user": scope.user, "item": item.id} for item in some],
            )

    async def ask(self, user: str, question: str, n: int) -> list[str]:
        found = self._held.query(query_texts=[question], n_results=n, where={"user": user})
        return [str(one["item"]) for one in found["metadatas"][0]]

    async def answer(self, user: str, question: str, n: int) -> list[str]:
        return await self.ask(user, question, n)

    async def close(self) -> None:
        """A persistent client is let go with the process."""


class Mem0:
    """mem0 with `infer=False`: texts are kept as they are, no language model is asked.

    It takes embeddings over HTTP, so our model is served to it on the loopback in the shape it knows. Its word
    matching needs a further package that downloads its model when first used, so it works by vectors alone here.
    """

    name = "mem0 infer=False"

    def __init__(self, directory: Path, model: SharedModel) -> None:
        os.environ.update({"MEM0_TELEMETRY": "False", "MEM0_DIR": str(directory), "NO_PROXY": "127.0.0.1"})
        from mem0 import Memory

        self._model = model
        self._server = _serve(model)
        url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._memory = Memory.from_config(
            {
                "embedder": {
                    "provider": "openai",
                    "config": {"api_key": "none", "openai_base_url": url, "model": "minilm"},
                },
                # Required, and never asked anything.
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
        self._model.vectors([line(item).replace("\n", " ") for item in scope.items])
        for item in scope.items:
            role = item.speaker if item.speaker in ("user", "assistant") else "user"
            self._memory.add(
                [{"role": role, "content": line(item)}],
                user_id=_name(scope.user),
                metadata={"item": item.id},
                infer=False,
            )

    async def ask(self, user: str, question: str, n: int) -> list[str]:
        return self._found(self._memory.search(question, top_k=n, filters={"user_id": _name(user)}, threshold=0.0))

    async def answer(self, user: str, question: str, n: int) -> list[str]:
        return self._found(self._memory.search(question, top_k=n, filters={"user_id": _name(user)}))

    async def close(self) -> None:
        self._memory.close()
        self._memory.vector_store.client.close()
        self._server.shutdown()
        self._server.server_close()

    @staticmethod
    def _found(answer: dict[str, Any]) -> list[str]:
        return [str(one["metadata"]["item"]) for one in answer["results"]]


def _name(user: str) -> str:
    """mem0 refuses a user whose name has a space in it."""
    return user.replace(" ", "_")


def _serve(model: SharedModel) -> ThreadingHTTPServer:
    """The one route of the embeddings API that is used, on the loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body in one packet: apart, each answer would wait 40 ms for an acknowledgement.
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
            data = [
                {"object": "embedding", "index": at, "embedding": row.tolist()}
                for at, row in enumerate(model.vectors(texts))
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
            """Quiet: the progress bar is on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, name="embeddings", daemon=True).start()
    return server
