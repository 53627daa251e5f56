"""The word index as it lies on disk: every word in its pages, also one that was deleted and is hidden from searches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw

# As FTS5 lays its tables out: the number of a page is `segment << 37 | page`, and words of the main index begin with 0.
_SEGMENT_BITS = 37
_MAIN = b"0"

# The last page that begins with a word before the wanted ones: they may begin in the middle of it.
_FIRST = """
    select segid, max(pgno) >> 1
    from words_idx
    where term <= ?
    group by segid
"""
_SEGMENTS = "select distinct segid from words_idx"
_PAGES = "select block from words_data where id between ? and ? order by id"


def words_of(connection: apsw.Connection, space: int) -> Iterator[str]:
    """The words that any page holds for a space."""
    wanted = _MAIN + f"{space:x}_".encode()
    firsts: dict[Any, Any] = dict(connection.execute(_FIRST, (wanted,)))
    segments: list[Any] = [row[0] for row in connection.execute(_SEGMENTS)]
    for segment in segments:
        start = segment << _SEGMENT_BITS
        pages = connection.execute(_PAGES, (start | firsts.get(segment, 1), ((segment + 1) << _SEGMENT_BITS) - 1))
        for term in _until(pages, wanted):
            yield term[len(_MAIN) :].decode()


def _until(pages: Iterator[tuple[Any, ...]], wanted: bytes) -> Iterator[bytes]:
    """Words stand in order, so that reading ends at the first one behind those that are wanted."""
    for (block,) in pages:
        for term in terms_in(block):
            if term.startswith(wanted):
                yield term
            elif term > wanted:
                return


def terms_in(block: bytes) -> Iterator[bytes]:
    """The words that begin in one page of a segment; each but the first is kept as what differs from the one before."""
    end = int.from_bytes(block[2:4], "big")
    term, at, offset = b"", end, 0
    while at < len(block):
        step, at = _varint(block, at)
        first = offset == 0
        offset += step
        place, shared = offset, 0
        if not first:
            shared, place = _varint(block, place)
        size, place = _varint(block, place)
        term = term[:shared] + block[place : place + size]
        yield term


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number as SQLite writes it, and where the next thing begins."""
    value = 0
    for count in range(8):
        byte = data[at + count]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + count + 1
    return value << 8 | data[at + 8], at + 9
