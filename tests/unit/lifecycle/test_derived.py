"""What follows from things that go: with them, without them, or untouched."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from recollect.lifecycle.derived import Grounds, facts_without
from recollect.stores.ops import Delete, Put
from recollect.values import MemoryItem, Scope

AT = datetime(2026, 1, 1, tzinfo=UTC)
HERE, THERE = Scope(user="ada", session="monday"), Scope(user="ada", session="tuesday")
FACTS = HERE.space("semantic")
GROUNDS = Grounds(frozenset({"said monday"}), {"said tuesday": THERE.space("conversation")})


def fact(id: str, scope: Scope, *derived_from: str, **more: Any) -> MemoryItem:
    return MemoryItem(id=id, content=f"fact {id}", scope=scope, created_at=AT, derived_from=derived_from, **more)


def done(*items: MemoryItem) -> tuple[list[str], dict[str, MemoryItem]]:
    """What is deleted, and what is told anew, when all of monday goes."""
    writes = facts_without(FACTS, items, lambda item: item.scope == HERE, GROUNDS)
    deleted = [write.id for write in writes if isinstance(write, Delete)]
    return deleted, {write.item.id: write.item for write in writes if isinstance(write, Put)}


def test_what_was_said_there_alone_goes():
    assert done(fact("a", HERE, "said monday"), fact("b", HERE), fact("c", THERE)) == (["a", "b"], {})


def test_what_was_said_elsewhere_too_stays_as_theirs():
    told = fact("a", HERE, "said monday", "said tuesday", source="conversation:monday", metadata={"session": "monday"})
    deleted, changed = done(told)
    left = changed["a"]
    assert (deleted, left.scope, left.derived_from) == ([], THERE, ("said tuesday",))
    assert (left.source, dict(left.metadata)) == ("conversation:tuesday", {"session": "tuesday"})


def test_what_was_made_of_it_goes_with_it_at_any_distance():
    nobodys = Scope(user="ada")
    assert done(fact("a", HERE), fact("b", nobodys, "a"), fact("c", nobodys, "b"), fact("d", nobodys, "b", "x")) == (
        ["a", "b", "c"],
        {"d": fact("d", nobodys, "x")},
    )


def test_a_copy_that_goes_takes_nothing_from_the_one_that_stood_for_it():
    deleted, changed = done(fact("a", THERE, "b"), fact("b", HERE, superseded_by="a"))
    assert (deleted, changed["a"].derived_from) == (["b"], ())


def test_a_copy_stands_for_itself_again_when_the_other_goes():
    deleted, changed = done(fact("a", HERE, "b"), fact("b", THERE, superseded_by="a", valid_to=AT))
    assert (deleted, changed["b"].superseded_by, changed["b"].valid_to) == (["a"], None, None)


def test_of_a_chain_the_ends_meet():
    later = datetime(2026, 2, 1, tzinfo=UTC)
    first = fact("a", THERE, superseded_by="b", valid_to=AT, key="k")
    middle = fact("b", HERE, superseded_by="c", key="k")
    last = fact("c", THERE, key="k", valid_from=later)
    deleted, changed = done(first, middle, last)
    assert (deleted, changed["a"].superseded_by, changed["a"].valid_to) == (["b"], "c", later)
