"""What this store keeps of a deletion in order to look for it: pieces as hashes, and the numbers of its spaces."""

from __future__ import annotations

import json
from dataclasses import dataclass

from recollect.stores.traces import Traces

_LENGTH = 4


@dataclass(frozen=True, slots=True)
class Evidence:
    """The spaces whose words have to be looked at, and what to look for in every byte."""

    spaces: frozenset[int]
    traces: Traces

    @classmethod
    def unpacked(cls, salt: bytes, packed: bytes) -> Evidence:
        if not packed:
            return cls(frozenset(), Traces.of_pieces(salt, []))
        size = int.from_bytes(packed[:_LENGTH], "little")
        spaces = json.loads(packed[_LENGTH : _LENGTH + size])
        return cls(frozenset(spaces), Traces.unpacked(salt, packed[_LENGTH + size :]))

    @property
    def packed(self) -> bytes:
        spaces = json.dumps(sorted(self.spaces)).encode()
        return len(spaces).to_bytes(_LENGTH, "little") + spaces + self.traces.packed

    def plus(self, other: Evidence) -> Evidence:
        return Evidence(self.spaces | other.spaces, self.traces.plus(other.traces))

    @property
    def few(self) -> Evidence:
        """What is kept once nothing of it was found."""
        return Evidence(self.spaces, self.traces.few)
