"""An embedding model behind a provider's API: in requests it accepts, asked again when busy, counted in the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from recollect.errors import EmbedderFailed
from recollect.inference.access import Access
from recollect.inference.base import LateEmbedder
from recollect.inference.failures import Trouble
from recollect.words.tokens import count_tokens

Vectors = Sequence[Sequence[float]]
AskVectors = Callable[[Sequence[str]], Awaitable[tuple[Vectors, int]]]
"""A vector for each text, and the tokens that were charged; or `Trouble`."""

# More characters than this are counted in a thread: the loop must not wait for arithmetic.
_QUICK = 20_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may hold. Tokens are estimated, so these stay below what the provider says."""

    texts: int
    tokens: int
    tokens_a_text: int


class RemoteEmbedder(LateEmbedder):
    """`ask` sends one request; `dim` is 0 where no table knows the model."""

    def __init__(
        self, access: Access, ask: AskVectors, limits: Limits, *, dim: int, close: Callable[[], Awaitable[None]]
    ) -> None:
        self.dim = dim
        self._access = access
        self._ask = ask
        self._limits = limits
        self.close = close

    @property
    def name(self) -> str:
        return self._access.name

    async def embed(self, text: str) -> Any:
        return (await self.embed_batch([text]))[0]

    async def embed_batch(self, texts: Sequence[str]) -> list[Any]:
        rows: list[Any] = []
        quick = sum(map(len, texts)) <= _QUICK
        portions = _requests(texts, self._limits) if quick else await asyncio.to_thread(_requests, texts, self._limits)
        for some in portions:
            rows += await self._vectors(some)
        return rows

    async def _vectors(self, texts: list[str]) -> Vectors:
        try:
            vectors, tokens = await self._access.persist(lambda: self._ask(texts))
        except Trouble as trouble:
            raise EmbedderFailed(
                f"the embedder {self.name!r} {trouble}; nothing was stored"
            ) from self._access.cause_of(trouble)
        self._access.ledger.embedded(self.name, tokens, self._access.price)
        return vectors


def shortened(text: str, most: int) -> str:
    """A text that a model can read; what is cut is found by its words all the same. An empty one becomes a space."""
    while (tokens := count_tokens(text)) > most:
        text = text[: max(1, len(text) * most // tokens)]
    return text if text.strip() else " "


def _requests(texts: Sequence[str], limits: Limits) -> list[list[str]]:
    return list(_portions([shortened(text, limits.tokens_a_text) for text in texts], limits))


def _portions(texts: list[str], limits: Limits) -> Iterator[list[str]]:
    some: list[str] = []
    held = 0
    for text in texts:
        tokens = count_tokens(text)
        if some and (len(some) >= limits.texts or held + tokens > limits.tokens):
            yield some
            some, held = [], 0
        some.append(text)
        held += tokens
    if some:
        yield some
