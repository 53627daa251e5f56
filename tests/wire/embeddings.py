"""Embeddings in the formats of OpenAI and Voyage: hashed words, so that texts that share words have similar vectors."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from tests.embedders import hashed
from tests.wire.script import Fail, Request


def voyage_failure(fail: Fail) -> dict[str, Any]:
    return {"detail": fail.message}


def vectors(request: Request, dim: int) -> dict[str, Any]:
    given = request.body["input"]
    texts = [given] if isinstance(given, str) else given
    encoded = request.body.get("encoding_format") == "base64"
    data = []
    for at, text in enumerate(texts):
        row = hashed(text, dim).astype(np.float32)
        embedding: Any = base64.b64encode(row.tobytes()).decode() if encoded else [float(x) for x in row]
        data.append({"object": "embedding", "index": at, "embedding": embedding})
    tokens = sum(len(text.split()) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": request.body["model"], "usage": usage}
