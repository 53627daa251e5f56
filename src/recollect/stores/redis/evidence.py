"""What this store keeps of a deletion in order to look for it: pieces as hashes, and when it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recollect.stores.traces import Traces

_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Evidence:
    """What to look for in every byte, and the server's time of the last deletion, in microseconds."""

    at: int
    traces: Traces

    @classmethod
    def of(cls, salt: bytes, packed: bytes) -> Evidence:
        if not packed:
            return cls(0, Traces.of_pieces(salt, []))
        return cls(int.from_bytes(packed[:_LENGTH], "little"), Traces.unpacked(salt, packed[_LENGTH:]))

    @classmethod
    def joined(cls, salt: bytes, several: Sequence[bytes]) -> bytes:
        """As one, of what several deletions left."""
        if not several:
            return b""
        whole = cls.of(salt, several[0])
        for one in several[1:]:
            more = cls.of(salt, one)
            whole = cls(max(whole.at, more.at), whole.traces.plus(more.traces))
        return whole.packed

    @property
    def packed(self) -> bytes:
        return self.at.to_bytes(_LENGTH, "little") + self.traces.packed
