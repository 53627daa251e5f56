"""Encoding of values as row columns, and decoding of rows as values.

PostgreSQL's text type has no NUL, which our texts may contain, and its B-tree entries are limited to 2,704 bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any, TypeVar

from recollect.clock import from_micros, to_micros
from recollect.errors import Conflict
from recollect.stores.base import get_space_names
from recollect.stores.codec import DECODE_ERRORS, build_corrupt_error, decode_mapping, decode_texts, detect_corruption
from recollect.stores.filters import find_prefix_range
from recollect.stores.postgres.connections import SqlParams
from recollect.stores.search import ItemBrief
from recollect.stores.validation import build_model_mismatch
from recollect.stores.writes import Model
from recollect.types import EMPTY_MAPPING, MemoryItem, Scope, Space, Turn

OptionalText = TypeVar("OptionalText", str, str | None)

_NUL, _MARK = "\x00", "\x01"
_MICROSECOND = timedelta(microseconds=1)
_MAX_INDEXED_LENGTH = 200

# Both characters as JSON writes them, beside an escaped backslash, which is no part of them.
_ESCAPED_JSON = {r"\u0000": r"\u0001\u0001", r"\u0001": r"\u0001\u0002"}
_UNESCAPED_JSON = {escaped: text for text, escaped in _ESCAPED_JSON.items()}
_JSON_ESCAPE = re.compile(r"\\(?:\\|u000[01])")
_ESCAPED_JSON_MARK = re.compile(r"\\(?:\\|u0001\\u000[12])")

ITEM_FIELDS = (
    "id version content metadata importance access_count last_accessed created_at valid_from valid_to superseded_by "
    "expires_at source trust key session position speaker derived_from by_user by_agent by_session pinned decayed_at "
    "learned_at"
).split()
ITEM_COLUMNS = ", ".join(f"r.{name}" for name in ITEM_FIELDS)

# An item with what ranking needs: its terms, and its content unless it is long, since few candidates are shown.
_CONTENT_UNLESS_LONG = "case when r.length <= 500 then r.content end as content"
CANDIDATE_COLUMNS = f"{ITEM_COLUMNS.replace('r.content', _CONTENT_UNLESS_LONG)}, r.length, r.passages, r.terms"
CANDIDATE_WIDTH = len(CANDIDATE_COLUMNS.split(","))

# The space of a statement by its handle, so that a reader needs no number of it.
SPACE_ID_SQL = "(select id from recollect.spaces where tenant = %(tenant)s and handle = %(space)s)"
# The rows of a space by its number.
OF_SPACE_SQL = "tenant = %(tenant)s and space = %(space)s"

CLOCK_MICROS_SQL = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
NOW_MICROS_SQL = f"(select coalesce(%(now)s::bigint, {CLOCK_MICROS_SQL}))"
"""The time at which rows are expired or not, in microseconds: the parameter `now`, or the server's clock if null."""

# Rows by the handles of their spaces and their own, and the numbers of the spaces. Both may be missing. Each row is
# found by an index: a join may scan all rows of the tenant instead, if it is planned before they are there.
SELECT_NAMED_SQL = """
    select asked.space, s.id, s.next_seq, t.handle, {columns}
    from unnest(%(spaces)s::text[], %(names)s::text[]) as asked (space, name)
    left join lateral (
        select * from recollect.spaces where tenant = %(tenant)s and handle = asked.space offset 0
    ) s on true
    left join lateral (
        select * from recollect.{table} where tenant = %(tenant)s and space = s.id and handle = asked.name offset 0
    ) t on true
"""

# The models, the generation that is searched, and the dimensions of its vectors.
MODELS_JSON_SQL = """
    (select json_object_agg(name, value) from recollect.meta where name in ('model', 'generation', 'preparing'))
"""
ACTIVE_GENERATION_SQL = "coalesce((select value from recollect.meta where name = 'generation'), 'a')"
ACTIVE_DIM_SQL = "(select value::json ->> 'dim' from recollect.meta where name = 'model')"

encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
"""Return compact JSON, for instance of rows of encoded values as one parameter."""


def escape_text(text: OptionalText) -> OptionalText:
    """Return the text without NUL, in the same sort order: NUL becomes \\x01\\x01, and \\x01 becomes \\x01\\x02."""
    if text is None or (_NUL not in text and _MARK not in text):
        return text
    return text.replace(_MARK, "\x01\x02").replace(_NUL, "\x01\x01")


def unescape_text(text: OptionalText) -> OptionalText:
    """Return the text that `escape_text` was given."""
    if text is None or _MARK not in text:
        return text
    return text.replace("\x01\x01", _NUL).replace("\x01\x02", _MARK)


def build_handle(text: str) -> str:
    """Return a unique name of bounded length for a text: the text itself if it is short, or its start and hash."""
    text = escape_text(text)
    if len(text) <= _MAX_INDEXED_LENGTH:
        return text
    # Longer than any text that is its own handle, so the two kinds never collide.
    return text[:_MAX_INDEXED_LENGTH] + hashlib.sha256(text.encode()).hexdigest()


def build_handles(texts: Iterable[str]) -> list[str]:
    """Return the handles of the texts that can be stored."""
    return [build_handle(text) for text in texts if is_encodable(text)]


def build_handle_range(prefix: str) -> tuple[str, str | None]:
    """Return a range with the handles of all texts that start with the prefix; the end is None if there is none.

    If the prefix is longer than what a handle keeps of a text, the range has handles of other texts, too.
    """
    return find_prefix_range(escape_text(prefix)[:_MAX_INDEXED_LENGTH])


def is_encodable(text: str) -> bool:
    """Return whether the text has no lone surrogates."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def build_space_handle(space: Space) -> str:
    # Names of a scope contain no control characters, so the joined names are unique.
    return build_handle("\n".join(get_space_names(space)[1:]))


def build_space_params(space: Space) -> SqlParams:
    """Return the parameters of `SPACE_ID_SQL`."""
    return {"tenant": escape_text(space.tenant), "space": build_space_handle(space)}


def encode_space(space: Space) -> SqlParams:
    """Return a space's columns."""
    columns = ("tenant", "tier", "owner", "agent", "session")
    return dict(zip(columns, map(escape_text, get_space_names(space)), strict=True))


def decode_space(row: Sequence[Any]) -> Space:
    tenant, tier, user, agent, session = row
    return Space(unescape_text(tenant), tier, unescape_text(user), unescape_text(agent), unescape_text(session))


def encode_value(value: Any) -> Any:
    """Return a text, a time or a duration as a column, and any other value unchanged."""
    match value:
        case str():
            return escape_text(value)
        case datetime():
            return to_micros(value)
        case timedelta():
            return value // _MICROSECOND
        case _:
            return value


def encode_fields(value: Any, names: Iterable[str]) -> SqlParams:
    """Return some fields of a value as columns."""
    return {name: encode_value(getattr(value, name)) for name in names}


def decode_timestamp(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def dump_json(value: Mapping[str, Any] | Sequence[str]) -> str:
    """Return a value as JSON, in which all texts are escaped."""
    text = encode_json(dict(value) if isinstance(value, Mapping) else list(value))
    return _JSON_ESCAPE.sub(lambda match: _ESCAPED_JSON.get(match[0], match[0]), text) if "\\u000" in text else text


def load_metadata(text: str) -> Mapping[str, Any]:
    return EMPTY_MAPPING if text == "{}" else MappingProxyType(decode_mapping("metadata", _parse_json(text)))


def _parse_json(text: str) -> Any:
    if "\\u0001" in text:
        text = _ESCAPED_JSON_MARK.sub(lambda match: _UNESCAPED_JSON.get(match[0], match[0]), text)
    return json.loads(text)


_SIMPLE_FIELDS = (
    "id content created_at valid_from valid_to superseded_by expires_at source key decayed_at learned_at"
).split()


def encode_item(item: MemoryItem) -> SqlParams:
    """Return an item's columns, except for version, accesses and terms, which the batch decides."""
    turn, scope = item.turn, item.scope
    return {
        **encode_fields(item, _SIMPLE_FIELDS),
        "handle": build_handle(item.id),
        "metadata": dump_json(item.metadata),
        "importance": float(item.importance),
        "trust": float(item.trust),
        "key_handle": None if item.key is None else build_handle(item.key),
        "session": escape_text(turn.session) if turn else None,
        "session_handle": build_handle(turn.session) if turn else None,
        "position": float(turn.position) if turn else None,
        "speaker": escape_text(turn.speaker) if turn else None,
        "derived_from": dump_json(item.derived_from),
        "by_user": escape_text(scope.user),
        "by_agent": escape_text(scope.agent),
        "by_session": escape_text(scope.session),
        "pinned": bool(item.pinned),
    }


# Building a scope validates it, and the rows of an answer mostly share theirs.
_build_scope = lru_cache(maxsize=1024)(Scope)


def decode_item(space: Space, row: Sequence[Any]) -> MemoryItem:
    """Return the item of a row that starts with `ITEM_COLUMNS`. Raise `StoreCorrupt` if a value is invalid."""
    session, position, speaker = row[15:18]
    try:
        return MemoryItem(
            id=unescape_text(row[0]),
            version=row[1],
            content=unescape_text(row[2]),
            metadata=load_metadata(row[3]),
            importance=row[4],
            access_count=row[5],
            last_accessed=decode_timestamp(row[6]),
            created_at=from_micros(row[7]),
            valid_from=decode_timestamp(row[8]),
            valid_to=decode_timestamp(row[9]),
            superseded_by=unescape_text(row[10]),
            expires_at=decode_timestamp(row[11]),
            source=unescape_text(row[12]),
            trust=row[13],
            key=unescape_text(row[14]),
            turn=None if session is None else Turn(unescape_text(session), position, unescape_text(speaker)),
            derived_from=decode_texts("derived_from", _parse_json(row[18])) if row[18] != "[]" else (),
            scope=_build_scope(space.tenant, unescape_text(row[19]), unescape_text(row[20]), unescape_text(row[21])),
            pinned=row[22],
            decayed_at=decode_timestamp(row[23]),
            learned_at=decode_timestamp(row[24]),
            tier=space.tier,
        )
    except DECODE_ERRORS as error:
        raise build_corrupt_error(f"the row of item {row[0]!r:.80}", error) from error


# The fields of an `ItemBrief` within `CANDIDATE_COLUMNS`.
_GET_BRIEF = itemgetter(0, 15, 16, 17, 7, 4, 13, 12, CANDIDATE_WIDTH - 3, CANDIDATE_WIDTH - 2)


def decode_candidate(row: Sequence[Any]) -> ItemBrief:
    """Return the brief of a row that starts with `CANDIDATE_COLUMNS`."""
    brief = ItemBrief._make(_GET_BRIEF(row))
    if not any(text and _MARK in text for text in (brief.id, brief.source, brief.session, brief.speaker)):
        return brief
    names = ("id", "session", "speaker", "source")
    return brief._replace(**{name: unescape_text(getattr(brief, name)) for name in names})


@dataclass(frozen=True, slots=True)
class PostgresModels:
    """The model whose vectors are searched, their generation, and the model that is prepared in the other one."""

    active: Model | None = None
    generation: str = "a"
    preparing: Model | None = None

    @classmethod
    def parse(cls, values: Mapping[str, str] | None) -> PostgresModels:
        """Return the models from `MODELS_JSON_SQL`."""
        known = values or {}
        with detect_corruption("the name of the embedding model"):
            active, preparing = (_parse_model(known.get(name)) for name in ("model", "preparing"))
            return cls(active, known.get("generation", "a"), preparing)

    def encode(self) -> str:
        """Return the values of `SAVE_MODELS`."""
        models = {"model": self.active, "preparing": self.preparing}
        values = {name: json.dumps(asdict(model)) if model else "" for name, model in models.items()}
        return json.dumps(values | {"generation": self.generation})

    @property
    def dim(self) -> int:
        return 0 if self.active is None else self.active.dim

    @property
    def next_generation(self) -> str:
        """The generation that is not searched."""
        return "b" if self.generation == "a" else "a"

    def check_active(self, model: Model | None) -> None:
        """Raise `EmbeddingModelMismatch` if another model is active."""
        if self.active is not None and model is not None and self.active != model:
            raise build_model_mismatch(self.active, model)

    def check_prepared(self, model: Model) -> None:
        """Raise `Conflict` if the model is not the one that is prepared."""
        if self.preparing != model:
            raise Conflict(f"{model.name!r} is not being prepared; call `find_unembedded` with it first")


@lru_cache(maxsize=16)
def _parse_model(text: str | None) -> Model | None:
    return Model.decode(**json.loads(text)) if text else None
