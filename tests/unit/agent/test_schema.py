"""Tool schemas of typed functions."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, Optional

import pytest
from typing_extensions import TypedDict

from recollect.agent import tool
from recollect.agent.tools import build_from_signature, build_tool, parse_docstring
from recollect.errors import BadInput, ExtraMissing


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    city: str
    zip: int = 0
    tags: list[str] = field(default_factory=list)


@dataclass
class Tree:
    branches: list[Tree]


class Guest(TypedDict):
    name: str
    age: NotRequired[int]


def book(  # noqa: PLR0913 - one parameter of each kind
    place: Place,
    guests: list[Guest],
    colour: Colour = Colour.RED,
    *,
    kind: Literal["single", "double"] = "single",
    nights: int = 1,
    price: float | None = None,
    extras: dict[str, bool] | None = None,
    note: Optional[str] = None,  # noqa: UP045 - this form is common
    pair: tuple[int, str] = (1, "a"),
    anything: Any = None,
    marks: Sequence[int] = (),
    why: Annotated[str, "The reason."] = "",
    idempotency_key: str = "",
) -> str:
    """Book a room.

    It is paid at once.

    Args:
        place: Where it is.
        guests (list): Who comes, with
            their ages.
        nights: How many nights.

    Returns:
        A number.
    """
    return ""


def test_signature_is_converted_to_a_schema():
    # Mutants: a parameter with a default is required; the idempotency key is in the schema.
    schema = build_tool(book).spec.parameters
    assert schema["required"] == ["place", "guests"]
    assert schema["additionalProperties"] is False
    assert schema["properties"] == {
        "place": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "zip": {"type": "integer", "default": 0},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
            "additionalProperties": False,
            "description": "Where it is.",
        },
        "guests": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                "required": ["name"],
                "additionalProperties": False,
            },
            "description": "Who comes, with their ages.",
        },
        "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "kind": {"type": "string", "enum": ["single", "double"], "default": "single"},
        "nights": {"type": "integer", "description": "How many nights.", "default": 1},
        "price": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "extras": {"anyOf": [{"type": "object", "additionalProperties": {"type": "boolean"}}, {"type": "null"}]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "pair": {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "minItems": 2,
            "maxItems": 2,
            "default": [1, "a"],
        },
        "anything": {},
        "marks": {"type": "array", "items": {"type": "integer"}, "default": []},
        "why": {"type": "string", "description": "The reason.", "default": ""},
    }


def test_description_is_the_docstring_before_its_sections():
    assert build_tool(book).spec.description == "Book a room.\n\nIt is paid at once."
    assert build_tool(book).wants_key
    assert parse_docstring(lambda: None) == ("", {})


def test_methods_partials_and_callable_objects_are_tools():
    class Desk:
        """A desk."""

        def ring(self, times: int) -> str:
            """Ring the bell."""
            return "ring " * times

        def __call__(self, name: str) -> str:
            """Call somebody."""
            return name

    ring = build_tool(Desk().ring)
    assert (ring.spec.name, list(ring.spec.parameters["properties"])) == ("ring", ["times"])
    called = build_tool(Desk())
    assert (called.spec.name, called.spec.description) == ("Desk", "Call somebody.")
    assert called.spec.parameters["properties"] == {"name": {"type": "string"}}
    bound = build_tool(functools.partial(book, Place("Lisbon")))
    assert bound.spec.name == "book"
    assert "place" not in bound.spec.parameters["properties"]


def test_decorator_sets_name_source_and_options():
    @tool(name="web-search", source="web", timeout=5, on_unknown="ask")
    def search(q: str) -> str:
        return q

    built = build_tool(search)
    assert (built.spec.name, built.trust, built.options.timeout, built.options.on_unknown) == (
        "web-search",
        0.3,
        5,
        "ask",
    )
    assert build_tool(tool(book)).trust == 0.6


@pytest.mark.parametrize(
    ("options", "message"),
    [({"timeout": 0}, "timeout"), ({"on_unknown": "hope"}, "on_unknown"), ({"source": ""}, "source")],
)
def test_invalid_tool_option_is_refused(options: dict[str, Any], message: str):
    with pytest.raises(BadInput, match=message):
        tool(**options)


def test_unsupported_signature_is_refused_by_name():
    def at(when: threading.Event) -> None: ...

    def many(*things: str) -> None: ...

    def open_ended(**things: str) -> None: ...

    def lost(thing: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    for function, message in ((at, "threading.Event"), (many, "things"), (open_ended, "things"), (lost, "Nowhere")):
        with pytest.raises(BadInput, match=message):
            build_from_signature(function, function.__name__)
    with pytest.raises(BadInput, match="a tool's name must"):
        build_tool(lambda: None)
    with pytest.raises(BadInput, match="a tool's name must"):
        build_tool(tool(name="a b")(book))


def test_recursive_type_is_cut_at_its_repetition():
    def grow(tree: Tree) -> str:
        return str(tree)

    schema = build_from_signature(grow, "grow")
    assert schema.spec.parameters["properties"]["tree"]["properties"] == {"branches": {"type": "array", "items": {}}}
    assert schema.convert({"tree": {"branches": [{"branches": []}]}}) == {"tree": Tree([Tree([])])}


def test_tool_without_pydantic_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ExtraMissing, match=r"\[agent\]"):
        build_from_signature(book, "book")


def test_object_with_a_schema_must_be_callable():
    class Silent:
        def to_api_schema(self) -> dict[str, Any]:
            return {"name": "silent", "input_schema": {"type": "object"}}

    class Wrong:
        def to_api_schema(self) -> str:
            return "silent"

    with pytest.raises(BadInput, match="cannot be called"):
        build_tool(Silent())
    with pytest.raises(BadInput, match="to_api_schema"):
        build_tool(Wrong())
