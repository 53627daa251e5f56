"""Two generations of vectors: the model that answers, and perhaps another that is being prepared."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache

import apsw

from recollect.errors import Conflict
from recollect.stores.admission import mismatch
from recollect.stores.damage import reads
from recollect.stores.ops import Model

_INSERT = {
    "a": "insert or replace into vectors_a (id, data) values (?, ?)",
    "b": "insert or replace into vectors_b (id, data) values (?, ?)",
}
DROP = {
    "a": "delete from vectors_a where id >= ? and id < ?",
    "b": "delete from vectors_b where id >= ? and id < ?",
}
_EMPTY = {"a": "delete from vectors_a", "b": "delete from vectors_b"}

# Places without a vector in the generation that is being prepared; the index on ids makes each test a seek.
LACKING = {
    "a": """
        select place from records r
        where not exists (select 1 from vectors_a v where v.id = r.place << 6)
        order by place limit ?
    """,
    "b": """
        select place from records r
        where not exists (select 1 from vectors_b v where v.id = r.place << 6)
        order by place limit ?
    """,
}


@dataclass(frozen=True, slots=True)
class Tables:
    """Which generation belongs to which model."""

    model: Model
    generation: str

    @property
    def insert(self) -> str:
        return _INSERT[self.generation]

    @property
    def drop(self) -> str:
        return DROP[self.generation]

    def swapped(self) -> Tables:
        """The other generation, whatever it is used for."""
        return Tables(self.model, other(self.generation))


def other(generation: str) -> str:
    return "b" if generation == "a" else "a"


def active(connection: apsw.Connection) -> Tables | None:
    model, generation = _meta(connection, "model"), _meta(connection, "generation")
    return Tables(model_of(model), generation or "a") if model else None


def adopt(connection: apsw.Connection, model: Model) -> Tables:
    """The tables of the store's model, which is this one if there was none."""
    found = active(connection)
    if found is None:
        _set(connection, "model", json.dumps(asdict(model)))
        _set(connection, "generation", "a")
        return Tables(model, "a")
    if found.model != model:
        raise mismatch(found.model, model)
    return found


def prepare(connection: apsw.Connection, model: Model) -> Tables:
    """Begin, or go on, to prepare a model; vectors of another unfinished attempt are dropped."""
    tables = active(connection) or adopt(connection, model)
    if _meta(connection, "preparing") != json.dumps(asdict(model)):
        connection.execute(_EMPTY[other(tables.generation)])
        _set(connection, "preparing", json.dumps(asdict(model)))
    return tables


def prepared(connection: apsw.Connection, model: Model) -> Tables:
    """Where to put vectors of a model that is being prepared; late ones, after a switch, are refused."""
    tables = active(connection)
    if tables is None or _meta(connection, "preparing") != json.dumps(asdict(model)):
        raise Conflict(f"{model.name!r} is not being prepared (any more); ask `unembedded` what there is to do")
    return tables.swapped()


def switch(connection: apsw.Connection, model: Model) -> None:
    """Let the prepared model answer. The old vectors are dropped in the same transaction."""
    tables = active(connection)
    if tables is not None and tables.model == model and _meta(connection, "preparing") is None:
        return
    tables = prepare(connection, model)
    fresh = other(tables.generation)
    if connection.execute(LACKING[fresh], (1,)).get is not None:
        raise Conflict(f"some items have no vectors of {model.name!r} yet; go on embedding, then switch")
    _set(connection, "model", json.dumps(asdict(model)))
    _set(connection, "generation", fresh)
    connection.execute("delete from meta where name = 'preparing'")
    connection.execute(_EMPTY[tables.generation])
    # A copy in memory may have been made when this generation answered last, with other vectors.
    connection.execute("update spaces set rewrites = rewrites + 1")


@lru_cache(maxsize=16)
@reads("the name of the embedding model")
def model_of(text: str) -> Model:
    return Model.as_read(**json.loads(text))


def _meta(connection: apsw.Connection, name: str) -> str | None:
    value: str | None = connection.execute("select value from meta where name = ?", (name,)).get
    return value


def _set(connection: apsw.Connection, name: str, value: str) -> None:
    connection.execute(
        "insert into meta (name, value) values (?, ?) on conflict do update set value = excluded.value", (name, value)
    )
