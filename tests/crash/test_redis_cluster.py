"""D6 on a cluster: a primary dies in mid-run, its replica takes over, and what was acknowledged is there.

Replication is asynchronous: what a primary acknowledged in its last moment may be lost with it, as documented. What is
tested is that the loss is at most one write a writer, that nothing is doubled, and that writers go on by themselves.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from recollect.errors import Unsupported
from recollect.stores.redis import RedisStore
from recollect.stores.redis.server import Patience
from recollect.testing.samples import ADA, BOB, append
from tests.crash.errands import Errand, saved_again
from tests.crash.table import Table
from tests.servers.redis import RedisCluster

WRITERS = 6
PATIENCE = Patience(answer=2, altogether=40)


async def test_a_cluster_that_loses_a_primary_goes_on(tmp_path: Path, table: Table) -> None:
    cluster = RedisCluster(tmp_path / "cluster")
    try:
        await asyncio.to_thread(cluster.start)
        store = await RedisStore.open(cluster.url, patience=PATIENCE)
        errands = [
            Errand(f"w{number}", owner=replace(ADA, user=f"u{number}", agent=f"a{number}")) for number in range(WRITERS)
        ]
        running = [asyncio.create_task(errand.run(store, 100_000)) for errand in errands]
        await saved_again(errands)
        await asyncio.sleep(1)
        await asyncio.to_thread(cluster.nodes[1].kill)
        for errand in errands:
            errand.enough = errand.saved + 20
        async with asyncio.timeout(60):
            await asyncio.gather(*running)
        found = [fault for errand in errands for fault in await errand.faults(store, may_lose=1)]
        done = sum(len(errand.appended) + errand.saved for errand in errands)
        lost = sum(errand.lost for errand in errands)
        what = f"{done} writes of {WRITERS} writers, {lost} of its last moment lost (one a writer may be)"
        table.held("D6", f"a primary of six Redis nodes killed: {what}", len(found))
        assert found == []
        await store.close()
    finally:
        cluster.stop()


async def test_a_batch_of_two_owners_is_refused_whole(tmp_path: Path) -> None:
    cluster = RedisCluster(tmp_path / "cluster")
    try:
        await asyncio.to_thread(cluster.start)
        store = await RedisStore.open(cluster.url)
        mine, theirs = ADA.space("conversation"), BOB.space("conversation")
        with pytest.raises(Unsupported, match="one batch for each"):
            await store.write(append("a", space=mine), append("a", space=theirs))
        assert await store.read(mine) == await store.read(theirs) == []
        assert await store.owners("acme") == []
        await store.close()
    finally:
        cluster.stop()
