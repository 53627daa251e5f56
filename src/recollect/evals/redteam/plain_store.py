"""A plain memory with the same embedder and no defence: what most agents have, to be measured beside ours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recollect.inference.base import Embedding


class PlainStore:
    """Texts and their vectors; the nearest few are the answer. The last one who says something of a key is right."""

    def __init__(self, embedding: Embedding) -> None:
        self._embedding = embedding
        self._texts: list[str] = []
        self._rows: list[NDArray[np.float32]] = []
        self._places: dict[str, int] = {}

    async def add(self, texts: Sequence[str], key: str | None = None) -> None:
        rows = await self._embedding.embed(list(texts))
        for text, row in zip(texts, rows, strict=True):
            if key is not None and key in self._places:
                self._texts[self._places[key]], self._rows[self._places[key]] = text, row
                continue
            if key is not None:
                self._places[key] = len(self._texts)
            self._texts.append(text)
            self._rows.append(row)

    async def answer(self, query: str, n: int = 5) -> str:
        if not self._texts:
            return ""
        asked = (await self._embedding.embed([query]))[0]
        order = np.argsort(-(np.stack(self._rows) @ asked), kind="stable")[:n]
        return "\n".join(self._texts[at] for at in order)
