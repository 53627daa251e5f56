"""The embedding model whose vectors are searched, and another that is prepared in a second generation of vectors."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache

from recollect.errors import Conflict
from recollect.stores.codec import detects_corruption
from recollect.stores.postgres.transactions import LOCK_GROWTH_SQL, LOCK_MODELS_SQL, PostgresTransaction
from recollect.stores.validation import build_model_mismatch
from recollect.stores.writes import Model

MODELS_JSON_SQL = """
    (
        select json_object_agg(name, value)
        from recollect.meta
        where name in ('model', 'generation', 'preparing')
    )
"""
GET_MODELS = f"select {MODELS_JSON_SQL}"
ACTIVE_GENERATION_SQL = "coalesce((select value from recollect.meta where name = 'generation'), 'a')"
ACTIVE_DIM_SQL = "(select value::json ->> 'dim' from recollect.meta where name = 'model')"
_SET_META = """
    insert into recollect.meta (name, value)
    values (%(name)s, %(value)s)
    on conflict (name) do update set value = excluded.value
"""
_DELETE_GENERATION = "delete from recollect.vectors where generation = %(generation)s"
LACKS_VECTORS_SQL = """
    not exists (
        select 1
        from recollect.vectors v
        where v.tenant = r.tenant and v.space = r.space and v.place = r.place and v.generation = %(fresh)s
    )
"""
_ANY_LACKS_VECTORS = f"select 1 from recollect.records r where {LACKS_VECTORS_SQL} limit 1"  # noqa: S608 - a constant clause


@dataclass(frozen=True, slots=True)
class PostgresModels:
    """The model whose vectors are searched, their generation, and the model that is prepared in the other one."""

    active: Model | None = None
    generation: str = "a"
    preparing: Model | None = None

    @property
    def dim(self) -> int:
        return 0 if self.active is None else self.active.dim

    @property
    def next_generation(self) -> str:
        """The generation that is not searched."""
        return "b" if self.generation == "a" else "a"

    def check_active(self, model: Model) -> None:
        """Raise `EmbeddingModelMismatch` if another model is active."""
        if self.active is not None and self.active != model:
            raise build_model_mismatch(self.active, model)

    def check_prepared(self, model: Model) -> None:
        """Raise `Conflict` if the model is not the one that is prepared."""
        if self.preparing != model:
            raise Conflict(f"{model.name!r} is not being prepared; call `find_unembedded` with it first")


async def load_models(work: PostgresTransaction) -> PostgresModels:
    [models] = await work.fetch_one(GET_MODELS)
    return parse_models(models)


@detects_corruption("the name of the embedding model")
def parse_models(values: dict[str, str] | None) -> PostgresModels:
    """Return the models from `MODELS_JSON_SQL`."""
    values = values or {}
    return PostgresModels(
        _parse_model(values.get("model")), values.get("generation", "a"), _parse_model(values.get("preparing"))
    )


@lru_cache(maxsize=16)
def _parse_model(text: str | None) -> Model | None:
    return Model.decode(**json.loads(text)) if text else None


async def bind_model(work: PostgresTransaction, model: Model) -> PostgresModels:
    """Make the model the active one if there is none. Raise `EmbeddingModelMismatch` if there is another."""
    await work.execute(LOCK_GROWTH_SQL)
    models = await load_models(work)
    models.check_active(model)
    if models.active is None:
        await _set_meta(work, "model", json.dumps(asdict(model)))
    return PostgresModels(model, models.generation, models.preparing)


async def prepare_model(work: PostgresTransaction, model: Model) -> PostgresModels:
    """Start or continue to prepare a model. Vectors of another unfinished model are deleted."""
    models = await load_models(work)
    if models.preparing == model and models.active is not None:
        return models
    await work.force_replan()
    await work.execute(LOCK_MODELS_SQL)
    models = await load_models(work)
    if models.active is None:
        models = await bind_model(work, model)
    if models.preparing != model:
        await work.execute(_DELETE_GENERATION, {"generation": models.next_generation})
        await _set_meta(work, "preparing", json.dumps(asdict(model)))
    return PostgresModels(models.active, models.generation, model)


async def activate_model(work: PostgresTransaction, model: Model) -> None:
    """Search the vectors of the prepared model from now on, and delete those of the old one."""
    await work.force_replan()
    await work.execute(LOCK_MODELS_SQL)
    models = await load_models(work)
    if models.active == model and models.preparing is None:
        return
    models = await prepare_model(work, model)
    if await work.fetch_row(_ANY_LACKS_VECTORS, {"fresh": models.next_generation}) is not None:
        raise Conflict(f"some items have no vectors of {model.name!r} yet; go on embedding, then switch")
    await _set_meta(work, "model", json.dumps(asdict(model)))
    await _set_meta(work, "generation", models.next_generation)
    await work.execute("delete from recollect.meta where name = 'preparing'")
    await work.execute(_DELETE_GENERATION, {"generation": models.generation})


async def _set_meta(work: PostgresTransaction, name: str, value: str) -> None:
    await work.execute(_SET_META, {"name": name, "value": value})
