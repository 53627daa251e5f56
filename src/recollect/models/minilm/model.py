"""The `MiniLM` embedder: chunks of long texts, the encoder, and the identity of the model."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from recollect.errors import EmbedderFailed, ModelDamaged
from recollect.models.minilm import model_files
from recollect.models.minilm.model_files import BuiltModel, FoundModel, OriginalWeights, UserModel, import_onnxruntime
from recollect.models.minilm.tokenizer import WordPieceTokenizer

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


# The model reads 256 tokens, two of which are special tokens.
MAX_TOKENS = 254
# The last sentence of a chunk is repeated in the next one if it has at most this many tokens, so that references
# such as "she then sold it" keep their context.
OVERLAP_TOKENS = 32

_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？\n])")


@dataclass(frozen=True)
class TokenChunk:
    """Tokens to embed at once; `weight` counts those that were in no earlier chunk."""

    tokens: list[int]
    weight: int


def split_into_chunks(text: str, tokenize: Callable[[str], list[int]]) -> list[TokenChunk]:
    """Return one chunk for a text that fits, otherwise chunks of whole sentences with a short overlap."""
    pieces = tokenize(text)
    if len(pieces) <= MAX_TOKENS:
        return [TokenChunk(pieces, max(1, len(pieces)))]
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    packed: list[TokenChunk] = []
    current: list[int] = []
    fresh = 0
    last: list[int] = []
    for start, stop in pairwise([0, *ends, len(text)]):
        for sentence in _split_evenly(tokenize(text[start:stop])):
            if current and len(current) + len(sentence) > MAX_TOKENS:
                packed.append(TokenChunk(current, fresh))
                repeated = last if len(last) <= OVERLAP_TOKENS and len(last) + len(sentence) <= MAX_TOKENS else []
                current, fresh = list(repeated), 0
            current = current + sentence
            fresh += len(sentence)
            last = sentence
    return [*packed, TokenChunk(current, fresh)]


def _split_evenly(pieces: list[int]) -> list[list[int]]:
    """Return a sentence in as few parts as fit, of nearly equal length."""
    parts = -(-len(pieces) // MAX_TOKENS)
    bounds = [len(pieces) * part // max(1, parts) for part in range(parts + 1)]
    return [pieces[start:stop] for start, stop in pairwise(bounds)]


@dataclass(frozen=True)
class ModelIdentity:
    """The identity of a model as stores record it; `dim` is None if only the loaded graph has it."""

    name: str
    dim: int | None
    fingerprint: str


MINILM_IDENTITY = ModelIdentity(model_files.MODEL_NAME, model_files.MODEL_DIMENSION, model_files.WEIGHTS_SHA256)


def identify_model(found: FoundModel) -> ModelIdentity:
    """Return the identity; a user's directory has its own name, unless it contains the default model."""
    if isinstance(found, BuiltModel):
        return ModelIdentity(found.manifest.name, found.manifest.dim, found.manifest.weights_sha256)
    folder, weights = (
        (found.directory, found.graph) if isinstance(found, UserModel) else (found.tensors.parent, found.tensors)
    )
    digest = model_files.hash_file(weights)
    if digest == model_files.WEIGHTS_SHA256:
        return MINILM_IDENTITY
    dim = model_files.read_json(folder / "config.json").get("hidden_size")
    return ModelIdentity(folder.resolve().name, dim if isinstance(dim, int) else None, digest)


class SentenceEncoder:
    """A loaded tokenizer and graph. It is thread-safe: the session has no state, and the cache tolerates races."""

    def __init__(
        self, session: InferenceSession, tokenizer: WordPieceTokenizer, name: str, *, first_token: bool
    ) -> None:
        self._session = session
        self._first_token = first_token
        self._inputs = {entry.name: np.int32 if "int32" in entry.type else np.int64 for entry in session.get_inputs()}
        self.name = name
        self.tokenizer = tokenizer
        # An output of rank 2 is pooled already; otherwise the token vectors are pooled here.
        shapes = {entry.name: entry.shape for entry in session.get_outputs()}
        pooled = [name for name, shape in shapes.items() if shape is not None and len(shape) == 2]
        self._pooled = bool(pooled)
        self._output = pooled[0] if pooled else next(iter(shapes))
        shape = shapes[self._output]
        self.dim = shape[-1] if shape and isinstance(shape[-1], int) else self._measure_dimension()

    @classmethod
    def load(cls, directory: Path | None, threads: int) -> SentenceEncoder:
        found = model_files.find_model(directory)
        if isinstance(found, OriginalWeights):
            found = _build_from_weights(found, is_default=directory is None)
        try:
            match found:
                case BuiltModel(directory=folder, manifest=manifest):
                    tokenizer = WordPieceTokenizer.read(folder / manifest.vocabulary)
                    graph = (folder / manifest.graph).read_bytes()
                    if hashlib.sha256(graph).hexdigest() != manifest.graph_sha256:
                        raise ModelDamaged(
                            f"{folder / manifest.graph} was changed; run `recollect setup` to rebuild it"
                        )
                    return cls(_open_session(graph, threads), tokenizer, manifest.name, first_token=False)
                case UserModel(directory=folder, graph=path, vocabulary=vocabulary):
                    tokenizer = WordPieceTokenizer.read(vocabulary)
                    first = model_files.is_first_token_pooled(folder)
                    return cls(_open_session(str(path), threads), tokenizer, folder.resolve().name, first_token=first)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelDamaged(f"the model cannot be read ({error}); run `recollect setup` to rebuild it") from error

    def encode(self, rows: list[list[int]]) -> NDArray[np.float32]:
        longest = max(map(len, rows))
        ids = np.full((len(rows), longest), self.tokenizer.pad, np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        try:
            feeds = {name: inputs[name].astype(kind, copy=False) for name, kind in self._inputs.items()}
            output = self._session.run([self._output], feeds)[0]
        except Exception as error:  # onnxruntime has no base class for its errors
            raise EmbedderFailed(f"the model {self.name} failed on {ids.shape} tokens: {error}") from error
        if not self._pooled:
            output = output[:, 0] if self._first_token else (output * mask[:, :, None]).sum(axis=1)
        norms = np.linalg.norm(output, axis=1, keepdims=True)
        if not np.all(np.isfinite(norms)) or not np.all(norms > 0):
            raise EmbedderFailed(f"the model {self.name} returned a vector of length 0 or NaN")
        return np.asarray(output / norms, np.float32)

    def _measure_dimension(self) -> int:
        probe = self._session.run([self._output], {name: np.ones((1, 2), kind) for name, kind in self._inputs.items()})
        return int(probe[0].shape[-1])


def _build_from_weights(raw: OriginalWeights, *, is_default: bool) -> BuiltModel:
    identity = identify_model(raw)
    is_pinned = identity == MINILM_IDENTITY
    if is_default and not is_pinned:
        raise ModelDamaged(f"{raw.tensors} is not the pinned version of all-MiniLM-L6-v2; run `recollect setup`")
    own_name = f"built-{identity.fingerprint[:16]}"
    target = model_files.get_cache_directory() / (model_files.MODEL_NAME if is_pinned else own_name)
    if built := model_files.read_built(target):
        return built
    from recollect.models.minilm.build import build_model  # the builder imports onnx

    return build_model(raw, target, name=identity.name, weights_sha256=identity.fingerprint)


def _open_session(graph: str | bytes, threads: int) -> InferenceSession:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Spinning threads would take processor time from the application.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session: InferenceSession = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has no base class for its errors
        raise ModelDamaged(
            f"onnxruntime cannot load the model: {error}; run `recollect setup` to rebuild it"
        ) from error
    return session


# Fits into the processor's cache: 32 texts of 200 tokens at once were 20% slower than 4.
_TOKENS_PER_RUN = 768
_MAX_TEXTS_PER_RUN = 32
# A run costs as much as this many tokens: 0.9 ms and 50 µs a token on two cores.
_RUN_COST = 18
_MAX_THREADS = 4


def plan_runs(lengths: Sequence[int]) -> list[list[int]]:
    """Return the indexes of rows in runs, the longest rows first, so that padding and runs cost least together."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    costs, starts = [0.0] + [inf] * len(order), [0] * (len(order) + 1)
    for start, index in enumerate(order):
        size = max(1, min(_MAX_TEXTS_PER_RUN, _TOKENS_PER_RUN // lengths[index]))
        for stop in range(start + 1, min(start + size, len(order)) + 1):
            cost = costs[start] + _RUN_COST + (stop - start) * lengths[index]
            if cost < costs[stop]:
                costs[stop], starts[stop] = cost, start
    runs, stop = [], len(order)
    while stop:
        runs.append(order[starts[stop] : stop])
        stop = starts[stop]
    return runs[::-1]


class MiniLM:
    """all-MiniLM-L6-v2, or the BERT encoder in `directory` or RECOLLECT_MODEL_DIR; loaded with the first text."""

    def __init__(self, directory: Path | None = None, *, threads: int | None = None) -> None:
        named = directory or os.environ.get("RECOLLECT_MODEL_DIR", "").strip()
        self._directory = Path(named).expanduser() if named else None
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._threads = threads or min(_MAX_THREADS, processors)
        self._encoder: SentenceEncoder | None = None
        self._loading = threading.Lock()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="recollect-minilm")

    @property
    def name(self) -> str:
        return self._identity.name

    @property
    def dim(self) -> int:
        return self._identity.dim or self._load_encoder().dim

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the weights: a graph rebuilt from them is the same model."""
        return self._identity.fingerprint

    @cached_property
    def _identity(self) -> ModelIdentity:
        return MINILM_IDENTITY if self._directory is None else identify_model(model_files.find_model(self._directory))

    def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a unit vector for each text, in order; also for empty texts."""
        encoder = self._load_encoder()
        texts_chunks = [split_into_chunks(text, encoder.tokenizer.tokenize) for text in texts]
        chunks = [chunk for text_chunks in texts_chunks for chunk in text_chunks]
        start, end = encoder.tokenizer.start, encoder.tokenizer.end
        vectors = self._encode_batches(encoder, [[start, *chunk.tokens, end] for chunk in chunks])
        if len(chunks) == len(texts):
            return vectors
        weights = np.array([chunk.weight for chunk in chunks], np.float32)
        starts = np.cumsum([0, *map(len, texts_chunks)])[:-1]
        pooled = np.add.reduceat(vectors * weights[:, None], starts, axis=0)
        return np.ascontiguousarray(pooled / np.linalg.norm(pooled, axis=1, keepdims=True), np.float32)

    def _encode_batches(self, encoder: SentenceEncoder, rows: list[list[int]]) -> NDArray[np.float32]:
        """Encode rows in runs of similar length. Runs go in parallel: the threads of one run often wait for another."""
        vectors = np.empty((len(rows), encoder.dim), np.float32)

        def run(indexes: list[int]) -> None:
            vectors[indexes] = encoder.encode([rows[index] for index in indexes])

        runs = plan_runs([len(row) for row in rows])
        list((self._pool.map if len(runs) > 1 else map)(run, runs))
        return vectors

    def _load_encoder(self) -> SentenceEncoder:
        with self._loading:
            if self._encoder is None:
                self._encoder = SentenceEncoder.load(self._directory, self._threads)
            return self._encoder
