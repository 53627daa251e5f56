"""How far a run may be trusted: no further than the least trusted thing that it has read."""

from __future__ import annotations

from collections.abc import Iterable

from recollect.tiers.facts import Fact
from recollect.values import Hit

AGENT = float(Fact(content="", source="agent").trusted)
"""What an agent says of itself is trusted this far, and what it says after reading others no further than them."""


class Standing:
    """What a run has read so far, as far as trust goes, and which memories it was shown."""

    def __init__(self) -> None:
        self.trust = AGENT
        self.shown: set[str] = set()
        self.doubtful: list[str] = []
        """What made it less than an agent is trusted by itself."""

    def restore(self, trust: float, shown: Iterable[str], doubtful: Iterable[str]) -> None:
        """Go on from where a run before a crash stood."""
        self.trust, self.shown, self.doubtful = trust, set(shown), list(doubtful)

    @property
    def clean(self) -> bool:
        """Whether everything it read is trusted at least as far as the agent itself."""
        return self.trust >= AGENT

    def read(self, what: str, trust: float, shown: Iterable[str] = ()) -> None:
        """Note something that the model got to see."""
        self.shown.update(shown)
        if trust < AGENT and what not in self.doubtful:
            self.doubtful.append(what)
        self.trust = min(self.trust, trust)

    def recalled(self, hits: Iterable[Hit]) -> None:
        """The same of memories."""
        for hit in hits:
            self.read("a memory that is unverified", hit.item.trust, (hit.item.id,))
