"""Embedders: any model, sync or async, as checked and cached unit vectors."""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from recollect.errors import BadVector, EmbedderFailed, RecollectError, StoreClosed
from recollect.language.analysis import count_tokens
from recollect.models.endpoint import ModelEndpoint, ProviderError

Matrix = NDArray[np.float32]
VectorsByText = dict[str, NDArray[np.float32]]
CloseCallback = Callable[[], Awaitable[None]]
# The rank, the number, the texts and the answer of a call that waits.
_Request = tuple[int, int, list[str], "asyncio.Future[VectorsByText]"]
_Answer = TypeVar("_Answer")

_PROBE_TEXT = "a memory of last summer"
# The squares of vectors with these lengths neither overflow nor vanish.
_MIN_PLAIN_LENGTH, _MAX_PLAIN_LENGTH = 1e-100, 1e100


@runtime_checkable
class Embedder(Protocol):
    """An embedding model; `embed_batch` may be a coroutine function."""

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def embed_batch(self, texts: Sequence[str]) -> Any: ...


class LateDimensionEmbedder:
    """An embedder whose dimension is unknown before its first call; until then `dim` is 0."""

    dim: int = 0


class Embedding:
    """An embedder with a timeout, a cache and a queue; `release` closes its connections."""

    def __init__(
        self, embedder: Embedder, *, batch: int, timeout: float, cache: int, release: CloseCallback | None = None
    ) -> None:
        self._embedder = embedder
        self._batch = batch
        self._timeout = timeout
        # One thread: a local model uses all cores by itself.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="recollect-embedder")
        self._queue = _BatchQueue(self._ask, embedder, _VectorCache(cache), batch)
        self._closed = False
        self._releases = [release] if release else []
        self.switch_lock = asyncio.Lock()
        """Held while a store and this object change to another model."""

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def dim(self) -> int:
        return self._embedder.dim

    @property
    def fingerprint(self) -> str:
        """The hash of the model's weights, or its name if the embedder has no fingerprint."""
        return str(getattr(self._embedder, "fingerprint", self._embedder.name))

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return a unit vector for each text, in order."""
        # Kept in variables: `switch_to` may come between two batches, and one answer must not mix two models.
        embedder, queue = self._embedder, self._queue
        known = queue.cache.get_all(texts)
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        for start in range(0, len(missing), self._batch):
            known |= await self._wait_for(embedder, queue.embed(missing[start : start + self._batch]))
        return np.stack([known[text] for text in texts]) if texts else np.empty((0, embedder.dim), np.float32)

    async def resolve_dimension(self, known: int = 0) -> None:
        """Set the dimension if the embedder does not declare one: use `known`, or embed a probe text."""
        embedder = self._embedder
        if not isinstance(embedder, LateDimensionEmbedder) or embedder.dim:
            return
        if not known:
            rows = _to_floats(embedder.name, await self._wait_for(embedder, self._ask(embedder, [_PROBE_TEXT])))
            if rows.ndim != 2 or not rows.size:
                raise BadVector(
                    f"the embedder {embedder.name!r} answered a text with shape {rows.shape}; a vector was expected"
                )
            known = int(rows.shape[1])
        embedder.dim = known

    def switch_to(self, other: Embedding) -> None:
        """Use the embedder of `other` from now on."""
        self._embedder = other._embedder
        self._queue = _BatchQueue(self._ask, other._embedder, other._queue.cache, self._batch)
        if other is not self:
            self._releases += other._releases
            other._releases = []

    async def release(self) -> None:
        """Close the connections of all embedders used so far; call it after `close`, it is idempotent."""
        releases, self._releases = self._releases, []
        for release in releases:
            await release()

    async def wait_for_switch(self) -> None:
        """Wait for the end of a running `switch_to`."""
        async with self.switch_lock:
            return

    def clear_cache(self) -> None:
        self._queue.cache.clear()

    def close(self) -> None:
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _wait_for(self, embedder: Embedder, answer: Awaitable[_Answer]) -> _Answer:
        try:
            async with asyncio.timeout(self._timeout):
                return await answer
        except TimeoutError as error:
            raise EmbedderFailed(
                f"the embedder {embedder.name!r} gave no answer within {self._timeout:g} s; nothing was stored"
            ) from error

    async def _ask(self, embedder: Embedder, texts: Sequence[str]) -> Any:
        if self._closed:
            raise StoreClosed("this memory was closed; open it again")
        try:
            return await call_off_loop(embedder.embed_batch, texts, self._thread)
        except RecollectError:
            raise
        except Exception as error:
            # The message may quote the text; it stays in the cause.
            status = getattr(error, "status_code", None)
            known = f" ({status})" if isinstance(status, int) else ""
            raise EmbedderFailed(
                f"the embedder {embedder.name!r} failed: {type(error).__name__}{known}, the cause of this error; "
                "nothing was stored"
            ) from error


class _BatchQueue:
    """Runs one batch of an embedder at a time; the calls that wait meanwhile are merged into the next batch.

    A call is overtaken by later ones for at most as many batches as it has texts, so a query goes before the texts of
    a background task. A coroutine function is called at once, because its requests run concurrently.
    """

    def __init__(
        self, ask: Callable[[Embedder, list[str]], Awaitable[Any]], embedder: Embedder, cache: _VectorCache, size: int
    ) -> None:
        self.cache = cache
        self._ask = ask
        self._embedder = embedder
        self._size = size
        self._waiting: list[_Request] = []
        self._numbers = count()
        self._batches = 0
        self._task: asyncio.Task[None] | None = None

    async def embed(self, texts: list[str]) -> VectorsByText:
        """Return the vectors of at most `size` different texts."""
        if inspect.iscoroutinefunction(self._embedder.embed_batch):
            return await self._compute(texts)
        vectors: asyncio.Future[VectorsByText] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (self._batches + len(texts), next(self._numbers), texts, vectors))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="recollect-embedder")
        return await vectors

    async def _run(self) -> None:
        batch: list[_Request] = []
        try:
            while self._waiting:
                batch = self._take_batch()
                self._batches += 1
                await self._answer(batch)
        finally:  # without an answer only if this task is cancelled
            self._task = None
            for *_, vectors in (*batch, *self._waiting):
                vectors.cancel()
            self._waiting.clear()

    def _take_batch(self) -> list[_Request]:
        """Return the first requests that fit into one batch, without those of cancelled callers."""
        batch: list[_Request] = []
        left = self._size
        while self._waiting and len(self._waiting[0][2]) <= left:
            *_, texts, vectors = request = heappop(self._waiting)
            if not vectors.done():
                batch.append(request)
                left -= len(texts)
        return batch

    async def _answer(self, batch: list[_Request]) -> None:
        try:
            known = await self._compute(list(dict.fromkeys(text for *_, texts, _ in batch for text in texts)))
        except Exception as error:  # noqa: BLE001 - raised by the caller
            for request in batch:
                if request[-1].done():
                    continue
                if len(batch) == 1:
                    request[-1].set_exception(error)
                else:  # one bad text must not fail the calls of others
                    await self._answer([request])
            return
        for *_, texts, vectors in batch:
            if not vectors.done():
                vectors.set_result({text: known[text] for text in texts})

    async def _compute(self, texts: list[str]) -> VectorsByText:
        known = self.cache.get_all(texts)  # an earlier batch may have embedded the same text
        if missing := [text for text in texts if text not in known]:
            rows = _normalize_rows(self._embedder, await self._ask(self._embedder, missing), len(missing))
            new = dict(zip(missing, rows, strict=True))
            self.cache.put_all(new)
            known |= new
        return known


def _to_floats(name: str, answer: Any) -> NDArray[np.float64]:
    """Return an answer as float64: numbers too large for float32 would become infinite."""
    try:
        return np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadVector(f"the embedder {name!r} answered with something other than numbers") from error


def _normalize_rows(embedder: Embedder, answer: Any, count: int) -> Matrix:
    name, dim = embedder.name, embedder.dim
    rows = _to_floats(name, answer)
    if rows.shape != (count, dim):
        raise BadVector(
            f"the embedder {name!r} answered with shape {rows.shape} for {count} texts; ({count}, {dim}) was expected"
        )
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    if lengths.min() > _MIN_PLAIN_LENGTH and lengths.max() < _MAX_PLAIN_LENGTH:
        return np.asarray(rows / lengths[:, np.newaxis], np.float32)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        raise BadVector(f"the embedder {name!r} answered with NaN or infinity; nothing was stored")
    # Scaled first: squares of very large or small numbers overflow or vanish.
    scaled = rows / np.where(largest == 0.0, 1.0, largest)
    # The length is at least 1, except for a row of zeros.
    return np.asarray(scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1.0), np.float32)


class FunctionEmbedder:
    """A plain callable as an embedder: `f(text) -> vector`, or `f(texts) -> vectors`."""

    def __init__(self, function: Callable[[Any], Any], *, name: str, dim: int, takes_many: bool) -> None:
        self.name = name
        self.dim = dim
        self._function = function
        self._takes_many = takes_many

    async def embed_batch(self, texts: Sequence[str]) -> Any:
        if self._takes_many:
            return await call_off_loop(self._function, list(texts), None)
        return [await call_off_loop(self._function, text, None) for text in texts]


Vectors = Sequence[Sequence[float]]
RequestVectors = Callable[[Sequence[str]], Awaitable[tuple[Vectors, int]]]
"""Returns a vector for each text and the tokens charged, or raises `ProviderError`."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of one request; tokens are estimated, so these are below the provider's."""

    texts: int
    tokens: int
    tokens_per_text: int


class RemoteEmbedder(LateDimensionEmbedder):
    """An embedder behind an API; `dim` is 0 until the dimension of the model is known."""

    def __init__(
        self,
        endpoint: ModelEndpoint,
        request: RequestVectors,
        limits: RequestLimits,
        *,
        dim: int,
        close: CloseCallback,
    ) -> None:
        self.name = endpoint.name
        self.dim = dim
        self._endpoint = endpoint
        self._request = request
        self._limits = limits
        self.close = close

    async def embed_batch(self, texts: Sequence[str]) -> list[Any]:
        rows: list[Any] = []
        endpoint = self._endpoint
        for batch in await asyncio.to_thread(_build_batches, texts, self._limits):
            try:
                vectors, tokens = await self._request(batch)
            except ProviderError as error:
                cause = endpoint.get_safe_cause(error)
                raise EmbedderFailed(f"the embedder {self.name!r} {error}; nothing was stored") from cause
            endpoint.ledger.record_embedding(self.name, tokens, endpoint.price)
            rows += vectors
        return rows


def truncate_text(text: str, max_tokens: int) -> str:
    """Return a text that the model accepts; the full-text index still has what is cut. Empty text becomes a space."""
    while (tokens := count_tokens(text)) > max_tokens:
        text = text[: max(1, len(text) * max_tokens // tokens)]
    return text if text.strip() else " "


def _build_batches(texts: Sequence[str], limits: RequestLimits) -> list[list[str]]:
    batches: list[list[str]] = []
    batch_tokens = 0
    for text in texts:
        text = truncate_text(text, limits.tokens_per_text)
        tokens = count_tokens(text)
        if not batches or len(batches[-1]) >= limits.texts or batch_tokens + tokens > limits.tokens:
            batches.append([])
            batch_tokens = 0
        batches[-1].append(text)
        batch_tokens += tokens
    return batches


async def call_off_loop(function: Callable[[Any], Any], argument: Any, thread: ThreadPoolExecutor | None) -> Any:
    """Call a function without blocking the event loop: coroutine functions directly, others in a thread."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return await function(argument)
    answer = await asyncio.get_running_loop().run_in_executor(thread, function, argument)
    return await answer if isinstance(answer, Awaitable) else answer


class _VectorCache(OrderedDict[str, NDArray[np.float32]]):
    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def get_all(self, texts: Sequence[str]) -> VectorsByText:
        found = {text: self[text] for text in texts if text in self}
        for text in found:
            self.move_to_end(text)
        return found

    def put_all(self, vectors: VectorsByText) -> None:
        for vector in vectors.values():
            vector.flags.writeable = False  # shared with callers
        self.update(vectors)
        while len(self) > self._size:
            self.popitem(last=False)
