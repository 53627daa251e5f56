"""Export and import of a conversation."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recollect.errors import BadInput
from recollect.testing import ManualClock
from recollect.tiers.conversation import ConversationMemory
from tests.flows.conversation.dialogue import ADA, Maker, listing, talk, texts


class TestExport:
    async def test_export_and_import_preserve_everything(self, make: Maker, clock: ManualClock):
        here, there = make(summarizer=listing), make(replace(ADA, session="s2"))
        await here.add_message("system", "Be brief.")
        for n in range(20):
            await here.add_message("user", f"message {n}", n=n, tags=["a", {"b": None}])
            clock.forward(timedelta(seconds=1.000001))
            await here.add_message("assistant", "", tool_calls=[{"id": f"c{n}"}])
            await here.add_message("tool", "", tool_call_id=f"c{n}")
        exported = await here.export()
        await there.add_message("user", "what was here before")
        await there.import_from(json.loads(json.dumps(exported)))
        assert await there.export() == exported
        assert await there.get_messages_for_llm() == await here.get_messages_for_llm()
        assert await there.summary() == await here.summary()
        assert await there.get_last_n(1000) == await here.get_last_n(1000)
        await there.import_from(exported)
        assert await there.export() == exported

    async def test_imported_conversation_continues_to_summarize(self, make: Maker):
        here, there = make(summarizer=listing), make(replace(ADA, session="s2"), summarizer=listing)
        await talk(here, 50)
        await there.import_from(await here.export())
        await talk(there, 50, start=50)
        covered = (await there.summary() or "").split()
        assert covered == [str(n) for n in range(len(covered))]
        assert len(covered) > 50

    async def test_import_accepts_a_plain_list_of_messages(self, conversation: ConversationMemory):
        await conversation.import_from(
            {
                "messages": [{"role": "user", "content": "Hi.", "timestamp": "2026-01-01T00:00:00+00:00"}],
                "summary": "They met before.",
            }
        )
        shown = await conversation.get_messages_for_llm()
        assert "They met before." in shown[0]["content"]
        assert shown[-1] == {"role": "user", "content": "Hi."}
        assert await conversation.summary() == "They met before."

    @pytest.mark.parametrize(
        "data",
        [
            [],
            {"messages": "hello"},
            {"messages": [{"role": "user"}]},
            {"messages": ["hello"]},
            {"messages": [{"role": "robot", "content": "x"}]},
            {"messages": [{"role": "user", "content": "x", "timestamp": "yesterday"}]},
            {"messages": [{"role": "user", "content": "x", "timestamp": "2026-01-01T00:00:00"}]},
            {"messages": [{"role": "user", "content": "x", "timestamp": 5}]},
            {"messages": [{"role": "user", "content": "x", "id": "a"}, {"role": "user", "content": "y", "id": "a"}]},
            {"messages": [], "summary": 5},
            {"messages": [], "summary": "x", "rolled": {"messages": 1}},
            {"messages": [], "summary": "x", "rolled": {"messages": 0, "most": "all"}},
            {"messages": [], "format": 2},
        ],
    )
    async def test_import_invalid_data_raises_and_changes_nothing(self, conversation: ConversationMemory, data: Any):
        await conversation.add_message("user", "still here")
        with pytest.raises(BadInput):
            await conversation.import_from(data)
        assert texts(await conversation.get_messages_for_llm()) == ["still here"]
