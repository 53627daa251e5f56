"""How far a message is trusted: a tool that had a part in it is seen in every shape that models speak."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from recollect.tiers.messages import Message
from recollect.tiers.trust import IN_TOOLS, UNKNOWN, trust_of

CALL = {"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}]}
BLOCKS = ({"type": "tool_use", "id": "c1", "name": "search", "input": {}},)


@pytest.mark.parametrize(
    ("role", "about", "blocks", "trust"),
    [
        ("user", {}, None, 1.0),
        ("assistant", {"name": "Ada"}, None, 1.0),
        ("assistant", {"task": "t1"}, None, UNKNOWN),
        ("tool", {}, None, IN_TOOLS),
        ("assistant", CALL, None, IN_TOOLS),
        ("user", {"tool_call_id": "c1"}, None, IN_TOOLS),
        ("assistant", {}, BLOCKS, IN_TOOLS),
        ("user", {}, ({"type": "text", "text": "Hello."},), 1.0),
        ("assistant", {**CALL, "trust": 0.2}, None, 0.2),
    ],
)
def test_a_message_is_trusted_as_far_as_those_who_had_a_part_in_it(
    role: Any, about: dict[str, Any], blocks: Any, trust: float
):
    message = Message(role, "Hello.", datetime(2026, 1, 1, tzinfo=UTC), about, "m1", 1, blocks)
    assert trust_of(message) == trust
