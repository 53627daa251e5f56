"""What may enter a log: the text, metadata, time and id of an entry, each checked before anything is written."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from recollect.errors import BadInput
from recollect.stores.admission import check_text
from recollect.stores.base import Log
from recollect.stores.ops import Entry
from recollect.tiers.facts import in_utc
from recollect.values import Space, plain_json

_DEEPEST = 64
_LONGEST_ID = 256
_PAGE = 1000


def fresh_id() -> str:
    """An id that no other process will think of: the same words said twice are two entries."""
    return secrets.token_hex(12)


def checked_content(content: Any, most: int, *, may_be_empty: bool = False) -> str:
    """A text that every store can keep, of at most so many characters."""
    if not isinstance(content, str):
        raise BadInput(f"content is a text, not {type(content).__name__}")
    if not may_be_empty and not content.strip():
        raise BadInput("content is empty; say something, or leave the call out")
    if len(content) > most:
        raise BadInput(
            f"the text has {len(content):,} characters and max_content is {most:,}; split it, or raise the setting"
        )
    if "\x00" in content:
        raise BadInput(
            f"content has a NUL character at {content.index(chr(0))}, which not every store can keep; drop it"
        )
    check_text((content,))
    return content


def checked_metadata(metadata: Any) -> dict[str, Any]:
    """Metadata as plain JSON, or `BadInput` naming what cannot be kept."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise BadInput(f"metadata is a mapping, not {type(metadata).__name__}")
    plain: dict[str, Any] = plain_json(dict(metadata))
    inner: list[Any] = [plain]
    for _ in range(_DEEPEST):
        _check_strings(inner)
        containers = [one for one in inner if isinstance(one, dict | list)]
        inner = [value for one in containers for value in (one.values() if isinstance(one, dict) else one)]
    if inner:
        raise BadInput(f"metadata is nested more than {_DEEPEST} deep; keep it flatter")
    return plain


def checked_importance(importance: Any) -> float:
    if isinstance(importance, bool) or not isinstance(importance, int | float) or not 0.0 <= importance <= 1.0:
        raise BadInput(f"importance is a number from 0 to 1, not {importance!r:.80}")
    return float(importance)


def checked_moment(name: str, value: Any) -> datetime:
    """A moment in UTC; one without a time zone could mean any of 38 hours."""
    moment = in_utc(name, value)
    if value.tzinfo is None:
        raise BadInput(f"{name} is {value}, without a time zone; say which, as in datetime.now(UTC)")
    return moment


def checked_id(id: Any) -> str:
    if not isinstance(id, str) or not id.strip():
        raise BadInput(f"an id is a text, not {id!r:.80}")
    if len(id) > _LONGEST_ID or not id.isprintable():
        raise BadInput(f"an id has at most {_LONGEST_ID} characters and no control characters")
    return id


async def entire(store: Log, space: Space, *, after: int = 0) -> list[Entry]:
    """Every entry of a log above a `seq`, oldest first."""
    found: list[Entry] = []
    while page := await store.read(space, after=after, limit=_PAGE):
        found += page
        after = page[-1].seq
        if len(page) < _PAGE:
            break
    return found


def _check_strings(values: list[Any]) -> None:
    keys = [key for value in values if isinstance(value, dict) for key in value]
    for text in (*keys, *(value for value in values if isinstance(value, str))):
        if "\x00" in text:
            raise BadInput("metadata has a NUL character, which not every store can keep; drop it")
        check_text((text,))
