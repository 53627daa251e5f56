"""What this store keeps of a deletion in order to look for it: pieces as hashes, partitions, and numbers of spaces."""

from __future__ import annotations

import json
from dataclasses import dataclass

from recollect.stores.traces import Traces

_LENGTH = 4


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where to look, and what for. Of a space two numbers are left, which are never given again."""

    spaces: frozenset[tuple[int, int]]
    """The partition and the number of each space that was erased whole."""
    parts: frozenset[int]
    traces: Traces

    @classmethod
    def unpacked(cls, salt: bytes, packed: bytes) -> Evidence:
        if not packed:
            return cls(frozenset(), frozenset(), Traces.of_pieces(salt, []))
        size = int.from_bytes(packed[:_LENGTH], "little")
        spaces, parts = json.loads(packed[_LENGTH : _LENGTH + size])
        traces = Traces.unpacked(salt, packed[_LENGTH + size :])
        return cls(frozenset((part, number) for part, number in spaces), frozenset(parts), traces)

    @property
    def packed(self) -> bytes:
        places = json.dumps([sorted(self.spaces), sorted(self.parts)]).encode()
        return len(places).to_bytes(_LENGTH, "little") + places + self.traces.packed

    def plus(self, other: Evidence) -> Evidence:
        return Evidence(self.spaces | other.spaces, self.parts | other.parts, self.traces.plus(other.traces))

    @property
    def few(self) -> Evidence:
        """What is kept once nothing of it was found."""
        return Evidence(self.spaces, self.parts, self.traces.few)
