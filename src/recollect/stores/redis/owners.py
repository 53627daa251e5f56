"""Who has something: the list of a tenant's owners, each asked whether that is still so."""

from __future__ import annotations

import asyncio
import json

from recollect.stores.redis import keys
from recollect.stores.redis.server import Server
from recollect.values import Space, Tier

_AT_ONCE = 16


class Owners:
    """What is listed across owners. The list may name too many, never too few: it is written first."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def of_logs(self, tenant: str) -> list[Space]:
        held = {
            Space(tenant, tier, user=user, agent=agent)
            for user, agent, tier, _ in await self._spaces(tenant, b"logs", b"order:")
        }
        return sorted(held, key=lambda space: (space.tier, space.user, space.agent))

    async def of_tasks(self, tenant: str) -> list[Space]:
        held = [
            Space(tenant, tier, user, agent, session)
            for user, agent, tier, session in await self._spaces(tenant, b"spaces", b"tasks:")
        ]
        return sorted(held, key=str)

    async def _spaces(self, tenant: str, kind: bytes, held_in: bytes) -> list[tuple[str, str, Tier, str]]:
        """The user, agent, tier and session of every space that a tenant's owners list."""
        listed = await self._server.command("SMEMBERS", keys.index_of(tenant))
        turn = asyncio.Semaphore(_AT_ONCE)

        async def of(prefix: bytes) -> list[tuple[str, str, Tier, str]]:
            async with turn:
                names = await self._server.command("HGET", prefix + b"owner", "names")
                listed = await self._server.command("SMEMBERS", prefix + kind) if names else ()
                # The server may have dropped a log by its age, and knows nothing of the list that names it.
                spaces = [one for one in listed if await self._server.command("EXISTS", prefix + held_in + one)]
            if not spaces:
                return []
            _, user, agent = json.loads(names)
            parts = [name.decode("utf-8", "surrogatepass").partition("/") for name in spaces]
            return [(user, agent, tier, session) for tier, _, session in parts]

        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(of(prefix)) for prefix in listed]
        return [one for answer in asked for one in answer.result()]
