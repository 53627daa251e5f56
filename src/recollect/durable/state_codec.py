"""JSON encoding of a task's state: plain data only, versioned, with the path of a value that cannot be stored."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recollect.errors import BadInput, SchemaTooNew, StoreCorrupt

SCHEMA = 1

# JSON parsers of other languages read this depth without a stack overflow.
MAX_DEPTH = 200

_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))

# No state has this text, because `encode` rejects lone surrogates.
_MASK = "\ud800"
_ENCODED_MASK = f'"{_MASK}"'
_MIN_LONG_TEXT = 2048

State = dict[str, Any]

CheckpointAuthor = tuple[str, str | None]
"""The user and session that a checkpoint belongs to; erasing the user erases it."""


@dataclass(frozen=True, slots=True)
class CheckpointDocument:
    """The content of one checkpoint: the state, the working memory and the author."""

    state: State
    working: Mapping[str, Any] | None = None
    author: CheckpointAuthor | None = None


@dataclass(slots=True)
class EncodedState:
    """A checkpoint as JSON text, with the SHA-256 of its bytes."""

    text: str
    sha256: str
    _masked: str
    _texts: Sequence[str]
    _unused_copy: State | None

    def decode(self) -> State:
        """Return a new copy of the state."""
        copy, self._unused_copy = self._unused_copy, None
        if copy is None:
            copy = _decode_state(self._masked)
        texts = iter(self._texts)  # texts are immutable, so that all copies share them
        for values, key in _iter_texts(copy) if self._texts else ():
            if values[key] == _MASK:
                values[key] = next(texts)
        return copy


class StateEncoder:
    """Encoder of the states of one run, most of which differ from the previous state in one result only.

    JSON and SHA-256 of 100 kB take as long as the rest of a step. So the encoder reuses the JSON of long texts of the
    previous state. It continues the previous hash after the last long text if the bytes up to there are the same.
    """

    def __init__(self, max_bytes: int, author: CheckpointAuthor | None = None) -> None:
        self._max_bytes = max_bytes
        self._author = author
        self._was_long = False
        self._encoded_texts: dict[str, str] = {}
        self._hashed = b""
        self._hash = hashlib.sha256()

    def encode(self, state: Any, working: Mapping[str, Any] | None = None) -> EncodedState:
        """Encode a checkpoint, or raise `BadInput` with the path of the value that cannot be stored."""
        if not isinstance(state, dict):
            raise BadInput(f"the state of a task must be a dict; got {type(state).__name__}")
        masked_state, texts = _mask_long_texts(state) if self._was_long else (state, [])
        document: dict[str, Any] = {"state": masked_state}
        if working is not None:
            document["working"] = working
        if self._author is not None:
            document["by"] = self._author
        try:
            masked = encode_json(document)
            self._encoded_texts = {text: self.encode_value(text) for text in texts}
            first, *parts = masked.split(_ENCODED_MASK)
            # `strict` raises if a text of the state equals the mask.
            pairs = [self._encoded_texts[text] + part for text, part in zip(texts, parts, strict=True)]
            text = "".join((first, *pairs)) if texts else masked
            data = text.encode()
            self._was_long = len(data) >= _MIN_LONG_TEXT
            copy = _decode_state(masked)
            is_plain = copy == masked_state
        except (TypeError, ValueError, RecursionError):
            _check_storable(state)
            raise
        # Each level opens a bracket, so only a state with more brackets than MAX_DEPTH can be too deep.
        if not is_plain or (masked.count("{") + masked.count("[") > MAX_DEPTH and is_deeper(copy, MAX_DEPTH)):
            _check_storable(state)
        if len(data) > self._max_bytes:
            raise BadInput(
                f"the state takes {len(data):,} bytes, and max_state is {self._max_bytes:,}; store large results "
                "elsewhere and keep their names in the state, or raise the setting"
            )
        tail = parts[-1].encode() if texts else data
        return EncodedState(text, self._compute_sha256(data[: -len(tail)], tail), masked, texts, copy)

    def encode_value(self, value: Any) -> str:
        """Return plain data as compact JSON; a long text of the last state is not encoded again."""
        return (self._encoded_texts.get(value) if type(value) is str else None) or encode_json(value)

    def _compute_sha256(self, head: bytes, tail: bytes) -> str:
        if not head:
            return hashlib.sha256(tail).hexdigest()
        if not head.startswith(self._hashed):
            self._hashed, self._hash = b"", hashlib.sha256()
        self._hash.update(head[len(self._hashed) :])
        self._hashed = head
        whole = self._hash.copy()
        whole.update(tail)
        return whole.hexdigest()


def _mask_long_texts(state: State) -> tuple[State, list[str]]:
    """Return the state with a mask in place of each long text, and these texts in the order of the JSON."""
    texts: list[str] = []
    masked = {key: dict(value) if type(value) is dict else value for key, value in state.items()}
    for values, key in _iter_texts(masked):
        if len(values[key]) >= _MIN_LONG_TEXT:
            texts.append(values[key])
            values[key] = _MASK
    return (masked, texts) if texts else (state, texts)


def _iter_texts(state: State) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each text of a state and of the dicts in it, as its dict and its key."""
    for key, value in state.items():
        if type(value) is str:
            yield state, key
        elif type(value) is dict:
            for inner_key, inner in value.items():
                if type(inner) is str:
                    yield value, inner_key


def _decode_state(text: str) -> State:
    state: State = json.loads(text)["state"]
    return state


def encode_json(value: Any) -> str:
    """Return plain data as compact JSON."""
    return _ENCODER.encode(value)


def decode_document(schema: int, text: str) -> CheckpointDocument:
    """Decode a stored checkpoint; raise `StoreCorrupt` if it is damaged."""
    if schema > SCHEMA:
        raise SchemaTooNew(
            f"the checkpoint has format {schema}, and this Recollect reads up to {SCHEMA}; upgrade Recollect"
        )
    try:
        document = json.loads(text)
        state, working = document["state"], document.get("working")
        user, session = document.get("by") or (None, None)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise StoreCorrupt(f"the checkpoint is damaged: {error}") from error
    if not isinstance(state, dict) or not isinstance(working, dict | None):
        raise StoreCorrupt("the checkpoint is damaged: its state is not an object")
    return CheckpointDocument(state, working, None if user is None else (user, session))


def _check_storable(state: Any) -> None:
    if problem := _find_problem(state, "state"):
        raise BadInput(problem)


def _find_problem(value: Any, path: str, ancestors: tuple[int, ...] = ()) -> str | None:
    """Return the path of the first value that JSON cannot hold, and the reason; None if there is none."""
    try:
        if isinstance(value, dict | list | tuple):
            return _find_inner_problem(value, path, ancestors)
        if isinstance(value, str):
            value.encode()
        elif isinstance(value, int):  # including bool
            str(value)
        elif isinstance(value, float):
            if not math.isfinite(value):
                return f"{path} is {value!r}, which JSON cannot hold; use None or a string"
        elif value is not None:
            kind = type(value).__name__
            return f"{path} is a {kind}, which cannot be stored; use strings, numbers, lists and dicts"
    except UnicodeEncodeError as error:
        return f"{path} has a lone surrogate at {error.start}; decode the text correctly"
    except ValueError:  # Python limits the conversion to 4,300 digits
        return f"{path} is a number with too many digits; use a string"
    return None


def _find_inner_problem(values: Any, path: str, ancestors: tuple[int, ...]) -> str | None:
    if id(values) in ancestors:
        return f"{path} refers to itself, which cannot be stored"
    if len(ancestors) >= MAX_DEPTH:
        return f"{path} is nested more than {MAX_DEPTH} levels deep; flatten it"
    for key, child in values.items() if isinstance(values, dict) else enumerate(values):
        child_path = f"{path}[{key}]"
        if isinstance(values, dict):
            if not isinstance(key, str):
                return f"{path} has the key {key!r:.80}, a {type(key).__name__}; keys must be strings"
            if problem := _find_problem(key, path):
                return problem
            child_path = f"{path}.{key}" if key.isidentifier() else f"{path}[{key[:80]!r}]"
        if problem := _find_problem(child, child_path, (*ancestors, id(values))):
            return problem
    return None


def is_deeper(value: Any, levels: int) -> bool:
    """Return whether plain data has more levels of lists and dicts."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels <= 0 or any(is_deeper(item, levels - 1) for item in inner)
