"""What one question means, and how near to it others come: embedded once for all who compare."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from recollect.errors import EmbedderFailed
from recollect.inference.base import Embedding
from recollect.recall.calibrate import Calibration, calibrated

# So much of each text is compared: one costs the model what a question does.
_COMPARED_LENGTH = 600

_CALIBRATED: WeakKeyDictionary[Embedding, tuple[str, Calibration]] = WeakKeyDictionary()


class Meanings:
    """The vectors of one question and of the texts it is held against."""

    def __init__(self, embedding: Embedding, query: str) -> None:
        self._embedding = embedding
        self._query = query
        # One at a time, so that the second who asks finds in the embedder's cache what the first has had made.
        self._turn = asyncio.Lock()
        self._failed: EmbedderFailed | None = None
        self._known = False
        self._cosines: dict[str, float] = {}

    async def of_the_question(self) -> None:
        """Have the question embedded, once for everybody who is going to ask with it."""
        if not self._known:
            await self._embedded([])
            self._known = True

    async def of_the_question_if_it_can_be(self) -> None:
        """The same for those who can do without."""
        with suppress(EmbedderFailed):
            await self.of_the_question()

    @property
    def failed(self) -> bool:
        """Whether the embedder has been found to be down."""
        return self._failed is not None

    async def cosines(self, texts: Sequence[str]) -> tuple[list[float], Calibration] | None:
        """How near each text is to the question; None while the embedder is down."""
        compared = [text[:_COMPARED_LENGTH] for text in texts]
        # What was said is among the episodes too, and is compared once.
        new = [text for text in compared if text not in self._cosines]
        try:
            if new or self._failed is not None:
                rows = await self._embedded(new)
                self._cosines.update(zip(new, (rows[1:] @ rows[0]).tolist(), strict=True))
            calibration = await self._calibrated()
        except EmbedderFailed:
            return None
        return [self._cosines[text] for text in compared], calibration

    async def _embedded(self, texts: list[str]) -> Any:
        async with self._turn:
            if self._failed is not None:  # it is not waited for again and again
                raise self._failed
            try:
                return await self._embedding.embed([self._query, *texts])
            except EmbedderFailed as error:
                self._failed = error
                raise

    async def _calibrated(self) -> Calibration:
        known = _CALIBRATED.get(self._embedding)
        if known is None or known[0] != self._embedding.fingerprint:
            known = (self._embedding.fingerprint, await calibrated(self._embedding))
            _CALIBRATED[self._embedding] = known
        return known[1]
