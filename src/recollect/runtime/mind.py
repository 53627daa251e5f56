"""What a running task has in mind, as the runtime sees it: a memory for its steps, and what of it is saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from recollect.runtime.in_order import Share


class Thoughts(Protocol):
    """The memory of one attempt at a step: what it is told waits until the step is completed."""

    @property
    def memory(self) -> Any:
        """The whole memory, for `ctx.memory`."""

    @property
    def working(self) -> Any:
        """The task at hand, for `ctx.working`."""

    def collected(self) -> Sequence[Share]:
        """What it was told, in its order and each for its store: to be written with the completion, or before it."""


class Mind(Protocol):
    """The memory of one run."""

    def snapshot(self) -> Mapping[str, Any] | None:
        """Working memory as JSON; None when there is nothing in it."""

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Put working memory back to what it was at the checkpoint."""

    def attempt(self, name: str) -> Thoughts:
        """A memory for one attempt, which forgets what the failed one before it was told.

        The name is the same for every attempt at one step: what is told again is then known to be the same.
        """

    def leave(self) -> None:
        """The run is over."""


MindMaker = Callable[[], Mind]
