"""JSON schemas of typed functions, and validation of the arguments that a model writes for them.

Pydantic does both. It comes with the extra `agent`, and with the clients of Anthropic and OpenAI.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_origin, get_type_hints

from recollect.errors import BadInput, ExtraMissing

IDEMPOTENCY_KEY = "idempotency_key"
"""The agent fills a parameter of this name; the schema does not show it to the model."""

_MAX_REPORTED_ERRORS = 3

_SECTION_HEADING = re.compile(r"^(Args|Arguments|Parameters|Returns?|Raises|Yields?|Examples?|Notes?|Attributes):\s*$")
_ARGUMENT_SECTIONS = ("Args", "Arguments", "Parameters")
_PARAMETER_LINE = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


class InvalidArgument(Exception):
    """An argument does not fit the tool's signature; the model reads the message."""


@dataclass(frozen=True, slots=True)
class ToolSignature:
    """A function as a model sees it."""

    description: str
    schema: Mapping[str, Any]
    model: Any
    """The pydantic model of the parameters. Its fields have neutral names; the parameter names are their aliases."""
    wants_key: bool
    """The function has a parameter for the idempotency key."""

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as their types; raise `InvalidArgument` if they do not fit.

        Models write lists and objects as JSON text, and numbers as text or the reverse. An argument that does not fit
        is tried in its other form once.
        """
        validation_error = _import_pydantic().ValidationError
        try:
            return self._validate(arguments)
        except validation_error as error:
            repaired = _swap_text_and_value(arguments, {str(item["loc"][0]) for item in error.errors()})
            try:
                return self._validate(repaired)
            except validation_error:
                raise InvalidArgument(_describe_errors(error, self._names)) from None

    @property
    def _names(self) -> list[str]:
        return [field.alias for field in self.model.model_fields.values()]

    def _validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        values = self.model.model_validate(arguments)
        fields = self.model.model_fields
        return {fields[name].alias: getattr(values, name) for name in fields if name in values.model_fields_set}


def parse_signature(function: Callable[..., Any], name: str) -> ToolSignature:
    """Return a function's description, schema and parameter model.

    Raise `BadInput` for a parameter that a model cannot fill, and `ExtraMissing` without pydantic.
    """
    pydantic = _import_pydantic()
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
        field = pydantic.Field(
            ... if parameter.default is parameter.empty else parameter.default,
            alias=parameter.name,
            description=descriptions.get(parameter.name) or None,
        )
        fields[f"argument_{len(fields)}"] = (annotation, field)
    config = pydantic.ConfigDict(extra="forbid", coerce_numbers_to_str=True)
    try:
        model: Any = pydantic.create_model(name, __config__=config, **fields)
        schema = model.model_json_schema()
    except (pydantic.errors.PydanticUserError, pydantic.errors.PydanticUndefinedAnnotation) as error:
        raise BadInput(
            f"the tool {name!r} has a parameter type without a JSON schema: {error}; use str, int, float, bool, list, "
            "dict, Literal, an Enum, a dataclass or a TypedDict"
        ) from error
    return ToolSignature(description, _inline_references(schema, schema.pop("$defs", {})), model, wants_key)


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
    """Return a schema without `$ref`, titles and null defaults: some model servers do not resolve references.

    A type that contains itself is cut where it repeats.
    """
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
    """Return the object that has the annotations and the docstring; for an instance, its `__call__`."""
    while hasattr(function, "func") and not hasattr(function, "__name__"):  # functools.partial
        function = function.func
    return function if hasattr(function, "__name__") else type(function).__call__
