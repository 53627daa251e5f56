"""What may enter a log: the text, metadata, time and id of an entry, each checked before anything is written."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from recollect.errors import BadInput
from recollect.stores.base import Log
from recollect.stores.ops import Entry
from recollect.tiers.checks import checked_plain, checked_writable
from recollect.values import Space

QUARANTINED = "quarantined"
"""Where the metadata of a line says why it is not recalled, nor summed up, nor learned from."""

_LONGEST_ID = 256
_PAGE = 1000


def fresh_id() -> str:
    """An id that no other process will think of: the same words said twice are two entries."""
    return secrets.token_hex(12)


def is_quarantined(entry: Entry) -> bool:
    """Whether a line holds orders that are not its user's own."""
    return QUARANTINED in entry.metadata


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
    return checked_writable("content", content)


def checked_metadata(metadata: Any) -> dict[str, Any]:
    """Metadata as plain JSON, or `BadInput` naming what cannot be kept."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise BadInput(f"metadata is a mapping, not {type(metadata).__name__}")
    plain: dict[str, Any] = checked_plain("metadata", dict(metadata))
    return plain


def checked_importance(importance: Any) -> float:
    if isinstance(importance, bool) or not isinstance(importance, int | float) or not 0.0 <= importance <= 1.0:
        raise BadInput(f"importance is a number from 0 to 1, not {importance!r:.80}")
    return float(importance)


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
