"""Two generations of vectors: the model that answers, and perhaps another that is being prepared."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache

from recollect.errors import Conflict
from recollect.stores.admission import mismatch
from recollect.stores.damage import reads
from recollect.stores.ops import Model
from recollect.stores.postgres.locks import GROWTH, MODELS
from recollect.stores.postgres.server import Work

AS_JSON = """
    (
        select json_object_agg(name, value)
        from recollect.meta
        where name in ('model', 'generation', 'preparing')
    )
"""
GENERATION = "coalesce((select value from recollect.meta where name = 'generation'), 'a')"
DIM = "(select value::json ->> 'dim' from recollect.meta where name = 'model')"
_SET = """
    insert into recollect.meta (name, value)
    values (%(name)s, %(value)s)
    on conflict (name) do update set value = excluded.value
"""
_EMPTY = "delete from recollect.vectors where generation = %(generation)s"
LACKING = """
    not exists (
        select 1
        from recollect.vectors v
        where v.tenant = r.tenant and v.space = r.space and v.place = r.place and v.generation = %(fresh)s
    )
"""
_ANY_LACKING = f"select 1 from recollect.records r where {LACKING} limit 1"  # noqa: S608 - a constant clause


@dataclass(frozen=True, slots=True)
class Models:
    """Which model answers from which generation, and which is being prepared in the other."""

    active: Model | None = None
    generation: str = "a"
    preparing: Model | None = None

    @property
    def dim(self) -> int:
        return 0 if self.active is None else self.active.dim

    @property
    def fresh(self) -> str:
        """The generation that does not answer."""
        return "b" if self.generation == "a" else "a"

    def check(self, model: Model) -> None:
        if self.active is not None and self.active != model:
            raise mismatch(self.active, model)

    def check_prepared(self, model: Model) -> None:
        if self.preparing != model:
            raise Conflict(f"{model.name!r} is not being prepared (any more); ask `unembedded` what there is to do")


async def read(work: Work) -> Models:
    row = await work.row(f"select {AS_JSON}", {})
    assert row is not None
    return known(row[0])


@reads("the name of the embedding model")
def known(found: dict[str, str] | None) -> Models:
    """What the store knows of models, as it keeps it."""
    found = found or {}
    return Models(_model(found.get("model")), found.get("generation", "a"), _model(found.get("preparing")))


@lru_cache(maxsize=16)
def _model(text: str | None) -> Model | None:
    """Every search reads it, and it is hardly ever another."""
    return Model.as_read(**json.loads(text)) if text else None


async def adopted(work: Work, model: Model) -> Models:
    """What holds once the store is bound to a model, which is this one if there was none."""
    models = await read(work)
    if models.active is None:
        await work.run(GROWTH, {})
        models = await read(work)
    if models.active is None:
        await _set(work, "model", json.dumps(asdict(model)))
        return Models(model, models.generation, models.preparing)
    models.check(model)
    return models


async def prepared(work: Work, model: Model) -> Models:
    """Begin, or go on, to prepare a model; vectors of another unfinished attempt are dropped."""
    models = await read(work)
    if models.preparing == model and models.active is not None:
        return models
    for statement in work.replanned():
        await work.rows(*statement)
    await work.run(MODELS, {})  # nobody else writes vectors meanwhile
    models = await read(work)
    if models.active is None:
        models = await adopted(work, model)
    if models.preparing != model:
        await work.run(_EMPTY, {"generation": models.fresh})
        await _set(work, "preparing", json.dumps(asdict(model)))
    return Models(models.active, models.generation, model)


async def switch(work: Work, model: Model) -> None:
    """Let the prepared model answer. The old vectors are dropped in the same transaction."""
    for statement in work.replanned():
        await work.rows(*statement)
    await work.run(MODELS, {})
    models = await read(work)
    if models.active == model and models.preparing is None:
        return
    models = await prepared(work, model)
    if await work.row(_ANY_LACKING, {"fresh": models.fresh}) is not None:
        raise Conflict(f"some items have no vectors of {model.name!r} yet; go on embedding, then switch")
    await _set(work, "model", json.dumps(asdict(model)))
    await _set(work, "generation", models.fresh)
    await work.run("delete from recollect.meta where name = 'preparing'", {})
    await work.run(_EMPTY, {"generation": models.generation})


async def _set(work: Work, name: str, value: str) -> None:
    await work.run(_SET, {"name": name, "value": value})
