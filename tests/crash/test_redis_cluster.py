"""D6 on a cluster: a primary is killed, its replica takes over, and the acknowledged writes are there.

Replication is asynchronous: a primary may lose the writes that it acknowledged last, as documented. The test checks
that each writer loses at most one write, that no write is duplicated, and that the writers continue without help.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from recollect.errors import Unsupported
from recollect.stores.redis import RedisStore
from recollect.stores.redis.client import RedisTimeouts
from recollect.testing.factories import ADA, BOB, make_append
from tests.crash.result_table import Table
from tests.crash.workload import Writer, wait_for_saves
from tests.servers.redis import RedisCluster

WRITERS = 6
PATIENCE = RedisTimeouts(response=2, total=40)


@pytest.mark.promise("D6")
async def test_cluster_fails_over_when_primary_is_killed(tmp_path: Path, table: Table) -> None:
    cluster = RedisCluster(tmp_path / "cluster")
    try:
        await asyncio.to_thread(cluster.start)
        store = await RedisStore.open(cluster.url, patience=PATIENCE)
        writers = [
            Writer(f"w{number}", owner=replace(ADA, user=f"u{number}", agent=f"a{number}")) for number in range(WRITERS)
        ]
        running = [asyncio.create_task(writer.run(store, 100_000)) for writer in writers]
        await wait_for_saves(writers)
        await asyncio.sleep(1)
        await asyncio.to_thread(cluster.nodes[1].kill)
        for writer in writers:
            writer.enough = writer.saved + 20
        async with asyncio.timeout(60):
            await asyncio.gather(*running)
        found = [fault for writer in writers for fault in await writer.find_faults(store, may_lose=1)]
        done = sum(len(writer.appended) + writer.saved for writer in writers)
        lost = sum(writer.lost for writer in writers)
        what = f"{done} writes of {WRITERS} writers, {lost} lost at the failover (one per writer is allowed)"
        table.add_result("D6", f"a primary of six Redis nodes killed: {what}", len(found))
        assert found == []
        await store.close()
    finally:
        cluster.stop()


async def test_batch_of_two_owners_is_rejected_whole(tmp_path: Path) -> None:
    cluster = RedisCluster(tmp_path / "cluster")
    try:
        await asyncio.to_thread(cluster.start)
        store = await RedisStore.open(cluster.url)
        mine, theirs = ADA.space("conversation"), BOB.space("conversation")
        with pytest.raises(Unsupported, match="one batch for each"):
            await store.write(make_append("a", space=mine), make_append("a", space=theirs))
        assert await store.read(mine) == await store.read(theirs) == []
        assert await store.owners("acme") == []
        await store.close()
    finally:
        cluster.stop()
