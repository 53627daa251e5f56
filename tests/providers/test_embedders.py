"""Remote embedders: the official SDKs of OpenAI and Voyage, against a local server."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from recollect.errors import BadSettings, BadVector, EmbedderFailed
from recollect.language.analysis import count_tokens
from recollect.models.embedding import Embedding, RequestLimits, truncate_text
from recollect.models.factory import open_embedder
from recollect.models.usage import ModelUsage, UsageLedger
from recollect.settings import Settings
from tests.embedders import hashed
from tests.providers.conftest import KEY
from tests.wire.script import Fail, Hang, Reset
from tests.wire.server import Wire

OpenEmbedder = Callable[..., Awaitable[Embedding]]


@pytest.fixture(params=["openai", "voyage"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def embedder(provider: str, wire: Wire, ledger: UsageLedger) -> AsyncIterator[OpenEmbedder]:
    opened: list[Embedding] = []

    async def open_remote(model: str = "small", **settings: Any) -> Embedding:
        options = Settings(openai_api_key=KEY, voyage_api_key=KEY, **settings)
        name = f"{provider}:{model}@{getattr(wire, provider)}"
        embedding = await open_embedder(name, options, ledger=ledger)
        opened.append(embedding)
        return embedding

    yield open_remote
    for embedding in opened:
        embedding.close()
        await embedding.release()


async def test_vectors_are_in_the_order_of_the_texts(embedder: OpenEmbedder):
    embedding = await embedder()
    texts = ["the cello is in the attic", "bread on Tuesdays", "the cello"]
    rows = await embedding.embed(texts)
    assert np.allclose(rows, [hashed(text, 64) for text in texts], atol=1e-6)
    assert embedding.dim == 64


async def test_name_omits_the_base_url(embedder: OpenEmbedder, provider: str, wire: Wire):
    embedding = await embedder()
    assert (embedding.name, embedding.fingerprint) == (f"{provider}:small", f"{provider}:small")
    assert wire.requests[0].body["model"] == "small"


async def test_embedded_tokens_are_counted(embedder: OpenEmbedder, ledger: UsageLedger, provider: str):
    embedding = await embedder()
    await embedding.embed(["one two three", "four five"])
    [spent] = ledger.by_model
    assert spent == ModelUsage(
        f"{provider}:small", calls=2, embedded=5 + 5, usd=0.0
    )  # the first call requested the dimension


async def test_requests_stay_within_provider_limits(
    embedder: OpenEmbedder, wire: Wire, provider: str, monkeypatch: pytest.MonkeyPatch
):
    embedding = await embedder()
    monkeypatch.setattr(embedding._embedder, "_limits", RequestLimits(texts=3, tokens=20, tokens_per_text=15))
    wire.requests.clear()
    texts = [f"{n} " + "word " * (n % 9) for n in range(20)]
    rows = await embedding.embed(texts)
    assert np.allclose(rows, [hashed(text, 64) for text in texts], atol=1e-6)
    sent = [request.body["input"] for request in wire.requests]
    assert [text for some in sent for text in some] == texts
    assert all(len(some) <= 3 and sum(map(count_tokens, some)) <= 20 for some in sent)


async def test_long_text_is_truncated_to_model_limit(embedder: OpenEmbedder, wire: Wire, monkeypatch: Any):
    embedding = await embedder()
    monkeypatch.setattr(embedding._embedder, "_limits", RequestLimits(texts=10, tokens=100, tokens_per_text=50))
    await embedding.embed(["word " * 500, ""])
    long, empty = wire.requests[-1].body["input"]
    assert 40 <= count_tokens(long) <= 50
    assert empty == " "  # the API rejects an empty text


@pytest.mark.parametrize("text", ["", "x" * 1000, "字" * 1000, "🎈" * 1000, "a b " * 1000])
def test_truncate_text_stays_within_token_limit(text: str):
    assert count_tokens(truncate_text(text, 20)) <= 20


# Voyage's SDK retries 429, 503 and timeouts; OpenAI's also other errors of the server and the connection.
@pytest.mark.parametrize("trouble", [Fail(429, headers={"retry-after": "2"}), Fail(503)], ids=str)
async def test_transient_error_is_retried(embedder: OpenEmbedder, wire: Wire, trouble: Fail):
    embedding = await embedder()
    wire.requests.clear()
    wire.embedding_script(trouble, trouble)
    assert (await embedding.embed(["the cello"])).shape == (1, 64)
    assert len(wire.requests) == 3


@pytest.mark.parametrize(
    ("trouble", "said", "attempts"),
    [
        (Fail(400, "bad"), "refused the request", {1}),
        (Fail(401, "bad"), "refused the key", {1}),
        (Fail(500), "internal error", {1, 5}),
        (Fail(429), "too often", {5}),
        (Reset(), "could not be reached", {1, 5}),
    ],
    ids=str,
)
async def test_persistent_error_raises_embedder_failed(
    embedder: OpenEmbedder, wire: Wire, trouble: Fail | Reset, said: str, attempts: set[int]
):
    embedding = await embedder()
    wire.requests.clear()
    wire.embedding_script(*[trouble] * 9)
    with pytest.raises(EmbedderFailed, match=f"{said}.*nothing was stored"):
        await embedding.embed(["the cello"])
    assert len(wire.requests) in attempts


async def test_hanging_request_times_out_and_is_retried(embedder: OpenEmbedder, wire: Wire, waits: list[float]):
    await embedder()  # loads the SDK, which takes seconds
    embedding = await embedder(embed_timeout=4.0)
    wire.embedding_script(Hang())
    assert (await embedding.embed(["the cello"])).shape == (1, 64)


async def test_key_and_text_are_not_in_errors_or_logs(
    embedder: OpenEmbedder, wire: Wire, waits: list[float], caplog: pytest.LogCaptureFixture, capfd: Any
):
    caplog.set_level(logging.DEBUG)
    embedding = await embedder()
    wire.embedding_script(*[Fail(401, "some_error", f"no: {KEY} may not ask 'a secret text'")] * 5)
    with pytest.raises(EmbedderFailed) as caught:
        await embedding.embed(["a secret text"])
    printed = "".join(traceback.format_exception(caught.value)) + "".join(capfd.readouterr())
    assert KEY not in printed
    assert "a secret text" not in str(caught.value)
    # Voyage's SDK logs the server's message in its own logger, which is off by default.
    loud = [record for record in caplog.records if KEY in record.getMessage() and record.name != "voyage"]
    assert loud == []
    assert any(KEY in request.headers.get("authorization", "") for request in wire.requests)


async def test_response_with_wrong_dimension_is_rejected(embedder: OpenEmbedder, wire: Wire):
    embedding = await embedder()
    wire.dim = 32
    with pytest.raises(BadVector, match=r"\(1, 64\) was expected"):
        await embedding.embed(["the cello"])


@pytest.mark.parametrize(
    ("name", "dim"),
    [("openai:text-embedding-3-small", 1536), ("openai:text-embedding-3-large", 3072), ("voyage:voyage-3.5", 1024)],
)
async def test_dimension_of_known_model_needs_no_request(name: str, dim: int):
    """No server runs here, so a request would fail."""
    embedding = await open_embedder(name, Settings(openai_api_key=KEY, voyage_api_key=KEY))
    assert (embedding.name, embedding.dim) == (name, dim)
    embedding.close()


class TestSentenceTransformers:
    """The library needs torch (2 GB), so a fake module with the functions that are called replaces it."""

    async def test_missing_library_is_named(self):
        with pytest.raises(BadSettings, match=r"pip install 'recollect-memory\[sentence-transformers\]'"):
            await open_embedder("sentence-transformers:all-MiniLM-L6-v2", Settings())

    async def test_model_is_loaded_lazily_and_reports_dimension(self, monkeypatch: pytest.MonkeyPatch):
        import importlib.machinery

        loaded: list[str] = []

        class SentenceTransformer:
            def __init__(self, name: str) -> None:
                loaded.append(name)

            def encode(self, texts: list[str], *, normalize_embeddings: bool, show_progress_bar: bool) -> Any:
                assert normalize_embeddings
                assert not show_progress_bar
                return np.stack([hashed(text, 16) for text in texts])

        library = ModuleType("sentence_transformers")
        library.__spec__ = importlib.machinery.ModuleSpec("sentence_transformers", None)
        library.SentenceTransformer = SentenceTransformer  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "sentence_transformers", library)
        name = "sentence-transformers:all-MiniLM-L6-v2"
        embedding = await open_embedder(name, Settings(), ask_size=False)
        assert (loaded, embedding.dim) == ([], 0)
        await embedding.resolve_dimension()
        rows = await embedding.embed(["the cello", "bread"])
        assert (rows.shape, embedding.dim, loaded) == ((2, 16), 16, ["all-MiniLM-L6-v2"])
        embedding.close()
