"""What a scripted model answers: each value is one answer, in the words of no provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Call:
    """A tool the model asks for. Arguments given as a text go over the wire as they are, whole JSON or not.

    Without an `id` it gets one by its place; None is what a careless server sends: an empty one, and
    streamed no number either.
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = ""


@dataclass(frozen=True)
class Say:
    """An answer; it wants tools where there are `calls`.

    Streamed, the connection is lost before the first piece of the text when it `resets`, and after so many pieces when
    it `breaks_after` them; when it `ends_early`, the stream ends in good order, and without saying why it stopped.
    When it `stalls_after` so many, nothing more comes until the server closes; `pause` is the seconds before each.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    stop: Literal["end", "length", "refusal", "filter"] = "end"
    """Why it stops: done, out of room, the model declines, or the provider cuts it off."""
    read: int = 10
    written: int = 5
    cached: int = 0
    cache_written: int = 0
    counts: bool = True
    """Whether the server says how many tokens it were; some that speak OpenAI's protocol do not."""
    resets: bool = False
    breaks_after: int | None = None
    stalls_after: int | None = None
    ends_early: bool = False
    pause: float = 0.0

    @property
    def pieces(self) -> list[str]:
        """The text as it is streamed: word by word."""
        words = self.text.split(" ")
        return [word if at == 0 else f" {word}" for at, word in enumerate(words)] if self.text else []


@dataclass(frozen=True)
class Fail:
    """An error by its status; `kind` is what the provider calls it, and `param` what of the request it is about."""

    status: int
    kind: str = "some_error"
    message: str = "it did not work"
    headers: Mapping[str, str] = field(default_factory=dict)
    param: str | None = None


@dataclass(frozen=True)
class Reset:
    """The connection is reset before anything is answered."""


@dataclass(frozen=True)
class Hang:
    """Nothing is answered until the server closes."""


@dataclass(frozen=True)
class Request:
    """What came in."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


Answer = Say | Fail | Reset | Hang
Scripted = Answer | Callable[[Request], Answer]
"""An answer, or a function that finds it in what was asked."""
