"""Damaged rows in SQLite and PostgreSQL: reads raise StoreCorrupt, and other rows stay readable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from psycopg import sql

from recollect.errors import StoreCorrupt
from recollect.stores.codec import DecodeError, detect_corruption
from recollect.stores.postgres import PostgresStore
from recollect.stores.sqlite import SqliteStore
from recollect.testing.factories import (
    EVERYTHING,
    LOG,
    SPACE,
    START,
    TASKS,
    find_matching,
    find_nearest,
    list_ids,
    make_append,
    make_note,
    make_put,
    make_save,
    make_vector,
)
from recollect.testing.whole_store import make_erasure, make_receipt
from recollect.types import Turn
from tests.safety.shape_checks import classify_read
from tests.servers.postgres import Server

INVALID_JSON = ("", "{", "nul", "[1,")
INVALID_MAPPINGS = (*INVALID_JSON, "[]", "5", "null", '"heliotrope"', "true", "[" * 5_000)
NEVER = 1 << 62
SECRET = "heliotrope"

# Invalid values for each column.
INVALID_VALUES: dict[str, tuple[Any, ...]] = {
    "records.metadata": INVALID_MAPPINGS,
    "records.derived_from": (*INVALID_JSON, "{}", "5", "null", "[1]", "[null]"),
    "records.content": ("", " "),
    "records.importance": (7.0, -1.0),
    "records.trust": (7.0,),
    "records.by_user": ("", "\x07"),
    "records.created_at": (NEVER,),
    "entries.metadata": INVALID_MAPPINGS,
    "entries.at": (NEVER,),
    "tasks.status": ("", SECRET),
    "tasks.created_at": (NEVER,),
    "tasks.expires_at": (NEVER,),
    "steps.status": ("", SECRET),
    "steps.at": (NEVER,),
    "checkpoints.at": (NEVER,),
    "erasures.parts": (*INVALID_JSON, "5", "{}", "[1]"),
    "erasures.elsewhere": (*INVALID_MAPPINGS, '{"a": 1}'),
    "erasures.erased": (*INVALID_MAPPINGS, '{"a": "x"}', '{"a": null}'),
    "erasures.receipt": (*INVALID_MAPPINGS, "{}", '{"sha256": 5}'),
    "erasures.requested_at": (NEVER,),
}
Store = SqliteStore | PostgresStore
Read = Callable[[Store], Awaitable[Any]]
READS: dict[str, tuple[Read, ...]] = {
    "records": (lambda s: s.get(SPACE, "a"), lambda s: s.find(EVERYTHING), lambda s: s.last_turns(SPACE, "s")),
    "entries": (lambda s: s.entries(LOG, "a"), lambda s: s.recent(LOG), lambda s: s.read(LOG, hidden=True)),
    "tasks": (lambda s: s.task(TASKS, "a", hidden=True), lambda s: s.tasks(TASKS)),
    "steps": (lambda s: s.steps(TASKS, "a"),),
    "checkpoints": (lambda s: s.checkpoints(TASKS, "a"),),
    "erasures": (lambda s: s.ledger(), lambda s: s.finish_erasure(make_receipt("b"), START)),
}


async def fill(store: Store) -> None:
    """Store two rows of every kind: `a` will be damaged, and `b` will not."""
    for id in ("a", "b"):
        said = make_put(id, [1, 0, 0, 0], "apple", metadata={"x": 1}, derived_from=("m",), turn=Turn("s", 1, "ada"))
        await store.write(said, make_append(id))
        await store.write(make_save(task=id))
        lease = await store.claim(TASKS, id, "w", timedelta(minutes=1))
        await store.write(make_note("s", lease.fence, task=id))
        await store.add_erasure(make_erasure(id))
    await store.finish_erasure(make_receipt("a"), START)


async def check_damage(store: Store, column: str, write_value: Callable[[Any], Awaitable[Any]]) -> None:
    """Write each invalid value and check that reads raise StoreCorrupt and that the other row stays readable."""
    faults = set()
    for value in INVALID_VALUES[column]:
        await write_value(value)
        came = [await classify_read(partial(read, store), SECRET) for read in READS[column.partition(".")[0]]]
        if "refused" not in came or set(came) - {"whole", "refused"}:
            faults.add(f"{value!r:.40}: {came}")
    assert faults == set()
    if not column.startswith("erasures"):
        assert list_ids(await store.get(SPACE, "b")) == list_ids(await store.entries(LOG, "b")) == ["b"]
        assert len(await store.steps(TASKS, "b")) == len(await store.checkpoints(TASKS, "b")) == 1


def _get_id_column(column: str) -> str:
    return "task" if column.startswith(("steps", "checkpoints")) else "id"


@pytest.mark.parametrize("column", INVALID_VALUES)
async def test_damaged_sqlite_row_raises_store_corrupt(tmp_path: Path, column: str):
    """Mutants: `decode_item` without `detect_corruption`; `decode_mapping` and `decode_texts` accept anything."""
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    await fill(store)
    table, name = column.split(".")

    async def write_value(value: Any) -> None:
        raw = apsw.Connection(str(path))
        raw.execute(f"update {table} set {name} = ? where {_get_id_column(column)} = 'a'", (value,))  # noqa: S608 - constants of this module
        raw.close()

    await check_damage(store, column, write_value)
    await store.close()


async def test_damaged_postgres_row_raises_store_corrupt(postgres: Server):
    """Mutants: as on SQLite."""
    url = postgres.create("damage")
    store = await PostgresStore.open(url)
    await fill(store)
    faults = []
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as raw:
        await raw.execute("select set_config('recollect.everyone', 'on', false)")
        for column in INVALID_VALUES:
            table, name = map(sql.Identifier, column.split("."))
            place, id = sql.SQL("recollect.{}").format(table), sql.Identifier(_get_id_column(column))
            asked = await raw.execute(sql.SQL("select {} from {} where {} = 'a'").format(name, place, id))
            [before] = await asked.fetchone() or (None,)
            change = sql.SQL("update {} set {} = %s where {} = 'a'").format(place, name, id)
            try:
                await check_damage(store, column, partial(_execute, raw, change))
            except AssertionError as error:
                faults.append(f"{column}: {error!s:.600}")
            await raw.execute(change, (before,))
    assert faults == []
    await store.close()
    postgres.drop("damage")


async def _execute(raw: psycopg.AsyncConnection[Any], change: sql.Composed, value: Any) -> None:
    await raw.execute(change, (value,))


@pytest.mark.parametrize("written", ["{", "[]", "{}", '{"name": "x"}', '{"name": 1, "dim": "x", "fingerprint": []}'])
async def test_damaged_model_name_raises_store_corrupt(tmp_path: Path, written: str):
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    await store.write(make_put("a", [1, 0, 0, 0], terms="apple"))
    raw = apsw.Connection(str(path))
    raw.execute("update meta set value = ? where name = 'model'", (written,))
    raw.close()
    assert await classify_read(store.model, SECRET) == "refused"
    await store.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [("next_seq", 1 << 33), ("next_seq", 1 << 62), ("next_seq", -5), ("items", -5), ("words", -5), ("rewrites", -5)],
)
async def test_damaged_space_counts_raise_store_corrupt(tmp_path: Path, column: str, value: int):
    """Mutants: counts are not validated, and a search or a check allocates memory for so many items."""
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    await fill(store)
    raw = apsw.Connection(str(path))
    raw.execute(f"update spaces set {column} = ?", (value,))  # noqa: S608 - constants of this module
    raw.close()
    assert await classify_read(lambda: find_nearest(store, EVERYTHING, make_vector(1, 0, 0, 0)), SECRET) == "refused"
    assert await classify_read(lambda: find_matching(store, EVERYTHING, "apple"), SECRET) == "refused"
    assert any(str(value) in line for line in await store.check()) or column == "rewrites"
    await store.close()


async def test_check_reports_reused_sequence_numbers(tmp_path: Path):
    """Mutant: `check` compares only the largest sequence number."""
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    await fill(store)
    raw = apsw.Connection(str(path))
    raw.execute("update spaces set next_seq = 1")
    raw.close()
    assert any("up to 1, and has an item with 2" in line for line in await store.check())
    await store.close()


async def test_damaged_row_met_by_a_write_does_not_block_later_writes(tmp_path: Path):
    """Mutant: `_clear_frames` does nothing, and every later write fails as if another program locked the file."""
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    await fill(store)

    def half_way(connection: apsw.Connection) -> None:
        rows = connection.execute("select id, metadata from records")
        for id, _ in rows:
            with detect_corruption(f"the row of {id}"):
                raise DecodeError("metadata is no mapping")

    kept = []  # errors that a program keeps hold references to the failed statement
    for number in range(3):
        with pytest.raises(StoreCorrupt) as caught:
            await store._writer.submit(half_way, durable=True)
        kept.append(caught.value)
        raw = apsw.Connection(str(path))
        raw.execute("update records set access_count = access_count + 1")
        raw.close()
        await store.write(make_put(f"another {number}"))
    assert len(await store.find(EVERYTHING)) == 5
    await store.close()
