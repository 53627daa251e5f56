"""The tools that a model may call: typed functions, or objects that bring a schema of their own."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from recollect.agent.arguments import Unfit, fitted_all
from recollect.agent.calling import called
from recollect.agent.schema import IDEMPOTENCY_KEY, signature_of
from recollect.errors import BadInput
from recollect.inference.chat import ToolSpec
from recollect.inference.threads import Threads
from recollect.memory.tool_calls import result_text
from recollect.tiers.facts import Fact

F = TypeVar("F", bound=Callable[..., Any])
OnUnknown = Literal["retry", "skip", "ask"]

_MARK = "__recollect_tool__"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_METHODS = ("run", "execute", "call", "invoke")
# What has more characters than this, or is no plain data, is made a text in a thread.
_QUICK = 20_000
_BATCH = 250
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
# A schema with one of these may declare parameters elsewhere than among its properties.
_ELSEWHERE = ("$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties")


@dataclass(frozen=True, slots=True)
class Options:
    """What `tool` says of a function."""

    name: str | None = None
    source: str = "tool"
    timeout: float | None = None
    on_unknown: OnUnknown = "retry"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call, as the model is told; `shown` are the ids of memories it got to see."""

    text: str
    failed: bool = False
    trust: float = 1.0
    shown: tuple[str, ...] = ()
    noted: str | None = None
    """What is recorded in place of the text: what came from memory is not kept a second time."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, ready to be called. `fit` makes the model's arguments into the function's, or raises `Unfit`."""

    spec: ToolSpec
    function: Callable[..., Any]
    fit: Callable[[Mapping[str, Any]], dict[str, Any]]
    wants_key: bool
    options: Options

    @property
    def trust(self) -> float:
        """How far what it returns is trusted, by where that comes from."""
        return float(Fact(content="", source=self.options.source).trusted)

    async def call(self, arguments: Mapping[str, Any], key: str, threads: Threads) -> Outcome:
        """Its answer; whatever it raises is the caller's to tell the model."""
        given = self.fit(arguments)
        if self.wants_key:
            given[IDEMPOTENCY_KEY] = key
        answer = await called(self.function, given, threads)
        if isinstance(answer, Outcome):
            return answer
        text = text_of(answer) if _is_short(answer) else await asyncio.to_thread(text_of, answer)
        return Outcome(text, trust=self.trust)


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *, name: str | None = None, source: str = "tool", timeout: float | None = None, on_unknown: OnUnknown = "retry"
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    source: str = "tool",
    timeout: float | None = None,
    on_unknown: OnUnknown = "retry",
) -> F | Callable[[F], F]:
    """Say more about a tool than its signature does; `@tool(source="web", timeout=20)` above a function.

    `source` is where its answers come from, and decides how far they are trusted: "web" 0.3, "tool" 0.6 (which is the
    default), "system" 1.0 for what you answer for yourself. `on_unknown` is what a resumed run does about a call that
    was begun and never ended: `retry` it under the same idempotency key, `skip` it and tell the model that nobody
    knows, or `ask`, which raises `UnknownOutcome`.
    """
    if timeout is not None and not _is_time(timeout):
        raise BadInput(f"timeout is a number of seconds above 0, not {timeout!r:.80}")
    if on_unknown not in ("retry", "skip", "ask"):
        raise BadInput(f"on_unknown is 'retry', 'skip' or 'ask', not {on_unknown!r:.80}")
    if not isinstance(source, str) or not source.strip():
        raise BadInput(f"source is a name such as 'web' or 'system', not {source!r:.80}")
    options = Options(name, source, timeout, on_unknown)

    def marked(function: F) -> F:
        setattr(function, _MARK, options)
        return function

    return marked if function is None else marked(function)


def tools_of(given: Iterable[Any]) -> dict[str, Tool]:
    """The tools by name, or `BadInput` saying which cannot be one."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise BadInput(f"tools is a list of functions, not {given!r:.80}")
    found: dict[str, Tool] = {}
    for one in given:
        made = tool_of(one)
        if made.spec.name in found:
            raise BadInput(f"two tools are called {made.spec.name!r}; rename one with @tool(name=…)")
        found[made.spec.name] = made
    return found


def tool_of(given: Any) -> Tool:
    """A function or an object with `to_api_schema()` as a tool."""
    if isinstance(given, Tool):
        return given
    if hasattr(given, "to_api_schema"):
        return _with_schema(given)
    if not callable(given):
        raise BadInput(f"{given!r:.80} is no tool; give a typed function, or an object with to_api_schema()")
    options = _options(given)
    name = _checked_name(options.name or _name_of(given))
    signature = signature_of(given, name)
    return Tool(
        spec=ToolSpec(name, signature.description, signature.schema),
        function=given,
        fit=lambda arguments: fitted_all(arguments, signature.parameters),
        wants_key=signature.wants_key,
        options=options,
    )


def text_of(answer: Any) -> str:
    """What a tool returned, as the model is to read it."""
    if answer is None:
        return "done"
    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        answer = dataclasses.asdict(answer)
    try:
        text = "".join(_pieces(answer)) if _is_table(answer) else result_text(answer)
    except (BadInput, TypeError, ValueError, RecursionError):  # not plain data: it is shown as Python would
        text = f"[{', '.join(map(repr, answer))}]" if type(answer) is list else str(answer)
    return text.replace("\x00", "�").encode("utf-8", "replace").decode()


def _is_short(answer: Any) -> bool:
    """Whether it is written out in no time; the loop must not wait for a table of a million rows."""
    left, waiting = _QUICK, [answer]
    while waiting and left > 0:
        one = waiting.pop()
        if isinstance(one, str | bytes):
            left -= len(one)
        elif isinstance(one, Mapping | list | tuple | set | frozenset):
            left -= 10 * len(one)  # before they are looked at
            if left > 0:
                waiting.extend(itertools.chain(one, one.values()) if isinstance(one, Mapping) else one)
        elif one is not None and not isinstance(one, int | float):
            return False  # nobody knows what is in it
    return left > 0


def _is_table(answer: Any) -> bool:
    """Whether it is long and made of parts, other than the blocks of text that some tools answer with."""
    if not isinstance(answer, dict | list | tuple) or _is_short(answer):
        return False
    return isinstance(answer, dict) or not (isinstance(answer[0], Mapping) and answer[0].get("type") == "text")


def _pieces(value: Any) -> Iterator[str]:
    """JSON, a little at a time: while one piece is written no other thread gets on, and so the loop neither."""
    if not isinstance(value, dict | list | tuple) or _is_short(value):
        yield _JSON.encode(value)
    elif isinstance(value, dict):
        for at, (name, one) in enumerate(value.items()):
            yield ("{" if at == 0 else ", ") + _JSON.encode({name: None})[1:-5]
            yield from _pieces(one)
        yield "}"
    else:
        for at in range(0, len(value), _BATCH):
            yield "[" if at == 0 else ", "
            batch = value[at : at + _BATCH]
            if _is_short(batch):
                yield _JSON.encode(batch)[1:-1]
                continue
            for place, one in enumerate(batch):
                yield ", " if place else ""
                yield from _pieces(one)
        yield "]"


def _with_schema(given: Any) -> Tool:
    schema = given.to_api_schema()
    if not isinstance(schema, Mapping):
        raise BadInput(f"to_api_schema() of {given!r:.80} gives a dict with name and input_schema, not {schema!r:.80}")
    inner = schema.get("function")
    said = inner if isinstance(inner, Mapping) else schema
    parameters = said.get("input_schema", said.get("parameters")) or {"type": "object", "properties": {}}
    name = _checked_name(said.get("name"))
    function = (
        given
        if callable(given)
        else next((getattr(given, method) for method in _METHODS if callable(getattr(given, method, None))), None)
    )
    if function is None:
        raise BadInput(f"the tool {name!r} cannot be called; give it a method {', '.join(_METHODS)} or __call__")

    declared = _declared(parameters)

    def fit(arguments: Mapping[str, Any]) -> dict[str, Any]:
        unknown = [one for one in arguments if declared is not None and one not in declared]
        if declared is not None and unknown:
            raise Unfit(f"there is no parameter {unknown[0]!r:.80}; the parameters are {', '.join(declared) or 'none'}")
        missing = [one for one in parameters.get("required", ()) if one not in arguments]
        if missing:
            raise Unfit(f"the parameter {missing[0]!r} is missing")
        return dict(arguments)

    return Tool(
        spec=ToolSpec(name, str(said.get("description", "")), parameters),
        function=function,
        fit=fit,
        wants_key=_takes_key(function) and IDEMPOTENCY_KEY not in parameters.get("properties", {}),
        options=_options(given),
    )


def _declared(schema: Mapping[str, Any]) -> list[str] | None:
    """The names that arguments may have by a schema; None where any will do.

    JSON schema allows whatever it does not name. A function has parameters that are not the model's to set, so here
    a tool has to say that it takes more: with `additionalProperties`.
    """
    more = schema.get("additionalProperties")
    is_open = more is None and any(word in schema for word in _ELSEWHERE)
    return None if more is True or isinstance(more, Mapping) or is_open else list(schema.get("properties") or ())


def _takes_key(function: Any) -> bool:
    try:
        return IDEMPOTENCY_KEY in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _options(given: Any) -> Options:
    found = getattr(given, _MARK, None) or getattr(_inner(given), _MARK, None)
    return found if isinstance(found, Options) else Options()


def _inner(given: Any) -> Any:
    while isinstance(given, functools.partial):
        given = given.func
    return given


def _name_of(given: Any) -> str:
    inner = _inner(given)
    return getattr(inner, "__name__", None) or type(inner).__name__


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r:.80} is no name for a tool: models take 1 to 64 letters, digits, _ and -; "
            "give it one with @tool(name=…)"
        )
    return name


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
