"""A task's state as its row keeps it: with a checksum, and with room to grow."""

from __future__ import annotations

import hashlib

# A row of exactly the size it had is written over in place, and of a long one only those pages that differ: a step
# that adds a line to a state of 100 kB then writes one page instead of thirteen new ones and thirteen to be blanked.
# So what does not fit into a page is filled up, by at most an eighth of it. JSON has no place for the character.
_FILL = "\0"
_FITS_A_PAGE = 8000


def kept(state: str) -> str:
    """The text as it is stored."""
    size = len(state) if state.isascii() else len(state.encode())
    if size <= _FITS_A_PAGE:
        return state
    grain = 1 << (size.bit_length() - 4)
    return state + _FILL * (-size % grain)


def digest(state: str) -> bytes:
    return hashlib.sha256(state.encode()).digest()


def read(stored: bytes, checksum: bytes) -> tuple[str, bool]:
    """The text again, and whether it is what was written.

    From bytes: damage may have left some that are no text at all, and that is told, not raised.
    """
    state = stored.rstrip(_FILL.encode()) if len(stored) > _FITS_A_PAGE else stored
    return state.decode("utf-8", "replace"), hashlib.sha256(state).digest() == checksum
