"""Conversation memory on every embedded store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from recollect.settings import Settings
from recollect.stores.factory import TierStores, open_stores
from recollect.testing import ManualClock
from recollect.tiers.conversation import ConversationMemory
from recollect.types import Scope
from tests.flows.conversation.dialogue import ADA, Maker, conversation_on


@pytest_asyncio.fixture
async def stores(place: str, clock: ManualClock) -> AsyncIterator[TierStores]:
    opened = await open_stores(place, Settings(), clock)
    yield opened
    await opened.close()


@pytest.fixture
def make(stores: TierStores, clock: ManualClock) -> Maker:
    def make_one(scope: Scope = ADA, **options: Any) -> ConversationMemory:
        return conversation_on(stores.log("conversation"), clock, scope, **options)

    return make_one


@pytest.fixture
def conversation(make: Maker) -> ConversationMemory:
    return make()
