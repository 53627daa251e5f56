"""Token cost of a rendered message, computed without rendering it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from recollect.language.analysis import count_tokens
from recollect.tiers.messages import Message, count_message_tokens, count_rendered_tokens, render_message

_AT = datetime(2026, 1, 1, tzinfo=UTC)
_LONG = "The quick brown fox jumps over the lazy dog. " * 40
_CALLS = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]


@pytest.mark.parametrize(
    "message",
    [
        Message("user", "Hello there.", _AT),
        Message("user", _LONG, _AT, {"turn": "1"}),
        Message("assistant", "", _AT, {"tool_calls": _CALLS}),
        Message("tool", "Four degrees.", _AT, {"tool_call_id": "c1", "name": "look"}),
        Message("user", "Look.", _AT, blocks=({"type": "text", "text": "Look."}, {"type": "image", "url": "x"})),
    ],
)
@pytest.mark.parametrize("max_tokens", [16, 5000])
def test_rendered_cost_equals_the_cost_of_the_rendered_message(message: Message, max_tokens: int):
    # Mutants: tool calls and results are not counted; the frame is not counted; a long text is counted in full.
    assert count_rendered_tokens(message, max_tokens, count_tokens) == count_message_tokens(
        render_message(message, max_tokens, count_tokens), count_tokens
    )
