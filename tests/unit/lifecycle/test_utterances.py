"""Utterances of log entries: only statements of the user and decisions of the agent are learned."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from recollect.lifecycle.utterances import parse_utterance
from recollect.stores.writes import Entry
from recollect.types import Scope

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCOPE = Scope(user="ada", session="s-1")


def entry(kind: str, content: str = "I prefer tea.", importance: float = 0.5, **metadata: Any) -> Entry:
    return Entry(id="e", kind=kind, content=content, at=NOW, metadata=metadata, importance=importance)


def parse_in_conversation(*args: Any, **kwargs: Any):
    return parse_utterance(SCOPE.space("conversation"), entry(*args, **kwargs))


def parse_in_episodes(*args: Any, given: dict[str, Any] | None = None, **kwargs: Any):
    return parse_utterance(SCOPE.space("episodic"), entry(*args, **kwargs, given=given or {}))


def test_in_a_conversation_only_the_user_is_learned_from():
    utterance = parse_in_conversation("user")
    assert utterance is not None
    assert (utterance.text, utterance.speaker, utterance.trust, utterance.source) == (
        "I prefer tea.",
        "user",
        1.0,
        "conversation:s-1",
    )
    for role in ("assistant", "tool", "system", "summary"):
        assert parse_in_conversation(role) is None


def test_episode_turn_belongs_to_the_user_unless_marked():
    assert parse_in_episodes("turn") is not None
    assert parse_in_episodes("turn", given={"role": "user"}) is not None
    assert parse_in_episodes("turn", given={"role": "assistant"}) is None
    assert parse_in_episodes("turn", given={"speaker": "Tool"}) is None
    assert parse_in_episodes("tool_call") is None
    assert parse_in_episodes("error") is None


def test_user_part_of_a_labelled_turn_is_used():
    utterance = parse_in_episodes("turn", "User: I prefer tea.\nAssistant: I prefer coffee.\nuser: My name is Ada.")
    assert utterance is not None
    assert utterance.text == "I prefer tea.\nMy name is Ada."
    assert parse_in_episodes("turn", "Assistant: My name is Bot.") is None


def test_agent_decision_is_learned_with_agent_trust():
    utterance = parse_in_episodes("decision", "Use Postgres for billing.")
    assert utterance is not None
    assert (utterance.speaker, utterance.trust) == ("agent", 0.8)
    assert [(one.text, one.rule) for one in utterance.find_promotable()] == [("Use Postgres for billing.", "decision")]
    assert parse_in_episodes("outcome", "All fine.", importance=0.5) is None
    assert parse_in_episodes("outcome", "The migration failed on the index.", importance=0.8) is not None
    assert parse_in_episodes("decision", "Step 1", given={"task": "t"}) is None  # learned when the task ends


@pytest.mark.parametrize(
    "metadata", [{"recalled": True}, {"trust": 0.3}, {"source": "web"}, {"source": "tool:search"}], ids=str
)
def test_tainted_or_untrusted_entry_is_not_learned(metadata: dict[str, Any]):
    assert parse_in_conversation("user", **metadata) is None
    assert parse_in_episodes("turn", given=metadata) is None


def test_lowest_given_trust_is_used():
    utterance = parse_in_conversation("user", trust=0.6, source="user")
    assert utterance is not None
    assert utterance.trust == 0.6


def test_recalled_block_is_removed_from_a_user_message():
    block = "## Relevant knowledge\n- I prefer coffee. (2026-01-01)\n\nI prefer tea."
    utterance = parse_in_conversation("user", block)
    assert utterance is not None
    assert utterance.text == "I prefer tea."
    assert parse_in_conversation("user", "- I prefer coffee. (2026-01-01, session s-3)") is None
    assert parse_in_episodes("decision", "## Relevant knowledge\n- Use Postgres. (2026-01-01)") is None


def test_opted_out_message_is_not_learned():
    assert parse_in_conversation("user", "Don't save this: I am looking for a job.") is None
