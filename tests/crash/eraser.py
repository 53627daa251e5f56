"""A process that erases somebody, or looks on meanwhile; and who comes after one that was killed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.crash import mutants
from tests.crash.places import tiers


def tell(**told: Any) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


async def erase(place: str) -> None:
    from recollect import AgentMemory
    from tests.embedders import HashEmbedder

    async with AgentMemory.open(tiers(place), tenant="acme", embedder=HashEmbedder()) as memory:
        receipt = await memory.erase(user="ada")
        tell(receipt=receipt.as_json())


async def again(place: str | Path) -> dict[str, Any]:
    """Go on after somebody else. Nothing is said about whom: the ledger knows that something is open."""
    from recollect import AgentMemory
    from tests.embedders import HashEmbedder

    async with AgentMemory.open(tiers(str(place)), tenant="acme", embedder=HashEmbedder()) as memory:
        await memory.lifecycle.run_once()
        receipts = await memory.erasures()
        holds = [(await memory.verify_erasure(receipt)).holds for receipt in receipts]
        told = [receipt.as_json() for receipt in receipts]
        return {"receipts": told, "holds": holds, "faults": await memory.check()}


async def look_on(path: Path, hold: bool) -> None:
    """Has everything of the subject in its caches, and may stand in the middle of a question."""
    import numpy as np

    from recollect.settings import Settings
    from recollect.stores.sqlite import SqliteStore, key_of
    from recollect.stores.sqlite.connection import open_connection
    from recollect.stores.where import Where
    from tests.crash.canaries import DIM, scope_of

    key = key_of(Settings.load())
    store = SqliteStore.open(path, readers=1, key=key)
    where = Where(scope_of("ada").space("semantic"))
    tell(found=len(await store.nearest(where, np.ones(DIM, np.float32), limit=5)))
    reader = open_connection(path, writes=False, key=key)
    if hold:
        reader.execute("begin")
        reader.execute("select count(*) from records").fetchall()
    tell(holding=hold)
    for _ in sys.stdin:
        if reader.in_transaction:
            reader.execute("rollback")
        found = await store.nearest(where, np.ones(DIM, np.float32), limit=5)
        other = Where(scope_of("bob").space("semantic"))
        kept = len(await store.nearest(other, np.ones(DIM, np.float32), limit=5))
        tell(found=len(found), others=kept, cached=len(store._search.matrices._entries))
    reader.close()
    await store.close()


def main(arguments: list[str]) -> None:
    mutants.apply()
    match arguments:
        case ["erase", path]:
            asyncio.run(erase(path))
        case ["again", path]:
            tell(**asyncio.run(again(path)))
        case ["look on", path, hold]:
            asyncio.run(look_on(Path(path), hold == "hold"))


if __name__ == "__main__":
    main(sys.argv[1:])
