"""The JSON schema of what a typed function takes, so that a model knows how to call it."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from recollect.agent.docstrings import told
from recollect.errors import BadInput
from recollect.values import plain_json

Schema = dict[str, Any]

IDEMPOTENCY_KEY = "idempotency_key"
"""A parameter of this name is filled by the agent, and no model is told of it."""

LISTS = (list, tuple, set, frozenset, Sequence, AbstractSet)
OBJECTS = (dict, Mapping)
UNIONS = (Union, types.UnionType)

_PLAIN: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_DEEPEST = 20


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument that a model may give; `default` is `empty` where it must."""

    name: str
    annotation: Any
    default: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Signature:
    """A function as a model sees it."""

    description: str
    parameters: tuple[Parameter, ...]
    schema: Mapping[str, Any]
    wants_key: bool
    """Whether it has a place for the idempotency key."""


def signature_of(function: Callable[..., Any], name: str) -> Signature:
    """What a function takes, or `BadInput` naming the parameter that no model could fill."""
    hints, doc = _hints(function, name), told(_documented(function))
    parameters: list[Parameter] = []
    properties: dict[str, Schema] = {}
    wants_key = False
    for given in _parameters(function, name):
        if given.name == IDEMPOTENCY_KEY:
            wants_key = True
            continue
        if given.kind not in (given.POSITIONAL_OR_KEYWORD, given.KEYWORD_ONLY):
            raise BadInput(
                f"{given} of the tool {name!r} cannot be given by a name; a model gives each parameter by its own"
            )
        one = Parameter(given.name, hints.get(given.name, Any), given.default)
        properties[one.name] = _described(one, doc.parameters.get(one.name, ""), name)
        parameters.append(one)
    required = [one.name for one in parameters if one.required]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Signature(doc.description, tuple(parameters), schema, wants_key)


def schema_of(annotation: Any, path: str, depth: int = 0) -> Schema:
    """The schema of a type, or `BadInput` for one that JSON has no word for."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in (Any, inspect.Parameter.empty, object) or depth > _DEEPEST:
        return {}
    if annotation in _PLAIN or annotation is None:
        return {"type": _PLAIN[type(None) if annotation is None else annotation]}
    if origin is Annotated:
        words = [one for one in inner[1:] if isinstance(one, str)]
        return {**schema_of(inner[0], path, depth), **({"description": words[0]} if words else {})}
    if origin in (Required, NotRequired):
        return schema_of(inner[0], path, depth)
    if origin is Literal:
        return _one_of(inner)
    if origin in UNIONS:
        return {"anyOf": [schema_of(one, path, depth + 1) for one in inner]}
    if (origin or annotation) in LISTS:
        return {"type": "array", **_items(inner, path, depth)}
    if (origin or annotation) in OBJECTS:
        values = schema_of(inner[1], path, depth + 1) if len(inner) == 2 else {}
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _one_of([plain_json(one.value, path) for one in annotation])
    return _record(annotation, path, depth)


def fields_of(annotation: Any) -> list[Parameter] | None:
    """The fields of a dataclass or a TypedDict; None for anything else."""
    if is_typeddict(annotation):
        # Which may be missing is not known to the class itself where annotations are texts.
        optional, required = annotation.__optional_keys__, inspect.Parameter.empty
        hints = get_type_hints(annotation, include_extras=True)
        missing = {
            name
            for name, kind in hints.items()
            if get_origin(kind) is NotRequired or (name in optional and get_origin(kind) is not Required)
        }
        return [Parameter(name, kind, None if name in missing else required) for name, kind in hints.items()]
    if not (isinstance(annotation, type) and dataclasses.is_dataclass(annotation)):
        return None
    hints = get_type_hints(annotation, include_extras=True)
    return [
        Parameter(
            one.name,
            hints[one.name],
            inspect.Parameter.empty
            if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
            else None,
        )
        for one in dataclasses.fields(annotation)
        if one.init
    ]


def _record(annotation: Any, path: str, depth: int) -> Schema:
    fields = fields_of(annotation)
    if fields is None:
        raise BadInput(
            f"{path} is a {getattr(annotation, '__name__', annotation)}, which a model cannot write; use str, int, "
            "float, bool, list, dict, Literal, an Enum, a dataclass or a TypedDict"
        )
    return {
        "type": "object",
        "properties": {one.name: schema_of(one.annotation, f"{path}.{one.name}", depth + 1) for one in fields},
        "required": [one.name for one in fields if one.required],
        "additionalProperties": False,
    }


def _items(inner: tuple[Any, ...], path: str, depth: int) -> Schema:
    kinds = [one for one in inner if one is not Ellipsis]
    if not kinds:
        return {}
    if len(kinds) > 1:  # a tuple of so many
        return {
            "prefixItems": [schema_of(one, path, depth + 1) for one in kinds],
            "minItems": len(kinds),
            "maxItems": len(kinds),
        }
    return {"items": schema_of(kinds[0], path, depth + 1)}


def _one_of(values: Sequence[Any]) -> Schema:
    kinds = {_PLAIN.get(type(value)) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    return {**({"type": kind} if kind else {}), "enum": list(values)}


def _described(one: Parameter, description: str, tool: str) -> Schema:
    schema = schema_of(one.annotation, f"{one.name!r} of the tool {tool!r}")
    if description:
        schema = {**schema, "description": description}
    if one.required or one.default is None:
        return schema
    default = one.default.value if isinstance(one.default, Enum) else one.default
    if isinstance(default, str | int | float | bool | list | dict):
        schema = {**schema, "default": plain_json(default, one.name)}
    return schema


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"the tool {name!r} does not say what it takes; wrap it into a function with typed parameters"
        ) from error


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    called = _documented(function)
    try:
        return get_type_hints(called, include_extras=True)
    except NameError as error:
        raise BadInput(
            f"a type of the tool {name!r} is not to be found: {error}; import it where the tool is"
        ) from error
    except TypeError:  # a built-in function, say: it has none
        return {}


def _documented(function: Any) -> Any:
    """Where annotations and docstring are: of an object with `__call__` in that method."""
    while hasattr(function, "func") and not hasattr(function, "__name__"):  # functools.partial
        function = function.func
    return function if hasattr(function, "__name__") else type(function).__call__
