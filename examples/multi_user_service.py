"""Many users in one process: one store, a scope for each request, and nobody sees what belongs to another.

    python examples/multi_user_service.py                         twenty users at once, on a store that is thrown away
    python examples/multi_user_service.py --users 200 --store service.db

A web service does what `Service` does: it opens the memory once, when it starts, and looks at it as the user of the
request with `scoped`, which costs nothing. The scope is part of every key in the store, so no filter can be forgotten.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from recollect import AgentMemory, Context

CITIES = ("Lisbon", "Porto", "Graz", "Oslo", "Lyon", "Turin", "Cork", "Gdansk")


class Service:
    """What a request handler calls; `memory` is opened once and shared."""

    def __init__(self, memory: AgentMemory) -> None:
        self._memory = memory

    async def tell(self, user: str, text: str, key: str) -> None:
        await self._memory.scoped(user=user).remember(text, key=key)

    async def ask(self, user: str, question: str) -> Context:
        return await self._memory.scoped(user=user).recall(question, n=3)


async def serve(service: Service, users: list[str]) -> None:
    homes = {user: f"I live in {CITIES[at % len(CITIES)]}, flat {100 + at}." for at, user in enumerate(users)}

    started = time.perf_counter()
    async with asyncio.TaskGroup() as requests:
        for user, home in homes.items():
            requests.create_task(service.tell(user, home, "home"))
    print(f"{len(users)} users have told us in {time.perf_counter() - started:.2f} s")

    started = time.perf_counter()
    async with asyncio.TaskGroup() as requests:
        asked = {user: requests.create_task(service.ask(user, "Where do I live?")) for user in users}
    print(f"{len(users)} users have asked in {time.perf_counter() - started:.2f} s")

    # All of them at the same time, in the same words, and each is told what is theirs alone.
    told = {user: [hit.item.content for hit in task.result().hits] for user, task in asked.items()}
    print(f"{sum(told[user] == [homes[user]] for user in users)} of them were told their own home and nothing else")

    # A change is the user's own, too, and what held before stays readable.
    first, second = users[:2]
    await service.tell(first, "I live in Kyoto, flat 1.", "home")
    for user in (first, second):
        print(f"{user}: {(await service.ask(user, 'Where do I live?')).hits[0].item.content}")


async def main(store: str, users: int) -> None:
    async with AgentMemory.open(store) as memory:
        await serve(Service(memory), [f"user-{number}" for number in range(1, users + 1)])


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--store", default="memory://", help="nothing is kept unless a file is named")
    arguments.add_argument("--users", type=int, default=20)
    given = arguments.parse_args()
    asyncio.run(main(given.store, max(2, given.users)))
