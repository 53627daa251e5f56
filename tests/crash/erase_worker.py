"""A process that erases a user, reads during an erasure, or finishes the erasure of a killed process."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.crash import mutants
from tests.crash.store_locations import tiers


def report(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


async def erase(place: str) -> None:
    from recollect import AgentMemory
    from tests.embedders import HashEmbedder

    async with AgentMemory.open(tiers(place), tenant="acme", embedder=HashEmbedder()) as memory:
        receipt = await memory.erase(user="ada")
        report(receipt=receipt.as_json())


async def resume_erasure(place: str | Path) -> dict[str, Any]:
    """Finish the open erasures of another process; the store's ledger names them."""
    from recollect import AgentMemory
    from tests.embedders import HashEmbedder

    async with AgentMemory.open(tiers(str(place)), tenant="acme", embedder=HashEmbedder()) as memory:
        await memory.lifecycle.run_once()
        receipts = await memory.erasures()
        holds = [(await memory.verify_erasure(receipt)).holds for receipt in receipts]
        return {
            "receipts": [receipt.as_json() for receipt in receipts],
            "holds": holds,
            "faults": await memory.check(),
        }


async def read_during_erasure(path: Path, hold: bool) -> None:
    """Fill the caches with the user's data, and with `hold` keep a read transaction open."""
    import numpy as np

    from recollect.settings import Settings
    from recollect.stores.filters import Where
    from recollect.stores.sqlite import SqliteStore, load_key
    from recollect.stores.sqlite.connection import open_connection
    from recollect.testing.factories import find_nearest
    from tests.crash.canaries import DIM, make_scope

    key = load_key(Settings.load())
    store = SqliteStore.open(path, readers=1, key=key)
    where = Where(make_scope("ada").space("semantic"))
    report(found=len(await find_nearest(store, where, np.ones(DIM, np.float32), limit=5)))
    reader = open_connection(path, writes=False, key=key)
    if hold:
        reader.execute("begin")
        reader.execute("select count(*) from records").fetchall()
    report(holding=hold)
    for _ in sys.stdin:
        if reader.in_transaction:
            reader.execute("rollback")
        found = await find_nearest(store, where, np.ones(DIM, np.float32), limit=5)
        other = Where(make_scope("bob").space("semantic"))
        others = len(await find_nearest(store, other, np.ones(DIM, np.float32), limit=5))
        report(found=len(found), others=others, cached=len(store._vector_cache._entries))
    reader.close()
    await store.close()


def main(arguments: list[str]) -> None:
    mutants.apply()
    match arguments:
        case ["erase", path]:
            asyncio.run(erase(path))
        case ["resume", path]:
            report(**asyncio.run(resume_erasure(path)))
        case ["read", path, hold]:
            asyncio.run(read_during_erasure(Path(path), hold == "hold"))


if __name__ == "__main__":
    main(sys.argv[1:])
