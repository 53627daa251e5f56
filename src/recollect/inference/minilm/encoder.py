"""One loaded encoder: a vocabulary, a graph, and the way its output becomes sentence vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from recollect.errors import EmbedderFailed, ModelDamaged
from recollect.inference.minilm import identity, weights
from recollect.inference.minilm.runtime import runtime
from recollect.inference.minilm.tokenizer import WordPiece
from recollect.inference.minilm.weights import Built, Foreign, Raw

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class Encoder:
    """Thread-safe: the session keeps no state between runs and the tokenizer's cache tolerates races."""

    def __init__(self, session: InferenceSession, words: WordPiece, name: str, *, first_token: bool) -> None:
        self._session = session
        self._first_token = first_token
        self._inputs = {entry.name: np.int32 if "int32" in entry.type else np.int64 for entry in session.get_inputs()}
        self.name = name
        self.pieces, self.framed = words.pieces, words.framed
        self._pad = words.pad
        # A graph with a pooled output (rank 2) is believed; otherwise the token vectors are pooled here.
        shapes = {entry.name: entry.shape for entry in session.get_outputs()}
        pooled = [name for name, shape in shapes.items() if shape is not None and len(shape) == 2]
        self._pooled = bool(pooled)
        self._output = pooled[0] if pooled else next(iter(shapes))
        self.dim = self._width(shapes[self._output])

    @classmethod
    def load(cls, directory: Path | None, threads: int) -> Encoder:
        found = weights.find(directory)
        if isinstance(found, Raw):
            found = _build(found, ours=directory is None)
        try:
            match found:
                case Built(directory=folder, manifest=manifest):
                    words = WordPiece.read(folder / manifest.vocabulary)
                    graph = (folder / manifest.graph).read_bytes()
                    if weights.sha256_of(graph) != manifest.graph_sha256:
                        raise ModelDamaged(
                            f"{folder / manifest.graph} was altered; run `recollect setup` to rebuild it"
                        )
                    return cls(_session(graph, threads), words, manifest.name, first_token=False)
                case Foreign(directory=folder, graph=path, vocabulary=vocabulary):
                    words = WordPiece.read(vocabulary)
                    first = weights.pools_first_token(folder)
                    return cls(_session(str(path), threads), words, folder.resolve().name, first_token=first)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelDamaged(f"the model cannot be read ({error}); run `recollect setup` to rebuild it") from error

    def sentences(self, framed: list[list[int]]) -> NDArray[np.float32]:
        """One unit vector for each row of ids."""
        longest = max(map(len, framed))
        ids = np.full((len(framed), longest), self._pad, np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(framed):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        try:
            feeds = {name: known[name].astype(kind, copy=False) for name, kind in self._inputs.items()}
            output = self._session.run([self._output], feeds)[0]
        except Exception as error:  # onnxruntime's errors share no base class of their own
            raise EmbedderFailed(f"the model {self.name} failed on {ids.shape} tokens: {error}") from error
        return self._units(output, mask)

    def _units(self, output: NDArray[np.float32], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        if not self._pooled:
            weighted = output * mask[:, :, None]
            output = output[:, 0] if self._first_token else weighted.sum(axis=1)
        norms = np.linalg.norm(output, axis=1, keepdims=True)
        if not np.all(np.isfinite(norms)) or not np.all(norms > 0):
            raise EmbedderFailed(f"the model {self.name} answered with a vector that has no direction")
        return np.asarray(output / norms, np.float32)

    def _width(self, shape: list[object]) -> int:
        if shape and isinstance(shape[-1], int):
            return shape[-1]
        probe = self._session.run([self._output], {name: np.ones((1, 2), kind) for name, kind in self._inputs.items()})
        return int(probe[0].shape[-1])


def _build(raw: Raw, *, ours: bool) -> Built:
    """Build once from weights found on this machine, and use the result from then on."""
    from recollect.inference.minilm.install import build

    known = identity.of(raw)
    pinned = known == identity.OURS
    if ours and not pinned:
        raise ModelDamaged(f"{raw.tensors} is not the all-MiniLM-L6-v2 that was pinned; run `recollect setup`")
    target = weights.home() if pinned else weights.cache_home() / f"built-{known.fingerprint[:16]}"
    if weights.read_built(target) is None:
        build(raw, target, name=known.name, weights_sha256=known.fingerprint)
    built = weights.read_built(target)
    if built is None:
        raise ModelDamaged(f"the model built in {target} vanished; run `recollect setup`")
    return built


def _session(graph: str | bytes, threads: int) -> InferenceSession:
    onnxruntime = runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Waiting threads that spin would steal the processor from the application the memory lives in.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session: InferenceSession = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base class of their own
        raise ModelDamaged(
            f"onnxruntime cannot load the model: {error}; run `recollect setup` to build it anew"
        ) from error
    return session
