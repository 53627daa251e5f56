"""What a running task has in mind, as the runtime sees it: a memory for its steps, and what of it is saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from recollect.stores.ops import Write


class Thoughts(Protocol):
    """The memory of one attempt at a step: what it is told waits until the step is completed."""

    @property
    def memory(self) -> Any:
        """The whole memory, for `ctx.memory`."""

    @property
    def working(self) -> Any:
        """The task at hand, for `ctx.working`."""

    async def collected(self) -> Sequence[Write]:
        """What belongs into the completing transaction; what lives in other stores is written by this call."""


class Mind(Protocol):
    """The memory of one run."""

    def snapshot(self) -> Mapping[str, Any] | None:
        """Working memory as JSON; None when there is nothing in it."""

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Put working memory back to what it was at the checkpoint."""

    def attempt(self) -> Thoughts:
        """A memory for one attempt, which forgets what the failed one before it was told."""

    def leave(self) -> None:
        """The run is over."""


MindMaker = Callable[[], Mind]
