"""Trust of messages: tool calls and results are detected in every message shape."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from recollect.tiers.messages import TOOL_TRUST, UNKNOWN_TRUST, Message, message_trust

CALL = {"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}]}
BLOCKS = ({"type": "tool_use", "id": "c1", "name": "search", "input": {}},)


@pytest.mark.parametrize(
    ("role", "about", "blocks", "trust"),
    [
        ("user", {}, None, 1.0),
        ("assistant", {"name": "Ada"}, None, 1.0),
        ("assistant", {"task": "t1"}, None, UNKNOWN_TRUST),
        ("tool", {}, None, TOOL_TRUST),
        ("assistant", CALL, None, TOOL_TRUST),
        ("user", {"tool_call_id": "c1"}, None, TOOL_TRUST),
        ("assistant", {}, BLOCKS, TOOL_TRUST),
        ("user", {}, ({"type": "text", "text": "Hello."},), 1.0),
        ("assistant", {**CALL, "trust": 0.2}, None, 0.2),
    ],
)
def test_message_has_the_lowest_trust_of_its_contributors(role: Any, about: dict[str, Any], blocks: Any, trust: float):
    message = Message(role, "Hello.", datetime(2026, 1, 1, tzinfo=UTC), about, "m1", 1, blocks)
    assert message_trust(message) == trust
