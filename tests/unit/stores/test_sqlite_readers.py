"""Readers of the file: each question is answered as of now, whatever became of the one before."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from recollect.stores.sqlite import SqliteStore
from recollect.testing.samples import SPACE, ids, put


async def test_a_question_that_failed_half_way_leaves_nobody_in_the_past(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db", readers=1)
    await store.write(*(put(f"i{n}") for n in range(5)))

    def fails(connection: apsw.Connection) -> None:
        rows = connection.execute("select id from records")
        next(rows)
        raise KeyError("half-way")

    with pytest.raises(KeyError) as kept:  # and with the exception its frame, and with that the open statement
        await store._readers.ask(fails)
    await store.write(put("late"))
    assert ids(await store.get(SPACE, "late")) == ["late"]
    assert kept.value.args == ("half-way",)
    await store.close()
