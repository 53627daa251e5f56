"""What a model is told of a typed function."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

import pytest

from recollect.agent import tool
from recollect.agent.docstrings import told
from recollect.agent.schema import signature_of
from recollect.agent.tools import tool_of
from recollect.errors import BadInput


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    city: str
    zip: int = 0
    tags: list[str] = field(default_factory=list)


class Guest(TypedDict):
    name: str
    age: NotRequired[int]


def book(  # noqa: PLR0913 - one of each
    place: Place,
    guests: list[Guest],
    colour: Colour = Colour.RED,
    *,
    kind: Literal["single", "double"] = "single",
    nights: int = 1,
    price: float | None = None,
    extras: dict[str, bool] | None = None,
    note: Optional[str] = None,  # noqa: UP045 - people write it so
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


def test_a_signature_becomes_a_schema():
    # Mutant: a parameter with a default that is required. Mutant: the key in the schema.
    schema = tool_of(book).spec.parameters
    assert schema["required"] == ["place", "guests"]
    assert schema["additionalProperties"] is False
    assert schema["properties"] == {
        "place": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "zip": {"type": "integer"},
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
        },
        "anything": {},
        "marks": {"type": "array", "items": {"type": "integer"}},
        "why": {"type": "string", "description": "The reason.", "default": ""},
    }


def test_the_description_is_what_stands_before_the_sections():
    assert tool_of(book).spec.description == "Book a room.\n\nIt is paid at once."
    assert tool_of(book).wants_key
    assert told(lambda: None).description == ""


def test_methods_partials_and_objects_are_tools_too():
    class Desk:
        """A desk."""

        def ring(self, times: int) -> str:
            """Ring the bell."""
            return "ring " * times

        def __call__(self, name: str) -> str:
            """Call somebody."""
            return name

    ring = tool_of(Desk().ring)
    assert (ring.spec.name, list(ring.spec.parameters["properties"])) == ("ring", ["times"])
    called = tool_of(Desk())
    assert (called.spec.name, called.spec.description) == ("Desk", "Call somebody.")
    assert called.spec.parameters["properties"] == {"name": {"type": "string"}}
    bound = tool_of(functools.partial(book, Place("Lisbon")))
    assert bound.spec.name == "book"
    assert "place" not in bound.spec.parameters["properties"]


def test_the_decorator_says_what_the_signature_does_not():
    @tool(name="web-search", source="web", timeout=5, on_unknown="ask")
    def search(q: str) -> str:
        return q

    made = tool_of(search)
    assert (made.spec.name, made.trust, made.options.timeout, made.options.on_unknown) == ("web-search", 0.3, 5, "ask")
    assert tool_of(tool(book)).trust == 0.6


@pytest.mark.parametrize(
    ("options", "says"),
    [({"timeout": 0}, "timeout"), ({"on_unknown": "hope"}, "on_unknown"), ({"source": ""}, "source")],
)
def test_what_it_cannot_mean_is_refused(options: dict[str, Any], says: str):
    with pytest.raises(BadInput, match=says):
        tool(**options)


def test_what_no_model_can_write_is_refused_by_name():
    def at(when: datetime) -> None: ...

    def many(*things: str) -> None: ...

    def open_ended(**things: str) -> None: ...

    def lost(thing: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    for function, says in ((at, "'when'.*datetime"), (many, "things"), (open_ended, "things"), (lost, "Nowhere")):
        with pytest.raises(BadInput, match=says):
            signature_of(function, function.__name__)
    with pytest.raises(BadInput, match="no name for a tool"):
        tool_of(lambda: None)
    with pytest.raises(BadInput, match="no name for a tool"):
        tool_of(tool(name="a b")(book))


def test_an_object_with_a_schema_needs_a_way_to_call_it():
    class Silent:
        def to_api_schema(self) -> dict[str, Any]:
            return {"name": "silent", "input_schema": {"type": "object"}}

    class Wrong:
        def to_api_schema(self) -> str:
            return "silent"

    with pytest.raises(BadInput, match="cannot be called"):
        tool_of(Silent())
    with pytest.raises(BadInput, match="to_api_schema"):
        tool_of(Wrong())
