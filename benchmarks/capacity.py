"""Capacity of PostgreSQL for many users: measured bytes and processor time per item and call, and a simulated cluster.

It stores facts and turns on a PostgreSQL that it starts, and measures their bytes in each table and the processor time
of the server and of the client per call. Then it places users of uneven size on shards by the hash of their tenant, as
Citus or a router does, and reports what a shard holds, what it has to do in the busiest hour, and which limit it
reaches first. It assumes that a call costs a large server as much as this one, apart from reads of the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from report import console, create_progress, print_table, save_json
from rich.progress import Progress
from synthetic import KnownVectors, build_collection

from recollect import AgentMemory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.servers.postgres import Server

_USERS = 50
_ITEMS_PER_USER = 200
_TURNS_PER_USER = 20
_CALLS = 200
_SEED = 20261119
_PARTITIONS = 16
_TICKS = os.sysconf("SC_CLK_TCK")
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Workload:
    """The size and the activity of the simulated service."""

    users: int = 10_000_000
    items: int = 10_000_000_000
    users_per_tenant: float = 1_000.0
    """Mean of the tenants; their sizes follow a power law."""
    daily_users: float = 0.1
    """Share of the users who are active on a day."""
    turns_per_day: int = 20
    """Turns of an active user; each is one `record_turn` and one `recall`."""
    peak: float = 3.0
    """The busiest hour relative to the mean."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A database server; a replica of each is counted in the total."""

    memory_gib: int = 256
    disk_gib: int = 8_192
    cores: int = 32
    rewrite_mib_per_second: float = 200.0
    """Speed of a rewrite of a table with its indexes, which locks it."""
    max_rewrite_minutes: float = 10.0
    """How long one erasure may lock a partition."""
    max_load: float = 0.5
    """Share of the cores and of the disk that may be in use, so that a peak and a vacuum fit."""
    usd_per_month: float = 2_500.0
    """An assumption; put in the price of your provider."""


def measure_cpu(pid: int) -> float:
    """Return the processor seconds of a server and all its processes, those that have ended included."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid or stat.parent.name == str(pid):
            total += int(fields[11]) + int(fields[12])
            if stat.parent.name == str(pid):
                total += int(fields[13]) + int(fields[14])
    return total / _TICKS


async def measure(bar: Progress) -> dict[str, Any]:
    """Fill a server and return bytes per item by table, and processor milliseconds per call."""
    server = Server(("max_connections=100",))
    try:
        url, embedder = server.create("capacity"), KnownVectors()
        rng = np.random.default_rng(_SEED)
        task = bar.add_task("filling PostgreSQL", total=_USERS)
        async with AgentMemory.open(url, embedder=embedder) as memory:
            for number in range(_USERS):
                collection = build_collection(f"u{number}", _ITEMS_PER_USER, questions=_CALLS)
                embedder.add(collection.texts, collection.rows)
                scoped = memory.scoped(tenant=f"t{number % 10}", user=f"u{number}", session="s")
                await scoped.semantic.add_many(collection.build_facts())
                for turn in collection.texts[:_TURNS_PER_USER]:
                    await scoped.record_turn(turn, f"Noted: {turn}")
                bar.advance(task)
            await asyncio.sleep(0)
            calls = {}
            for name in ("remember", "record_turn", "recall"):
                calls[name] = await _measure_call(memory, server.pid, name, rng, bar)
        with psycopg.connect(server.url("capacity", "postgres"), autocommit=True) as admin:
            admin.execute("vacuum analyze")
            sizes: dict[str, int] = dict(admin.execute(_TABLE_SIZES).fetchall())
            counts = {table: admin.execute(_COUNT[table]).fetchone()[0] for table in _COUNT}  # type: ignore[index]
        return {"bytes": sizes, "counts": counts, "calls": calls}
    finally:
        server.close()


_TABLE_SIZES = """
    select substring(relname from '^[a-z]+'), sum(pg_total_relation_size(oid))::bigint
    from pg_class
    where relkind = 'r' and relnamespace = 'recollect'::regnamespace
    group by 1
"""
_COUNT = {
    "records": "select count(*) from recollect.records where tenant like 't%'",
    "entries": "select count(*) from recollect.entries where tenant like 't%'",
}


async def _measure_call(
    memory: AgentMemory, server: int, name: str, rng: np.random.Generator, bar: Progress
) -> dict[str, float]:
    task = bar.add_task(name, total=_CALLS)
    before, own = measure_cpu(server), os.times()
    for number in range(_CALLS):
        user = int(rng.integers(_USERS))
        scoped = memory.scoped(tenant=f"t{user % 10}", user=f"u{user}", session="s")
        text = f"{name} {number} of the calls that are measured"
        match name:
            case "remember":
                await scoped.remember(text)
            case "record_turn":
                await scoped.record_turn(text, f"Noted: {text}")
            case _:
                await scoped.recall(text)
        bar.advance(task)
    after = os.times()
    client = after.user + after.system - own.user - own.system
    return {"server_ms": 1e3 * (measure_cpu(server) - before) / _CALLS, "client_ms": 1e3 * client / _CALLS}


def simulate(work: Workload, machine: Machine, measured: dict[str, Any], shards: int) -> dict[str, float]:
    """Place tenants of uneven size on the shards and return the load of the fullest shard and partition."""
    rng = np.random.default_rng(_SEED)
    tenants = round(work.users / work.users_per_tenant)
    sizes = rng.pareto(1.3, tenants) + 1.0 if work.users_per_tenant > 1.0 else np.ones(tenants)
    users = sizes / sizes.sum() * work.users
    partitions = np.bincount(
        rng.integers(shards * _PARTITIONS, size=tenants), weights=users, minlength=shards * _PARTITIONS
    )
    fullest = float(partitions.reshape(shards, _PARTITIONS).sum(axis=1).max())
    item_bytes = sum(measured["bytes"].values()) / sum(measured["counts"].values())
    items_per_user = work.items / work.users
    turn_ms = sum(measured["calls"][name]["server_ms"] for name in ("record_turn", "recall"))
    turns_per_second = fullest * work.daily_users * work.turns_per_day / 86_400 * work.peak
    partition_bytes = float(partitions.max()) * items_per_user * item_bytes
    active_bytes = fullest * work.daily_users * items_per_user * item_bytes
    return {
        "shards": shards,
        "fullest_users": fullest,
        "largest_tenant_users": float(users.max()),
        "disk_gib": fullest * items_per_user * item_bytes / _GIB,
        "partition_gib": partition_bytes / _GIB,
        "rewrite_minutes": partition_bytes / 2**20 / machine.rewrite_mib_per_second / 60,
        "daily_gib": active_bytes / _GIB,
        "cores": turns_per_second * turn_ms / 1e3,
        "turns_per_second": turns_per_second,
        "usd_per_month": 2 * shards * machine.usd_per_month,
    }


def find_limits(row: dict[str, float], machine: Machine) -> list[str]:
    """Return the limits that the fullest shard exceeds."""
    limits = {
        "disk": row["disk_gib"] > machine.max_load * machine.disk_gib,
        "processor": row["cores"] > machine.max_load * machine.cores,
        "memory": row["daily_gib"] > machine.memory_gib,
        "erasure": row["rewrite_minutes"] > machine.max_rewrite_minutes,
    }
    return [name for name, is_exceeded in limits.items() if is_exceeded]


def print_tables(figures: dict[str, Any], machine: Machine) -> None:
    measured = figures["measured"]
    items = sum(measured["counts"].values())
    print_table(
        f"bytes per item, of {items:,} items",
        ["table", "bytes"],
        [[name, f"{size / items:,.0f}"] for name, size in sorted(measured["bytes"].items(), key=lambda row: -row[1])],
        f"in total {sum(measured['bytes'].values()) / items:,.0f}, with indexes",
    )
    print_table(
        "processor time of a call in milliseconds",
        ["call", "server", "client"],
        [[name, f"{row['server_ms']:.2f}", f"{row['client_ms']:.2f}"] for name, row in measured["calls"].items()],
    )
    print_table(
        "the fullest shard",
        [
            "shards",
            "users",
            "disk GiB",
            "partition GiB",
            "rewrite min",
            "read a day GiB",
            "cores at the peak",
            "USD a month",
            "exceeds",
        ],
        [
            [
                f"{row['shards']:,.0f}",
                f"{row['fullest_users']:,.0f}",
                f"{row['disk_gib']:,.0f}",
                f"{row['partition_gib']:,.1f}",
                f"{row['rewrite_minutes']:,.1f}",
                f"{row['daily_gib']:,.0f}",
                f"{row['cores']:,.1f}",
                f"{row['usd_per_month']:,.0f}",
                ", ".join(find_limits(row, machine)) or "nothing",
            ]
            for row in figures["shards"]
        ],
        f"the largest tenant has {figures['shards'][0]['largest_tenant_users']:,.0f} users",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work, machine = Workload(), Machine()
    parser.add_argument("--users", type=int, default=work.users, help="number of users")
    parser.add_argument("--items", type=int, default=work.items, help="number of items")
    parser.add_argument("--tenant", type=float, default=work.users_per_tenant, help="mean number of users of a tenant")
    parser.add_argument("--shards", type=int, nargs="+", default=[4, 8, 16, 64, 256], help="numbers of shards to try")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    arguments = parser.parse_args()
    work = Workload(users=arguments.users, items=arguments.items, users_per_tenant=arguments.tenant)
    with create_progress() as bar:
        measured = asyncio.run(measure(bar))
    shards = [simulate(work, machine, measured, count) for count in arguments.shards]
    figures = {"measured": measured, "shards": shards}
    print_tables(figures, machine)
    console.print(f"{work}\n{machine}")
    save_json(figures, arguments.json)


if __name__ == "__main__":
    main()
