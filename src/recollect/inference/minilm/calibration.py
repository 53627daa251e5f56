"""Measures how large the values grow that enter each dense layer, to even them out before rounding to int8."""

from __future__ import annotations

import numpy as np

from recollect.inference.minilm.graph import Floats, Peaks, Shape, Tensors, exact
from recollect.inference.minilm.runtime import runtime

# Random word pieces reach at least the range of real text and need no corpus; peaks only steer the evening out, so
# a text that goes beyond them loses nothing.
_LENGTHS = (3, 8, 16, 32, 64, 128) * 8
_SEED = 3


def peaks(tensors: Tensors, shape: Shape) -> Peaks:
    """Run the fp32 encoder over random word pieces and keep the largest input of every channel."""
    onnxruntime = runtime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    graph = exact(tensors, shape, observed=True).SerializeToString()
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    layers = [output.name for output in session.get_outputs() if output.name not in ("sentence", "tokens")]
    random = np.random.default_rng(_SEED)
    words = len(tensors["embeddings.word_embeddings.weight"])
    magnitude: dict[str, Floats] = {}
    top: dict[str, Floats] = {}
    for length in _LENGTHS:
        ids = random.integers(0, words, (1, length), np.int32)
        values = session.run(layers, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        for layer, value in zip(layers, values, strict=True):
            rows = value.reshape(-1, value.shape[-1])
            magnitude[layer] = np.maximum(magnitude.get(layer, 0), np.abs(rows).max(axis=0))
            top[layer] = np.maximum(top.get(layer, 0), rows.max(axis=0))
    return Peaks(magnitude, top)
