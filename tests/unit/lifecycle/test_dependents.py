"""Facts that depend on erased data: deleted, moved, or unchanged."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from recollect.erasure.selection import FactSources, build_fact_writes
from recollect.stores.writes import Delete, Put
from recollect.types import MemoryItem, Scope

AT = datetime(2026, 1, 1, tzinfo=UTC)
HERE, THERE = Scope(user="ada", session="monday"), Scope(user="ada", session="tuesday")
FACTS = HERE.space("semantic")
GROUNDS = FactSources(frozenset({"said monday"}), {"said tuesday": THERE.space("conversation")})


def fact(id: str, scope: Scope, *derived_from: str, **more: Any) -> MemoryItem:
    return MemoryItem(id=id, content=f"fact {id}", scope=scope, created_at=AT, derived_from=derived_from, **more)


def erase_monday(*items: MemoryItem) -> tuple[list[str], dict[str, MemoryItem]]:
    """Return the deleted ids and the rewritten facts after the erasure of the session `monday`."""
    writes = build_fact_writes(FACTS, items, lambda item: item.scope == HERE, GROUNDS)
    deleted = [write.id for write in writes if isinstance(write, Delete)]
    return deleted, {write.item.id: write.item for write in writes if isinstance(write, Put)}


def test_facts_only_from_the_erased_session_are_deleted():
    assert erase_monday(fact("a", HERE, "said monday"), fact("b", HERE), fact("c", THERE)) == (["a", "b"], {})


def test_fact_with_another_source_moves_to_that_session():
    shared = fact(
        "a", HERE, "said monday", "said tuesday", source="conversation:monday", metadata={"session": "monday"}
    )
    deleted, changed = erase_monday(shared)
    moved = changed["a"]
    assert (deleted, moved.scope, moved.derived_from) == ([], THERE, ("said tuesday",))
    assert (moved.source, dict(moved.metadata)) == ("conversation:tuesday", {"session": "tuesday"})


def test_derived_facts_are_deleted_at_any_depth():
    without_session = Scope(user="ada")
    assert erase_monday(
        fact("a", HERE),
        fact("b", without_session, "a"),
        fact("c", without_session, "b"),
        fact("d", without_session, "b", "x"),
    ) == (
        ["a", "b", "c"],
        {"d": fact("d", without_session, "x")},
    )


def test_deleted_duplicate_does_not_delete_its_survivor():
    deleted, changed = erase_monday(fact("a", THERE, "b"), fact("b", HERE, superseded_by="a"))
    assert (deleted, changed["a"].derived_from) == (["b"], ())


def test_duplicate_is_restored_when_its_survivor_is_deleted():
    deleted, changed = erase_monday(fact("a", HERE, "b"), fact("b", THERE, superseded_by="a", valid_to=AT))
    assert (deleted, changed["b"].superseded_by, changed["b"].valid_to) == (["a"], None, None)


def test_chain_of_superseded_items_is_relinked():
    later = datetime(2026, 2, 1, tzinfo=UTC)
    first = fact("a", THERE, superseded_by="b", valid_to=AT, key="k")
    middle = fact("b", HERE, superseded_by="c", key="k")
    last = fact("c", THERE, key="k", valid_from=later)
    deleted, changed = erase_monday(first, middle, last)
    assert (deleted, changed["a"].superseded_by, changed["a"].valid_to) == (["b"], "c", later)
