"""What is wrong with a Chroma that this store looks after, a sentence each."""

from __future__ import annotations

from recollect.errors import StoreCorrupt
from recollect.stores.chroma.cells import handle, vector_id
from recollect.stores.chroma.engine import Engine
from recollect.stores.chroma.shelf import Shelf
from recollect.stores.health import Soundness
from recollect.values import Space


def faults(engine: Engine) -> list[str]:
    """Every item can be read, and has the vectors that it names."""
    found, lost = _looked(engine)
    return [*found, *lost]


def soundness(engine: Engine) -> Soundness:
    """The same as figures. Words are no index of their own here: they are read from the items."""
    found, lost = _looked(engine)
    return Soundness(faults=tuple(found), lacking_vectors=len(lost))


def _looked(engine: Engine) -> tuple[list[str], list[str]]:
    """What cannot be read, and what has lost a vector."""
    try:
        engine.follow()
        engine.settle()
    except StoreCorrupt as error:
        return [str(error)], []
    found: list[str] = []
    lost: list[str] = []
    for space in engine.spaces():
        try:
            lost += _lost_vectors(engine, space, engine.shelf(space))
        except StoreCorrupt as error:
            found.append(str(error))
    return found, lost


def _lost_vectors(engine: Engine, space: Space, shelf: Shelf) -> list[str]:
    generation = engine.models.generation
    named = {
        vector_id(handle(id), ref.batch, part): id
        for id, kept in shelf.kept.items()
        if (ref := kept.refs.get(generation)) is not None
        for part in range(ref.passages)
    }
    missing = sorted({named[name] for name in named.keys() - engine.places.vector_ids(space, generation)})
    return [
        f"the item {id!r} in {space} has lost a vector; write it again, or run: recollect reembed" for id in missing
    ]
