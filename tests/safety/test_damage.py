"""Rows that somebody else has written under our names: told of as damage, by an error of ours, and no other is lost."""

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
from recollect.stores.damage import Misshapen, as_written
from recollect.stores.postgres import PostgresStore
from recollect.stores.sqlite import SqliteStore
from recollect.testing.erasing import erasure, receipt
from recollect.testing.samples import EVERYTHING, LOG, SPACE, TASKS, append, ids, note, put, save, vector
from recollect.values import Turn
from tests.safety.shaped import outcome
from tests.servers.postgres import Server

NO_JSON = ("", "{", "nul", "[1,")
NO_MAPPING = (*NO_JSON, "[]", "5", "null", '"heliotrope"', "true", "[" * 5_000)
NEVER = 1 << 62
SECRET = "heliotrope"

# What somebody writes into which column of the row of an item, an entry, a task and so on.
ODD: dict[str, tuple[Any, ...]] = {
    "records.metadata": NO_MAPPING,
    "records.derived_from": (*NO_JSON, "{}", "5", "null", "[1]", "[null]"),
    "records.content": ("", " "),
    "records.importance": (7.0, -1.0),
    "records.trust": (7.0,),
    "records.by_user": ("", "\x07"),
    "records.created_at": (NEVER,),
    "entries.metadata": NO_MAPPING,
    "entries.at": (NEVER,),
    "tasks.status": ("", SECRET),
    "tasks.created_at": (NEVER,),
    "tasks.expires_at": (NEVER,),
    "steps.status": ("", SECRET),
    "steps.at": (NEVER,),
    "checkpoints.at": (NEVER,),
    "erasures.parts": (*NO_JSON, "5", "{}", "[1]"),
    "erasures.elsewhere": (*NO_MAPPING, '{"a": 1}'),
    "erasures.erased": (*NO_MAPPING, '{"a": "x"}', '{"a": null}'),
    "erasures.receipt": (*NO_MAPPING, "{}", '{"sha256": 5}'),
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
    "erasures": (lambda s: s.ledger(), lambda s: s.finish(receipt("b"))),
}


async def filled(store: Store) -> None:
    """Two of everything: one that is damaged, and one that is not."""
    for id in ("a", "b"):
        said = put(id, [1, 0, 0, 0], "apple", metadata={"x": 1}, derived_from=("m",), turn=Turn("s", 1, "ada"))
        await store.write(said, append(id))
        await store.write(save(task=id))
        lease = await store.claim(TASKS, id, "w", timedelta(minutes=1))
        await store.write(note("s", lease.fence, task=id))
        await store.enter(erasure(id))
    await store.finish(receipt("a"))


async def damaged(store: Store, column: str, put_there: Callable[[Any], Awaitable[Any]]) -> None:
    """Each value in its turn: who reads it is told, and who reads the other row is not bothered."""
    faults = set()
    for value in ODD[column]:
        await put_there(value)
        came = [await outcome(partial(read, store), SECRET) for read in READS[column.partition(".")[0]]]
        if "refused" not in came or set(came) - {"whole", "refused"}:
            faults.add(f"{value!r:.40}: {came}")
    assert faults == set()
    if not column.startswith("erasures"):
        assert ids(await store.get(SPACE, "b")) == ids(await store.entries(LOG, "b")) == ["b"]
        assert len(await store.steps(TASKS, "b")) == len(await store.checkpoints(TASKS, "b")) == 1


def _id(column: str) -> str:
    return "task" if column.startswith(("steps", "checkpoints")) else "id"


@pytest.mark.parametrize("column", ODD)
async def test_a_row_of_sqlite(tmp_path: Path, column: str):
    """Mutants: `item_of` without its `except`; any one `@reads` taken off; `mapping` and `texts` take anything."""
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    await filled(store)
    table, name = column.split(".")

    async def put_there(value: Any) -> None:
        raw = apsw.Connection(str(path))
        raw.execute(f"update {table} set {name} = ? where {_id(column)} = 'a'", (value,))  # noqa: S608 - of ours
        raw.close()

    await damaged(store, column, put_there)
    await store.close()


async def test_a_row_of_postgresql(postgres: Server):
    """Mutants: the same."""
    url = postgres.create("damage")
    store = await PostgresStore.open(url)
    await filled(store)
    faults = []
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as raw:
        await raw.execute("select set_config('recollect.everyone', 'on', false)")
        for column in ODD:
            table, name = map(sql.Identifier, column.split("."))
            place, id = sql.SQL("recollect.{}").format(table), sql.Identifier(_id(column))
            asked = await raw.execute(sql.SQL("select {} from {} where {} = 'a'").format(name, place, id))
            [before] = await asked.fetchone() or (None,)
            change = sql.SQL("update {} set {} = %s where {} = 'a'").format(place, name, id)
            try:
                await damaged(store, column, partial(_changed, raw, change))
            except AssertionError as error:
                faults.append(f"{column}: {error!s:.600}")
            await raw.execute(change, (before,))
    assert faults == []
    await store.close()
    postgres.drop("damage")


async def _changed(raw: psycopg.AsyncConnection[Any], change: sql.Composed, value: Any) -> None:
    await raw.execute(change, (value,))


@pytest.mark.parametrize("written", ["{", "[]", "{}", '{"name": "x"}', '{"name": 1, "dim": "x", "fingerprint": []}'])
async def test_the_name_of_the_model(tmp_path: Path, written: str):
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    await store.write(put("a", [1, 0, 0, 0], terms="apple"))
    raw = apsw.Connection(str(path))
    raw.execute("update meta set value = ? where name = 'model'", (written,))
    raw.close()
    assert await outcome(store.model, SECRET) == "refused"
    await store.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [("next_seq", 1 << 33), ("next_seq", 1 << 62), ("next_seq", -5), ("items", -5), ("words", -5), ("rewrites", -5)],
)
async def test_the_counts_of_a_space(tmp_path: Path, column: str, value: int):
    """Mutants: `_state` believes them, and who searches wants room for so many; `_words` wants it for a check."""
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    await filled(store)
    raw = apsw.Connection(str(path))
    raw.execute(f"update spaces set {column} = ?", (value,))  # noqa: S608 - of ours
    raw.close()
    assert await outcome(lambda: store.nearest(EVERYTHING, vector(1, 0, 0, 0)), SECRET) == "refused"
    assert await outcome(lambda: store.matching(EVERYTHING, ("apple",)), SECRET) == "refused"
    assert any(str(value) in line for line in await store.check()) or column == "rewrites"
    await store.close()


async def test_numbers_that_are_given_out_again(tmp_path: Path):
    """Mutant: `_MISNUMBERED` looks at the largest number alone."""
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    await filled(store)
    raw = apsw.Connection(str(path))
    raw.execute("update spaces set next_seq = 1")
    raw.close()
    assert any("up to 1, and has an item with 2" in line for line in await store.check())
    await store.close()


async def test_a_row_that_a_write_came_across_holds_up_no_other_write(tmp_path: Path):
    """Mutant: `_let_go` does nothing, and every later write fails as if another program held the file."""
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    await filled(store)

    def half_way(connection: apsw.Connection) -> None:
        rows = connection.execute("select id, metadata from records")
        for id, _ in rows:
            with as_written(f"the row of {id}"):
                raise Misshapen("metadata is no mapping")

    kept = []  # as a program does that looks at its errors later
    for number in range(3):
        with pytest.raises(StoreCorrupt) as told:
            await store._writer.submit(half_way, durable=True)
        kept.append(told.value)
        raw = apsw.Connection(str(path))
        raw.execute("update records set access_count = access_count + 1")
        raw.close()
        await store.write(put(f"another {number}"))
    assert len(await store.find(EVERYTHING)) == 5
    await store.close()
