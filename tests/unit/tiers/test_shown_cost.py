"""What a message costs when it is shown, told without putting it together: it must be the same to the token."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from recollect.tiers.messages import Message, cost, shown, shown_cost
from recollect.words.tokens import count_tokens

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
@pytest.mark.parametrize("most", [16, 5000])
def test_a_message_costs_what_it_costs_to_show_it(message: Message, most: int):
    # Mutants: what goes with a text is not counted; the frame is not; a long text is counted whole.
    assert shown_cost(message, most, count_tokens) == cost(shown(message, most, count_tokens), count_tokens)
