"""A block for a prompt: within its budget, in order, every hit shown or accounted for."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from recollect.recall.pack import pack, rendered
from recollect.values import Hit, MemoryItem, Scope, Turn, Why
from recollect.words.tokens import count_tokens

NOW = datetime(2026, 1, 1, tzinfo=UTC)
texts = st.text(min_size=1).filter(str.strip)


def hit(content: str, speaker: str | None = None, source: str = "user") -> Hit:
    turn = Turn("s1", 0.0, speaker) if speaker is not None else None
    item = MemoryItem(id=content[:9], content=content, scope=Scope(), created_at=NOW, turn=turn, source=source)
    return Hit(item, "semantic", 0.9, 1.0, Why())


@given(st.lists(texts, max_size=6), st.integers(0, 200))
def test_a_budget_is_never_exceeded(contents: list[str], budget: int):
    context = pack("query", [hit(content) for content in contents], budget)
    assert context.tokens <= budget
    assert count_tokens(str(context)) == context.tokens
    assert len(context.hits) + len(context.left_out) == len(contents)
    assert bool(context) == bool(context.hits)


@given(st.lists(texts, min_size=1, max_size=6))
def test_without_a_budget_everything_is_shown_in_order(contents: list[str]):
    hits = [hit(content) for content in contents]
    context = pack("query", hits, None)
    assert list(context.hits) == hits
    assert context.left_out == ()
    assert len(str(context).splitlines()) == len(contents) + 1


@given(texts, st.text(), texts)
def test_an_item_is_one_line_that_begins_like_data(content: str, speaker: str, source: str):
    line = rendered(hit(content, " ".join(speaker.split()), source).item)
    assert len(line.splitlines()) == 1
    assert line.startswith("- ")


def test_what_does_not_fit_leaves_room_for_what_does():
    short, long = hit("short"), hit("word " * 500)
    context = pack("query", [long, short], 40)
    assert list(context.hits) == [short]
    assert [out.item for out in context.left_out] == [long.item]
    assert "40" in context.left_out[0].reason


def test_a_very_long_text_is_shown_in_part_and_says_so():
    line = rendered(hit("word " * 10_000).item)
    assert len(line) < 2000
    assert "50,000 characters" in line


def test_nothing_is_nothing():
    assert not pack("query", [], 100)
    assert str(pack("query", [], None)) == ""
