"""Whose words an entry holds: only the user's statements and the agent's decisions are learned from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from recollect.lifecycle.spoken import spoken
from recollect.stores.ops import Entry
from recollect.values import Scope

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCOPE = Scope(user="ada", session="s-1")


def entry(kind: str, content: str = "I prefer tea.", importance: float = 0.5, **metadata: Any) -> Entry:
    return Entry(id="e", kind=kind, content=content, at=NOW, metadata=metadata, importance=importance)


def in_conversation(*args: Any, **kwargs: Any):
    return spoken(SCOPE.space("conversation"), entry(*args, **kwargs))


def among_episodes(*args: Any, given: dict[str, Any] | None = None, **kwargs: Any):
    return spoken(SCOPE.space("episodic"), entry(*args, **kwargs, given=given or {}))


def test_in_a_conversation_only_the_user_is_learned_from():
    words = in_conversation("user")
    assert words is not None
    assert (words.text, words.by, words.trust, words.source) == ("I prefer tea.", "user", 1.0, "conversation:s-1")
    for role in ("assistant", "tool", "system", "summary"):
        assert in_conversation(role) is None


def test_among_episodes_a_turn_is_the_users_unless_it_says_otherwise():
    assert among_episodes("turn") is not None
    assert among_episodes("turn", given={"role": "user"}) is not None
    assert among_episodes("turn", given={"role": "assistant"}) is None
    assert among_episodes("turn", given={"speaker": "Tool"}) is None
    assert among_episodes("tool_call") is None
    assert among_episodes("error") is None


def test_of_a_turn_with_names_the_users_part_is_taken():
    words = among_episodes("turn", "User: I prefer tea.\nAssistant: I prefer coffee.\nuser: My name is Ada.")
    assert words is not None
    assert words.text == "I prefer tea.\nMy name is Ada."
    assert among_episodes("turn", "Assistant: My name is Bot.") is None


def test_an_agents_decision_is_learned_with_an_agents_trust():
    words = among_episodes("decision", "Use Postgres for billing.")
    assert words is not None
    assert (words.by, words.trust) == ("agent", 0.8)
    assert [(one.text, one.rule) for one in words.worthy()] == [("Use Postgres for billing.", "decision")]
    assert among_episodes("outcome", "All fine.", importance=0.5) is None
    assert among_episodes("outcome", "The migration failed on the index.", importance=0.8) is not None
    assert among_episodes("decision", "Step 1", given={"task": "t"}) is None  # learned when the task ends


@pytest.mark.parametrize(
    "metadata", [{"recalled": True}, {"trust": 0.3}, {"source": "web"}, {"source": "tool:search"}], ids=str
)
def test_what_is_tainted_or_not_trusted_is_not_learned(metadata: dict[str, Any]):
    assert in_conversation("user", **metadata) is None
    assert among_episodes("turn", given=metadata) is None


def test_trust_is_the_least_that_anything_says():
    words = in_conversation("user", trust=0.6, source="user")
    assert words is not None
    assert words.trust == 0.6


def test_a_recalled_block_is_taken_out_of_what_the_user_said():
    block = "## Relevant knowledge\n- I prefer coffee. (2026-01-01)\n\nI prefer tea."
    words = in_conversation("user", block)
    assert words is not None
    assert words.text == "I prefer tea."
    assert in_conversation("user", "- I prefer coffee. (2026-01-01, session s-3)") is None
    assert among_episodes("decision", "## Relevant knowledge\n- Use Postgres. (2026-01-01)") is None


def test_what_is_not_to_be_kept_is_not_learned_even_by_a_model():
    assert in_conversation("user", "Don't save this: I am looking for a job.") is None
