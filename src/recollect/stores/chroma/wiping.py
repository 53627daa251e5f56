"""Deleting for an erasure: one batch of the chain, which says what it took and what to look for."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from recollect.stores.chroma.batch import Rows, Wiped
from recollect.stores.chroma.cells import Kept, dumped, handle, names_of, vector_id
from recollect.stores.chroma.engine import Engine
from recollect.stores.chroma.resolve import Resolving
from recollect.stores.chroma.vectors import waiting
from recollect.stores.ops import Put, Write
from recollect.stores.traces import Traces, pieces_of
from recollect.values import Space


def wipe(engine: Engine, salt: bytes, erasure: str, spaces: Sequence[Space], writes: Sequence[Write]) -> None:
    """All of it at once, or nothing; and into its place, out of the chain."""

    def decided(batch: Resolving) -> None:
        gone = batch.wipe(spaces, writes)
        pieces = [piece for space, kept in gone.items() for piece in _pieces(engine, space, kept)]
        pieces += [piece for space in spaces for name in names_of(space) for piece in pieces_of(name.encode())]
        counts: Counter[str] = Counter()
        for space, kept in gone.items():
            counts[space.tier] += len(kept)
        rederived = sum(isinstance(write, Put) for write in writes)
        evidence = Traces.of_pieces(salt, pieces).packed
        batch.wiped = Wiped(erasure, tuple(spaces), counts, rederived, evidence)

    engine.change(decided)


def holdings(engine: Engine) -> list[Space]:
    """Every space that has a collection, when all batches are in their places."""
    engine.follow()
    engine.settle()
    return engine.spaces()


def _pieces(engine: Engine, space: Space, gone: Sequence[Kept]) -> Iterator[bytes]:
    if not gone:
        return
    generations = {generation for kept in gone for generation in kept.refs}
    rows: Mapping[int, Mapping[str, Rows]] = {
        one: {**engine.places.vectors(space, one), **waiting(space, one, engine.pending)} for one in generations
    }
    for kept in gone:
        for value in (*values_of(kept), *_vectors_of(kept, rows)):
            yield from pieces_of(value)


def values_of(kept: Kept) -> Iterator[bytes]:
    """What an item is written down as: its text, as it is and as JSON has it, and all else."""
    item = kept.item
    yield item.content.encode()
    yield dumped(item.content).encode()
    yield dumped(kept.cell()).encode()
    yield dumped(dict(item.metadata)).encode()
    yield " ".join(kept.terms).encode()
    for name in (item.id, item.source, item.key or "", item.scope.session or "", *item.derived_from):
        yield name.encode()


def _vectors_of(kept: Kept, rows: Mapping[int, Mapping[str, Rows]]) -> Iterator[bytes]:
    of = handle(kept.item.id)
    for generation, ref in kept.refs.items():
        held = [rows[generation].get(vector_id(of, ref.batch, part)) for part in range(ref.passages)]
        for row in held:
            if row is not None:
                yield row.tobytes()
                yield base64.b64encode(row.tobytes())
