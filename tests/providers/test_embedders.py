"""Embedders elsewhere: OpenAI's and Voyage's official clients, against a server that speaks their protocols."""

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
from recollect.inference.base import Embedding
from recollect.inference.connect import connect_embedder
from recollect.inference.ledger import Ledger, Spent
from recollect.inference.remote import Limits, shortened
from recollect.inference.retry import Retry
from recollect.settings import Settings
from recollect.words.tokens import count_tokens
from tests.embedders import hashed
from tests.providers.conftest import KEY
from tests.wire.script import Fail, Hang, Reset
from tests.wire.server import Wire

Opened = Callable[..., Awaitable[Embedding]]


@pytest.fixture(params=["openai", "voyage"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def embedder(provider: str, wire: Wire, ledger: Ledger, retry: Retry) -> AsyncIterator[Opened]:
    opened: list[Embedding] = []

    async def connected(model: str = "small", **settings: Any) -> Embedding:
        options = Settings(openai_api_key=KEY, voyage_api_key=KEY, **settings)
        name = f"{provider}:{model}@{getattr(wire, provider)}"
        embedding = await connect_embedder(name, options, ledger=ledger, retry=retry)
        opened.append(embedding)
        return embedding

    yield connected
    for one in opened:
        one.close()
        await one.release()


async def test_texts_become_vectors_in_their_order(embedder: Opened):
    embedding = await embedder()
    texts = ["the cello is in the attic", "bread on Tuesdays", "the cello"]
    rows = await embedding.embed(texts)
    assert np.allclose(rows, [hashed(text, 64) for text in texts], atol=1e-6)
    assert embedding.dim == 64


async def test_its_name_does_not_hold_the_place(embedder: Opened, provider: str, wire: Wire):
    embedding = await embedder()
    assert (embedding.name, embedding.fingerprint) == (f"{provider}:small", f"{provider}:small")
    assert wire.requests[0].body["model"] == "small"


async def test_tokens_are_counted(embedder: Opened, ledger: Ledger, provider: str):
    embedding = await embedder()
    await embedding.embed(["one two three", "four five"])
    [spent] = ledger.spent
    assert spent == Spent(f"{provider}:small", calls=2, embedded=5 + 5, usd=0.0)  # the first call asked for the size


async def test_requests_stay_within_what_the_provider_takes(
    embedder: Opened, wire: Wire, provider: str, monkeypatch: pytest.MonkeyPatch
):
    embedding = await embedder(embed_batch=4096)
    monkeypatch.setattr(embedding._embedder, "_limits", Limits(texts=3, tokens=20, tokens_a_text=15))
    wire.requests.clear()
    texts = [f"{n} " + "word " * (n % 9) for n in range(20)]
    rows = await embedding.embed(texts)
    assert np.allclose(rows, [hashed(text, 64) for text in texts], atol=1e-6)
    sent = [request.body["input"] for request in wire.requests]
    assert [text for some in sent for text in some] == texts
    assert all(len(some) <= 3 and sum(map(count_tokens, some)) <= 20 for some in sent)


async def test_a_text_longer_than_the_model_reads_is_cut(embedder: Opened, wire: Wire, monkeypatch: Any):
    embedding = await embedder()
    monkeypatch.setattr(embedding._embedder, "_limits", Limits(texts=10, tokens=100, tokens_a_text=50))
    await embedding.embed(["word " * 500, ""])
    long, empty = wire.requests[-1].body["input"]
    assert 40 <= count_tokens(long) <= 50
    assert empty == " "  # an empty one is refused


@pytest.mark.parametrize("text", ["", "x" * 1000, "字" * 1000, "🎈" * 1000, "a b " * 1000])
def test_any_text_can_be_shortened(text: str):
    assert count_tokens(shortened(text, 20)) <= 20


@pytest.mark.parametrize("trouble", [Fail(429, headers={"retry-after": "2"}), Fail(500), Fail(503), Reset()], ids=str)
async def test_what_passes_is_waited_for(embedder: Opened, wire: Wire, waits: list[float], trouble: Fail | Reset):
    embedding = await embedder()
    wire.embedding_script(trouble, trouble)
    assert (await embedding.embed(["the cello"])).shape == (1, 64)
    assert len(waits) == 2
    assert not isinstance(trouble, Fail) or trouble.status != 429 or waits == [2.0, 2.0]


@pytest.mark.parametrize(
    ("trouble", "said", "asked"),
    [
        (Fail(400, "bad"), "refused the request", 1),
        (Fail(401, "bad"), "refused the key", 1),
        (Fail(500), "fault of its own", 5),
        (Fail(429), "too often", 5),
        (Reset(), "could not be reached", 5),
    ],
    ids=str,
)
async def test_what_does_not_pass_is_our_error_with_what_to_do(
    embedder: Opened, wire: Wire, waits: list[float], trouble: Fail | Reset, said: str, asked: int
):
    embedding = await embedder()
    wire.requests.clear()
    wire.embedding_script(*[trouble] * 9)
    with pytest.raises(EmbedderFailed, match=f"{said}.*nothing was stored"):
        await embedding.embed(["the cello"])
    assert len(wire.requests) == asked


async def test_one_that_hangs_is_asked_again_in_time(embedder: Opened, wire: Wire, waits: list[float]):
    await embedder()  # which loads the client: that takes seconds by itself
    embedding = await embedder(embed_timeout=4.0)
    wire.embedding_script(Hang())
    assert (await embedding.embed(["the cello"])).shape == (1, 64)


async def test_neither_key_nor_text_is_told_to_anybody(
    embedder: Opened, wire: Wire, waits: list[float], caplog: pytest.LogCaptureFixture, capfd: Any
):
    caplog.set_level(logging.DEBUG)
    embedding = await embedder()
    wire.embedding_script(*[Fail(401, "some_error", f"no: {KEY} may not ask 'a secret text'")] * 5)
    with pytest.raises(EmbedderFailed) as caught:
        await embedding.embed(["a secret text"])
    printed = "".join(traceback.format_exception(caught.value)) + "".join(capfd.readouterr())
    assert KEY not in printed
    assert "a secret text" not in str(caught.value)
    # Voyage's client writes what a server says into its own log, which is quiet unless somebody turns it up.
    loud = [record for record in caplog.records if KEY in record.getMessage() and record.name != "voyage"]
    assert loud == []
    assert any(KEY in request.headers.get("authorization", "") for request in wire.requests)


async def test_an_answer_of_another_length_is_refused(embedder: Opened, wire: Wire):
    embedding = await embedder()
    wire.dim = 32
    with pytest.raises(BadVector, match=r"\(1, 64\) was expected"):
        await embedding.embed(["the cello"])


@pytest.mark.parametrize(
    ("name", "dim"),
    [("openai:text-embedding-3-small", 1536), ("openai:text-embedding-3-large", 3072), ("voyage:voyage-3.5", 1024)],
)
async def test_what_is_known_of_a_model_is_not_asked(name: str, dim: int):
    """Connected without a network: nothing is called."""
    embedding = await connect_embedder(name, Settings(openai_api_key=KEY, voyage_api_key=KEY))
    assert (embedding.name, embedding.dim) == (name, dim)
    embedding.close()


class TestSentenceTransformers:
    """The library brings torch, 2 GB of it; our side is tried against the few names of it that we call."""

    async def test_without_the_library_it_is_named(self):
        with pytest.raises(BadSettings, match="pip install sentence-transformers"):
            await connect_embedder("sentence-transformers:all-MiniLM-L6-v2", Settings())

    async def test_it_is_loaded_with_the_first_text_and_says_its_size(self, monkeypatch: pytest.MonkeyPatch):
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
        embedding = await connect_embedder(name, Settings(), ask_size=False)
        assert (loaded, embedding.dim) == ([], 0)
        await embedding.size_up()
        rows = await embedding.embed(["the cello", "bread"])
        assert (rows.shape, embedding.dim, loaded) == ((2, 16), 16, ["all-MiniLM-L6-v2"])
        embedding.close()
