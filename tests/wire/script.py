"""Scripted answers of a model, independent of the provider's protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Call:
    """A tool call of the model. Arguments given as text are sent unchanged, even if they are not valid JSON.

    With the default `id`, the position of the call makes one. None imitates a non-conforming server: the id is empty,
    and a streamed call has no index.
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = ""


@dataclass(frozen=True)
class Say:
    """An answer with a text, tool `calls`, or both.

    These fields change a streamed answer. `resets`: the connection is reset before the first piece of the text.
    `breaks_after`: the connection closes after that many pieces. `ends_early`: the stream ends without a stop reason.
    `stalls_after`: after that many pieces nothing is sent until the server closes. `pause`: seconds before each piece.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    stop: Literal["end", "length", "refusal", "filter"] = "end"
    """The stop reason: finished, token limit, refused by the model, or filtered by the provider."""
    read: int = 10
    written: int = 5
    cached: int = 0
    cache_written: int = 0
    counts: bool = True
    """True if the server reports token counts; some servers with OpenAI's protocol do not."""
    resets: bool = False
    breaks_after: int | None = None
    stalls_after: int | None = None
    ends_early: bool = False
    pause: float = 0.0

    @property
    def pieces(self) -> list[str]:
        """Return the text split into words, as it is streamed."""
        words = self.text.split(" ")
        return [word if at == 0 else f" {word}" for at, word in enumerate(words)] if self.text else []


@dataclass(frozen=True)
class Fail:
    """An HTTP error; `kind` is the provider's error type, and `param` the request parameter that it names."""

    status: int
    kind: str = "some_error"
    message: str = "it did not work"
    headers: Mapping[str, str] = field(default_factory=dict)
    param: str | None = None


@dataclass(frozen=True)
class Reset:
    """A connection reset before any answer."""


@dataclass(frozen=True)
class Hang:
    """A request without an answer until the server closes."""


@dataclass(frozen=True)
class Request:
    """A received request."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


Answer = Say | Fail | Reset | Hang
Scripted = Answer | Callable[[Request], Answer]
"""An answer, or a function that returns it for a request."""
