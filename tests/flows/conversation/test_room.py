"""The skipped log read: a message within the limits reads nothing, and summaries roll at the same messages."""

from __future__ import annotations

import asyncio
from itertools import count

from hypothesis import given

from recollect.stores.in_memory import InMemoryStore
from recollect.testing import ManualClock
from recollect.tiers.conversation import ConversationMemory
from tests.budgets import limit_examples
from tests.flows.conversation.dialogue import conversation_on
from tests.flows.conversation.test_histories import Turn, histories


def conversation_in(store: InMemoryStore, clock: ManualClock) -> ConversationMemory:
    ids = count()
    return conversation_on(
        store, clock, ids=lambda: f"id {next(ids)}", max_tokens=600, max_messages=12, summarize_threshold=9
    )


@limit_examples(0.6)
@given(turns=histories(most_turns=14, most_words=60))
def test_summary_rolls_as_if_every_message_checked_the_log(turns: list[Turn]) -> None:
    async def both() -> None:
        clock = ManualClock()
        sparing = conversation_in(InMemoryStore(clock=clock), clock)
        thorough_store = InMemoryStore(clock=clock)
        thorough = conversation_in(thorough_store, clock)
        for role, content, more in (message for turn in turns for message in turn):
            await sparing.add_message(role, content, **more)
            await thorough_store.write(thorough._build_append(role, content, metadata=more))
            await thorough._roll_summary()
            assert await sparing.export() == await thorough.export()

    asyncio.run(both())


class Counting(InMemoryStore):
    reads = 0

    async def read(self, *args: object, **options: object) -> list:  # type: ignore[type-arg]
        self.reads += 1
        return await super().read(*args, **options)  # type: ignore[arg-type]


async def test_message_within_the_limits_reads_nothing() -> None:
    clock = ManualClock()
    store = Counting(clock=clock)
    conversation = conversation_in(store, clock)
    await conversation.add_message("user", "Good morning.")
    before = store.reads
    for nth in range(9):
        await conversation.add_message("assistant" if nth % 2 == 0 else "user", f"This is number {nth}.")
    assert store.reads == before
    await conversation.add_message("user", "One too many.")
    assert await conversation.summary() is not None
