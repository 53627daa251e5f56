"""Embedders behind one face: any model, sync or async, as checked unit vectors off the event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from recollect.deadline import within
from recollect.errors import BadVector, EmbedderFailed, RecollectError, StoreClosed
from recollect.inference.failures import Trouble

Matrix = NDArray[np.float32]
Release = Callable[[], Awaitable[None]]

_PROBE = "a memory of last summer"

# Between these, a sum of squares has lost nothing to what a float can hold.
_TINY, _HUGE = 1e-200, 1e200


@runtime_checkable
class Embedder(Protocol):
    """What a user may bring: `embed` for one text, `embed_batch` for many; both may be coroutines."""

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def embed(self, text: str) -> Any: ...

    def embed_batch(self, texts: Sequence[str]) -> Any: ...


class LateEmbedder:
    """One that cannot say how long its vectors are before it was asked: until it is told, `dim` is 0."""

    dim: int = 0


class Embedding:
    """An embedder as the rest of Recollect sees it; `release` lets go of connections that were made for it."""

    def __init__(
        self, embedder: Embedder, *, batch: int, timeout: float, cache: int, release: Release | None = None
    ) -> None:
        self._embedder = embedder
        self._batch = batch
        self._timeout = timeout
        self._cache = _Cache(cache)
        # One thread: a local model uses every core by itself, and two batches at once would only fight for them.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="recollect-embedder")
        self._closed = False
        self._releases = [release] if release else []
        self.changing = asyncio.Lock()
        """Held while a store and this change from one model to another."""

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def dim(self) -> int:
        return self._embedder.dim

    @property
    def fingerprint(self) -> str:
        """What tells this model's vectors from another's of the same name; the name itself where nothing better is."""
        return str(getattr(self._embedder, "fingerprint", self._embedder.name))

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """A unit vector for each text, in their order."""
        # Held on to: `become` may come between two batches, and one answer must not mix two models.
        embedder, cache = self._embedder, self._cache
        if len(texts) == 1:
            vector = cache.get(texts[0])
            if vector is None:
                vector = _checked(embedder, await self._ask(embedder, [texts[0]]), 1)[0]
                cache.put_all({texts[0]: vector})
            return vector[np.newaxis]
        known = cache.get_all(texts)
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        for start in range(0, len(missing), self._batch):
            some = missing[start : start + self._batch]
            known.update(zip(some, _checked(embedder, await self._ask(embedder, some), len(some)), strict=True))
        if missing:
            cache.put_all({text: known[text] for text in missing})
        if not texts:
            return np.empty((0, embedder.dim), np.float32)
        # As `np.stack` does it, in a third of the time: what was just said is compared with every question.
        return np.concatenate([known[text] for text in texts]).reshape(len(texts), -1)

    async def size_up(self, known: int = 0) -> None:
        """Settle how long the vectors are, where the embedder cannot say: as a store knows, or by asking once."""
        embedder = self._embedder
        if isinstance(embedder, LateEmbedder) and not embedder.dim:
            embedder.dim = known or _length(embedder.name, await self._ask(embedder, [_PROBE]))

    def become(self, other: Embedding) -> None:
        """Use another embedder from now on, wherever this one was handed to."""
        self._embedder, self._cache = other._embedder, other._cache
        if other is not self:
            self._releases += other._releases
            other._releases = []

    async def release(self) -> None:
        """Let go of the connections of every embedder this one has been; after `close`, and safe to call twice."""
        releases, self._releases = self._releases, []
        for release in releases:
            await release()

    async def settled(self) -> None:
        """Wait until a change that is under way has been made."""
        async with self.changing:
            return

    def forget(self) -> None:
        """Drop the texts that it knows the vectors of: one of them may have been erased."""
        self._cache.clear()

    def close(self) -> None:
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, embedder: Embedder, texts: Sequence[str]) -> Any:
        if self._closed:
            raise StoreClosed("this memory was closed; open it again")
        try:
            with within(self._timeout):
                return await called(embedder.embed_batch, texts, self._thread)
        except TimeoutError as error:
            raise EmbedderFailed(
                f"the embedder {embedder.name!r} gave no answer within {self._timeout:g} s; nothing was stored"
            ) from error
        except RecollectError:
            raise
        except Exception as error:
            # Its words may quote what was to be embedded; they stay in the cause.
            raise EmbedderFailed(f"the embedder {embedder.name!r} {_told(error)}; nothing was stored") from error


def _told(error: Exception) -> str:
    """What may be said of a failure: our own words, or else its type, with a status where it has one."""
    if isinstance(error, Trouble):
        return str(error)
    status = getattr(error, "status_code", None)
    known = f" ({status})" if isinstance(status, int) else ""
    return f"failed: {type(error).__name__}{known}, the cause of this error"


def _length(name: str, answer: Any) -> int:
    try:
        rows = np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadVector(f"the embedder {name!r} answered with something other than numbers") from error
    if rows.ndim != 2 or not rows.size:
        raise BadVector(f"the embedder {name!r} answered a text with shape {rows.shape}; a vector was expected")
    return int(rows.shape[1])


def _checked(embedder: Embedder, answer: Any, count: int) -> Matrix:
    name, dim = embedder.name, embedder.dim
    try:
        # Wide first: a number too large for float32 would become infinite with a warning instead of an error.
        rows = np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadVector(f"the embedder {name!r} answered with something other than numbers") from error
    if rows.shape != (count, dim):
        raise BadVector(
            f"the embedder {name!r} answered with shape {rows.shape} for {count} texts; ({count}, {dim}) was expected"
        )
    squares = np.einsum("ij,ij->i", rows, rows)
    if all(_TINY < one < _HUGE for one in squares.tolist()):  # as nearly always: finite, and of some length
        return np.asarray(rows / np.sqrt(squares)[:, np.newaxis], np.float32)
    # Scaled first: the square of a large number overflows, of a small one vanishes.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():  # the largest is NaN where any is
        raise BadVector(f"the embedder {name!r} answered with NaN or infinity; nothing was stored")
    scaled = rows / np.where(largest == 0.0, 1.0, largest)
    # At least 1 now, except for a row of zeros.
    length = np.sqrt((scaled * scaled).sum(axis=1, keepdims=True))
    return np.asarray(scaled / np.maximum(length, 1.0), np.float32)


class FunctionEmbedder:
    """A plain callable as an embedder: `f(text) -> vector`, or `f(texts) -> vectors`."""

    def __init__(self, function: Callable[[Any], Any], *, name: str, dim: int, takes_many: bool) -> None:
        self.name = name
        self.dim = dim
        self._function = function
        self._takes_many = takes_many

    async def embed(self, text: str) -> Any:
        return (await self.embed_batch([text]))[0]

    async def embed_batch(self, texts: Sequence[str]) -> Any:
        if self._takes_many:
            return await called(self._function, list(texts), None)
        return [await called(self._function, text, None) for text in texts]


async def called(function: Callable[[Any], Any], argument: Any, thread: ThreadPoolExecutor | None) -> Any:
    """Call it wherever it must not block: coroutines here, everything else in a thread."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return await function(argument)
    answer = await asyncio.get_running_loop().run_in_executor(thread, function, argument)
    return await answer if isinstance(answer, Awaitable) else answer


class _Cache:
    """Vectors of the texts asked for last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._vectors: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, text: str) -> NDArray[np.float32] | None:
        with self._lock:
            found = self._vectors.get(text)
            if found is not None:
                self._vectors.move_to_end(text)
            return found

    def get_all(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        with self._lock:
            found = {text: self._vectors[text] for text in texts if text in self._vectors}
            for text in found:
                self._vectors.move_to_end(text)
            return found

    def clear(self) -> None:
        with self._lock:
            self._vectors.clear()

    def put_all(self, vectors: dict[str, NDArray[np.float32]]) -> None:
        with self._lock:
            for vector in vectors.values():
                vector.flags.writeable = False  # it is handed out as it is
            self._vectors.update(vectors)
            while len(self._vectors) > self._size:
                self._vectors.popitem(last=False)
