"""Tools that a model may call: typed functions, and objects that bring a schema of their own.

Pydantic makes the schemas of typed functions, and converts the arguments that a model writes for them. It comes with
the extra `agent`, and with the clients of Anthropic and OpenAI.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib
import inspect
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints, overload

from recollect.agent.prompt import to_storable_text
from recollect.durable.steps import UnknownOutcomePolicy, attach_options, get_name, is_async, read_options
from recollect.errors import BadInput, ExtraMissing, TaskError
from recollect.models.chat import ToolSpec
from recollect.models.llm import WorkerThreads
from recollect.recording.turn import format_result
from recollect.tiers.facts import source_trust
from recollect.validation import check_choice, check_seconds, check_text

_Function = TypeVar("_Function", bound=Callable[..., Any])

_MAX_HANGING_CALLS = 16
_OPTIONS_ATTRIBUTE = "__recollect_tool__"
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CALL_METHODS = ("run", "execute", "call", "invoke")
# An answer with more characters, or of an unknown type, is formatted in a thread.
_MAX_QUICK_CHARS = 20_000
_JSON_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
# A schema with one of these keywords may declare parameters outside its properties.
_OPEN_SCHEMA_KEYWORDS = ("$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties")
IDEMPOTENCY_KEY = "idempotency_key"
"""The agent fills a parameter of this name; the schema does not show it to the model."""

_MAX_REPORTED_ERRORS = 3

_SECTION_HEADING = re.compile(r"^(Args|Arguments|Parameters|Returns?|Raises|Yields?|Examples?|Notes?|Attributes):\s*$")
_ARGUMENT_SECTIONS = ("Args", "Arguments", "Parameters")
_PARAMETER_LINE = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Options that the decorator `tool` adds to a function."""

    name: str | None = None
    source: str = "tool"
    timeout: float | None = None
    on_unknown: UnknownOutcomePolicy = "retry"


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """Result of a call as the model reads it. `shown_ids` are the ids of the memories that it shows."""

    text: str
    failed: bool = False
    trust: float = 1.0
    shown_ids: tuple[str, ...] = ()
    recorded_text: str | None = None
    """The text that memory records instead, so that recalled memories are not stored twice."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A callable tool. `convert` turns the model's arguments into the function's, or raises `InvalidArgument`."""

    spec: ToolSpec
    function: Callable[..., Any]
    convert: Callable[[Mapping[str, Any]], dict[str, Any]]
    wants_key: bool
    options: ToolOptions

    @property
    def trust(self) -> float:
        return source_trust(self.options.source)

    async def call(self, arguments: Mapping[str, Any], key: str, threads: WorkerThreads) -> ToolOutcome:
        """Call the function and return its answer as text. Its exceptions pass through."""
        values = self.convert(arguments)
        if self.wants_key:
            values[IDEMPOTENCY_KEY] = key
        answer = await call_function(self.function, values, threads)
        if isinstance(answer, ToolOutcome):
            return answer
        text = format_tool_result(answer) if _is_short(answer) else await asyncio.to_thread(format_tool_result, answer)
        return ToolOutcome(text, trust=self.trust)


@overload
def tool(function: _Function, /) -> _Function: ...
@overload
def tool(
    *,
    name: str | None = None,
    source: str = "tool",
    timeout: float | None = None,
    on_unknown: UnknownOutcomePolicy = "retry",
) -> Callable[[_Function], _Function]: ...


def tool(
    function: _Function | None = None,
    /,
    *,
    name: str | None = None,
    source: str = "tool",
    timeout: float | None = None,
    on_unknown: UnknownOutcomePolicy = "retry",
) -> _Function | Callable[[_Function], _Function]:
    """Set a tool's options, as in `@tool(source="web", timeout=20)`.

    `source` sets the trust in its answers: "web" 0.3, "tool" 0.6 (the default), "system" 1.0. `timeout` is in seconds.
    `on_unknown` applies when a resumed run finds a call that was started and has no result. `retry` calls it again
    with the same idempotency key, `skip` tells the model that the outcome is unknown, `ask` raises `UnknownOutcome`.
    """
    options = ToolOptions(
        name=name,
        source=check_text("source", source),
        timeout=None if timeout is None else check_seconds("timeout", timeout),
        on_unknown=check_choice("on_unknown", on_unknown, get_args(UnknownOutcomePolicy)),
    )
    mark: Callable[[_Function], _Function] = functools.partial(attach_options, _OPTIONS_ATTRIBUTE, options)
    return mark if function is None else mark(function)


def build_tools(functions: Iterable[Any]) -> dict[str, Tool]:
    """Return the tools by name; raise `BadInput` for an object that cannot be a tool or a name used twice."""
    if isinstance(functions, str | bytes | Mapping) or not isinstance(functions, Iterable):
        raise BadInput(f"tools must be a list of functions; got {functions!r:.80}")
    tools: dict[str, Tool] = {}
    for function in functions:
        built = build_tool(function)
        if built.spec.name in tools:
            raise BadInput(f"two tools are called {built.spec.name!r}; rename one with @tool(name=…)")
        tools[built.spec.name] = built
    return tools


def build_tool(function: Any) -> Tool:
    """Return a function, or an object with `to_api_schema()`, as a tool."""
    if isinstance(function, Tool):
        return function
    if hasattr(function, "to_api_schema"):
        return _build_from_schema(function)
    if not callable(function):
        raise BadInput(f"a tool must be a typed function or have to_api_schema(); got {function!r:.80}")
    options = _read_options(function)
    return build_from_signature(function, _validate_tool_name(options.name or get_name(function)), options)


async def call_function(function: Callable[..., Any], arguments: dict[str, Any], threads: WorkerThreads) -> Any:
    """Call a coroutine function on the event loop and any other function in a thread; return its answer."""
    if is_async(function):
        return await function(**arguments)
    hanging = threads.hanging_count
    if hanging >= _MAX_HANGING_CALLS:
        raise TaskError(f"not called: {hanging} calls before this one still hang; call it again when one has ended")
    answer = await threads.run(functools.partial(function, **arguments))
    return await answer if inspect.isawaitable(answer) else answer


def format_tool_result(answer: Any) -> str:
    """Return a tool's answer as text for the model: JSON if possible, else as Python prints it."""
    if answer is None:
        return "done"
    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        answer = dataclasses.asdict(answer)
    has_blocks = isinstance(answer, list | tuple) and bool(answer) and isinstance(answer[0], Mapping)
    try:
        if isinstance(answer, dict | list | tuple) and not (has_blocks and answer[0].get("type") == "text"):
            # The C encoder would hold the GIL, and so the event loop, until a long table is written.
            text = "".join(_JSON_ENCODER.iterencode(answer))
        else:
            text = format_result(answer)
    except (BadInput, TypeError, ValueError, RecursionError):
        text = f"[{', '.join(map(repr, answer))}]" if type(answer) is list else str(answer)
    return to_storable_text(text)


def _is_short(answer: Any) -> bool:
    """Return whether formatting takes no noticeable time on the event loop."""
    left, values = _MAX_QUICK_CHARS, [answer]
    while values and left > 0:
        value = values.pop()
        if isinstance(value, str | bytes):
            left -= len(value)
        elif isinstance(value, Mapping | list | tuple | set | frozenset):
            left -= 10 * len(value)
            if left > 0:
                values.extend(itertools.chain(value, value.values()) if isinstance(value, Mapping) else value)
        elif value is not None and not isinstance(value, int | float):
            return False
    return left > 0


def _build_from_schema(source: Any) -> Tool:
    schema = source.to_api_schema()
    if not isinstance(schema, Mapping):
        raise BadInput(
            f"to_api_schema() of {source!r:.80} must return a dict with name and input_schema; got {schema!r:.80}"
        )
    inner = schema.get("function")
    described = inner if isinstance(inner, Mapping) else schema
    parameters = described.get("input_schema", described.get("parameters")) or {"type": "object", "properties": {}}
    name = _validate_tool_name(described.get("name"))
    methods = (getattr(source, method, None) for method in _CALL_METHODS)
    function = source if callable(source) else next((method for method in methods if callable(method)), None)
    if function is None:
        raise BadInput(f"the tool {name!r} cannot be called; give it a method {', '.join(_CALL_METHODS)} or __call__")

    declared = _declared_names(parameters)

    def convert(arguments: Mapping[str, Any]) -> dict[str, Any]:
        if declared is not None and (unknown := [argument for argument in arguments if argument not in declared]):
            raise InvalidArgument(
                f"there is no parameter {unknown[0]!r:.80}; the parameters are {', '.join(declared) or 'none'}"
            )
        missing = [argument for argument in parameters.get("required", ()) if argument not in arguments]
        if missing:
            raise InvalidArgument(f"the parameter {missing[0]!r} is missing")
        return dict(arguments)

    return Tool(
        spec=ToolSpec(name, str(described.get("description", "")), parameters),
        function=function,
        convert=convert,
        wants_key=_accepts_idempotency_key(function) and IDEMPOTENCY_KEY not in parameters.get("properties", {}),
        options=_read_options(source),
    )


def _declared_names(schema: Mapping[str, Any]) -> list[str] | None:
    """Return the parameter names that a schema allows; None if it allows any.

    JSON Schema allows names that it does not list. A function may have parameters that the model must not set, so a
    tool allows further names only with `additionalProperties`.
    """
    more = schema.get("additionalProperties")
    is_open = more is None and any(keyword in schema for keyword in _OPEN_SCHEMA_KEYWORDS)
    return None if more is True or isinstance(more, Mapping) or is_open else list(schema.get("properties") or ())


def _accepts_idempotency_key(function: Any) -> bool:
    try:
        return IDEMPOTENCY_KEY in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _read_options(function: Any) -> ToolOptions:
    options = read_options(_OPTIONS_ATTRIBUTE, function)
    return options if isinstance(options, ToolOptions) else ToolOptions()


def _validate_tool_name(name: Any) -> str:
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise BadInput(
            f"a tool's name must have 1 to 64 letters, digits, _ and -; got {name!r:.80}. Set it with @tool(name=…)"
        )
    return name


class InvalidArgument(Exception):
    """An argument does not fit the tool's signature; the model reads the message."""


def _convert_arguments(adapter: Any, names: Sequence[str], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as their types; raise `InvalidArgument` if they do not fit.

    Models write lists and objects as JSON text, and numbers as text or the reverse. An argument that does not fit is
    tried in its other form once. `adapter` is pydantic's `TypeAdapter` of the parameters, as a TypedDict.
    """
    validation_error = _import_pydantic().ValidationError
    try:
        values = adapter.validate_python(dict(arguments))
    except validation_error as error:
        repaired = _swap_text_and_value(arguments, {str(item["loc"][0]) for item in error.errors()})
        try:
            values = adapter.validate_python(repaired)
        except validation_error:
            raise InvalidArgument(_describe_errors(error, names)) from None
    return {name: value for name, value in values.items() if name in arguments}


def build_from_signature(function: Callable[..., Any], name: str, options: ToolOptions = ToolOptions()) -> Tool:
    """Return a typed function as a tool; raise `BadInput` for a parameter that a model cannot fill."""
    pydantic = _import_pydantic()
    typing_extensions = importlib.import_module("typing_extensions")  # pydantic requires it
    documented = _find_documented(function)
    hints = _read_type_hints(documented, name)
    description, descriptions = parse_docstring(documented)
    fields: dict[str, Any] = {}
    wants_key = False
    for parameter in _read_parameters(function, name):
        if parameter.name == IDEMPOTENCY_KEY:
            wants_key = True
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise BadInput(f"the parameter {parameter} of the tool {name!r} must be passable by name")
        annotation = hints.get(parameter.name, Any)
        if get_origin(annotation) is not None and hasattr(annotation, "__metadata__"):
            words = [item for item in annotation.__metadata__ if isinstance(item, str)]
            descriptions.setdefault(parameter.name, words[0] if words else "")
        is_required = parameter.default is parameter.empty
        default = {} if is_required else {"default": parameter.default}
        field = pydantic.Field(description=descriptions.get(parameter.name) or None, **default)
        annotation = Annotated[annotation, field]
        fields[parameter.name] = annotation if is_required else typing_extensions.NotRequired[annotation]
    parameters = typing_extensions.TypedDict(name, fields)
    parameters.__pydantic_config__ = pydantic.ConfigDict(extra="forbid", coerce_numbers_to_str=True)
    try:
        adapter = pydantic.TypeAdapter(parameters)
        schema = adapter.json_schema()
    except (pydantic.errors.PydanticUserError, pydantic.errors.PydanticUndefinedAnnotation) as error:
        raise BadInput(
            f"the tool {name!r} has a parameter type without a JSON schema: {error}; use str, int, float, bool, list, "
            "dict, Literal, an Enum, a dataclass or a TypedDict"
        ) from error
    spec = ToolSpec(name, description, _inline_references(schema, schema.pop("$defs", {})))
    return Tool(spec, function, functools.partial(_convert_arguments, adapter, list(fields)), wants_key, options)


def parse_docstring(function: Any) -> tuple[str, dict[str, str]]:
    """Return a Google-style docstring's opening text, and the descriptions of its parameters by name."""
    opening: list[str] = []
    parameters: dict[str, str] = {}
    section, indent, last = "", 0, ""
    for line in (inspect.getdoc(function) or "").splitlines():
        heading = _SECTION_HEADING.match(line)
        if heading is not None:
            section, indent, last = heading[1], 0, ""
        elif not section:
            opening.append(line)
        elif section in _ARGUMENT_SECTIONS and line.strip():
            depth = len(line) - len(line.lstrip())
            indent = indent or depth
            parameter = _PARAMETER_LINE.match(line.strip()) if depth <= indent else None
            if parameter is not None:
                last = parameter[1]
                parameters[last] = parameter[2].strip()
            elif last:
                parameters[last] = f"{parameters[last]} {line.strip()}".strip()
    return "\n".join(opening).strip(), parameters


def _import_pydantic() -> Any:
    try:
        return importlib.import_module("pydantic")
    except ImportError as error:
        raise ExtraMissing.for_feature("an agent's tool", "agent") from error


def _inline_references(node: Any, definitions: Mapping[str, Any], seen: frozenset[str] = frozenset()) -> Any:
    """Return a schema without titles, null defaults and `$ref`; a type that contains itself is cut where it repeats."""
    if isinstance(node, list):
        return [_inline_references(item, definitions, seen) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name in seen:
            return {}
        siblings = {key: value for key, value in node.items() if key != "$ref"}
        return _inline_references({**definitions[name], **siblings}, definitions, seen | {name})
    return {
        key: {name: _inline_references(item, definitions, seen) for name, item in value.items()}
        if key == "properties"
        else _inline_references(value, definitions, seen)
        for key, value in node.items()
        if key != "title" and not (key == "default" and value is None)
    }


def _swap_text_and_value(arguments: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    swapped = dict(arguments)
    for name in names & swapped.keys():
        value = swapped[name]
        if isinstance(value, str):
            try:
                swapped[name] = json.loads(value)
            except (ValueError, RecursionError):
                continue
        elif isinstance(value, int | float) and not isinstance(value, bool):
            swapped[name] = str(value)
    return swapped


def _describe_errors(error: Any, names: Sequence[str]) -> str:
    messages = []
    for item in error.errors()[:_MAX_REPORTED_ERRORS]:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"]).lstrip(".")
        if item["type"] == "missing":
            messages.append(f"the parameter {path!r} is missing")
        elif item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            known = f"; the parameters are {', '.join(names) or 'none'}" if len(item["loc"]) == 1 else ""
            messages.append(f"there is no parameter {path!r}{known}")
        else:
            value = json.dumps(item["input"], ensure_ascii=False, default=str)
            messages.append(f"{path}: {item['msg']}; got {value:.80}")
    return "; ".join(messages)


def _read_parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise BadInput(f"the tool {name!r} has no readable signature; wrap it in a typed function") from error


def _read_type_hints(documented: Any, name: str) -> dict[str, Any]:
    try:
        return get_type_hints(documented, include_extras=True)
    except NameError as error:
        raise BadInput(f"a type of the tool {name!r} cannot be resolved: {error}; import it in its module") from error
    except TypeError:  # a built-in function has no annotations
        return {}


def _find_documented(function: Any) -> Any:
    while hasattr(function, "func") and not hasattr(function, "__name__"):  # functools.partial
        function = function.func
    return function if hasattr(function, "__name__") else type(function).__call__
