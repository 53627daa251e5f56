"""Who has something: the list of a tenant's owners, each asked whether that is still so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from recollect.stores.damage import as_written
from recollect.stores.redis import keys
from recollect.stores.redis.server import Server
from recollect.stores.redis.values import names_in
from recollect.values import Space, Tier

_AT_ONCE = 16
_PAGE = 500

Listed = Callable[[bytes], Awaitable[list[bytes]]]


class Owners:
    """What is listed across owners. The list may name too many, never too few: it is written first."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def of_logs(self, tenant: str) -> list[Space]:
        held = {
            Space(tenant, tier, user=user, agent=agent)
            for user, agent, tier, _ in await self._spaces(tenant, self._logs)
        }
        return sorted(held, key=lambda space: (space.tier, space.user, space.agent))

    async def of_tasks(self, tenant: str) -> list[Space]:
        held = [
            Space(tenant, tier, user, agent, session)
            for user, agent, tier, session in await self._spaces(tenant, self._with_tasks)
        ]
        return sorted(held, key=str)

    async def tenants(self) -> list[str]:
        """By looking at every key there is: the lists of owners name their tenants by a hash."""
        found: set[str] = set()
        for index in await self._lists():
            for prefix in await self._server.command("SMEMBERS", index):
                names = await self._server.command("HGET", prefix + b"owner", "names")
                if names:
                    found.add(names_in(names)[0])
        return [one for one in sorted(found) if await self.of_logs(one) or await self.of_tasks(one)]

    async def counted(self, tenant: str | None) -> dict[Space, int]:
        """Where each owner's logs stand; the counters stay when a log is empty."""
        found: dict[Space, int] = {}
        for index in await self._lists() if tenant is None else [keys.index_of(tenant)]:
            for prefix in await self._server.command("SMEMBERS", index):
                found |= await self._of_owner(prefix)
        return found

    async def _of_owner(self, prefix: bytes) -> dict[Space, int]:
        told = await self._server.command("HGETALL", prefix + b"owner")
        held = dict(told.items() if isinstance(told, dict) else zip(told[::2], told[1::2], strict=True))
        if b"names" not in held:
            return {}
        tenant, user, agent = names_in(held[b"names"])
        found: dict[Space, int] = {}
        for name, last in held.items():
            kind, _, within = name.decode("utf-8", "surrogatepass").partition(":")
            if kind == "seq":
                tier, _, session = within.partition("/")
                with as_written(f"the count of a log of tenant {tenant!r}"):
                    found[Space(tenant, cast(Tier, tier), user, agent, session)] = int(last)
        return found

    async def _lists(self) -> list[bytes]:
        """The list of owners of every tenant."""
        return await self._server.names(keys.ROOT + b"{*}:owners")

    async def _spaces(self, tenant: str, listed: Listed) -> list[tuple[str, str, Tier, str]]:
        """The user, agent, tier and session of every space that a tenant's owners list."""
        owners = await self._server.command("SMEMBERS", keys.index_of(tenant))
        turn = asyncio.Semaphore(_AT_ONCE)

        async def of(prefix: bytes) -> list[tuple[str, str, Tier, str]]:
            async with turn:
                names = await self._server.command("HGET", prefix + b"owner", "names")
                spaces = await listed(prefix) if names else []
            if not spaces:
                return []
            _, user, agent = names_in(names)
            parts = [name.decode("utf-8", "surrogatepass").partition("/") for name in spaces]
            return [(user, agent, cast("Tier", tier), session) for tier, _, session in parts]

        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(of(prefix)) for prefix in owners]
        except ExceptionGroup as several:  # what went wrong with one is what the caller is told
            raise several.exceptions[0] from several
        return [one for answer in asked for one in answer.result()]

    async def _with_tasks(self, prefix: bytes) -> list[bytes]:
        return list(await self._server.command("SMEMBERS", prefix + b"spaces"))

    async def _logs(self, prefix: bytes) -> list[bytes]:
        """A log of each tier that an owner has any of."""
        tiers: dict[bytes, list[bytes]] = {}
        for name in await self._server.command("HKEYS", prefix + b"logs"):
            tiers.setdefault(name.partition(b"/")[0], []).append(name)
        return [names[0] for names in tiers.values() if await self._any(prefix, names)]

    async def _any(self, prefix: bytes, names: Sequence[bytes]) -> bool:
        """The server may have dropped a log by its age, and knows nothing of the list that names it."""
        for at in range(0, len(names), _PAGE):
            orders = [prefix + b"order:" + name for name in names[at : at + _PAGE]]
            if await self._server.command("EXISTS", *orders):
                return True
        return False
