"""A batch: what a number of writes comes to, as one value that goes into the chain whole."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from recollect.stores.chroma.cells import Kept, dumped, kept_of, names_of
from recollect.stores.damage import counts as counts_of
from recollect.stores.damage import mapping, one_of, text, texts, whole
from recollect.stores.ops import Model
from recollect.stores.vectors import unpacked
from recollect.values import Space, Tier

Rows = NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Models:
    """Whose vectors answer, and whose are being prepared; a generation is named after the batch it began with."""

    active: Model | None = None
    generation: int = 0
    preparing: Model | None = None
    fresh: int = 0

    def lives(self, generation: int) -> bool:
        return generation in (self.generation, self.fresh)


@dataclass(frozen=True, slots=True)
class Cell:
    """An item's new state, or that it is gone; `was` is the batch that wrote the state before, 0 if there was none."""

    of: str
    kept: Kept | None
    was: int = 0
    lost: tuple[tuple[int, str], ...] = ()
    """Vectors that nothing names any more, by generation."""


@dataclass(frozen=True, slots=True, eq=False)
class Passages:
    """An item's vectors in one generation."""

    of: str
    generation: int
    rows: Rows


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What a batch does to one space."""

    space: Space
    cells: tuple[Cell, ...] = ()
    passages: tuple[Passages, ...] = ()
    paths: frozenset[str] | None = None
    """All of them, when some are new."""
    paths_were: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Wiped:
    """That a batch belongs to an erasure: which spaces end with it, how much that is, and what to look for then."""

    erasure: str
    spaces: tuple[Space, ...]
    counts: Mapping[str, int]
    rederived: int
    evidence: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One link of the chain. `by` tells whose it is; what lies below `floor` is in its place, and counts no more."""

    number: int
    by: str
    floor: int
    models: Models
    changes: tuple[Change, ...] = ()
    settled: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """Whose the batches below the floor were, as far back as anybody might still want to know."""
    wiped: Wiped | None = None

    @property
    def removes(self) -> bool:
        return self.wiped is not None or any(cell.kept is None for change in self.changes for cell in change.cells)

    def text(self) -> str:
        return dumped(
            {
                "models": [
                    *(_model_as_list(self.models.active), self.models.generation),
                    *(_model_as_list(self.models.preparing), self.models.fresh),
                ],
                "changes": [_change_as_json(change) for change in self.changes],
                "settled": {str(number): by for number, by in self.settled.items()},
                **({} if self.wiped is None else {"wiped": _wiped_as_list(self.wiped)}),
            }
        )

    @classmethod
    def parse(cls, number: int, by: str, floor: int, written: str) -> Batch:
        given = json.loads(written)
        active, generation, preparing, fresh = given["models"]
        models = Models(_model(active), whole("generation", generation), _model(preparing), whole("fresh", fresh))
        changes = tuple(_change(number, one) for one in given["changes"])
        named = {
            int(settled): text("settled", whose) for settled, whose in mapping("settled", given["settled"]).items()
        }
        settled = MappingProxyType(named)
        wiped = _wiped(*given["wiped"]) if "wiped" in given else None
        return cls(number, by, floor, models, changes, settled, wiped)


def _wiped_as_list(wiped: Wiped) -> list[Any]:
    spaces = [names_of(space) for space in wiped.spaces]
    return [wiped.erasure, spaces, dict(wiped.counts), wiped.rederived, base64.b64encode(wiped.evidence).decode()]


def _wiped(erasure: str, spaces: list[Any], counts: dict[str, int], rederived: int, evidence: str) -> Wiped:
    ended = tuple(_space(names) for names in spaces)
    gone = counts_of("counts", counts)
    return Wiped(text("erasure", erasure), ended, gone, whole("rederived", rederived), base64.b64decode(evidence))


def _model_as_list(model: Model | None) -> list[Any] | None:
    return None if model is None else [model.name, model.dim, model.fingerprint]


def _model(given: list[Any] | None) -> Model | None:
    return None if given is None else Model.as_read(*given)


def _space(names: Any) -> Space:
    tenant, tier, user, agent, session = texts("space", names)
    return Space(tenant, one_of("tier", tier, get_args(Tier)), user, agent, session)


def _change_as_json(change: Change) -> dict[str, Any]:
    return {
        "space": names_of(change.space),
        "cells": [
            [one.of, None if one.kept is None else [one.kept.item.content, one.kept.cell()], one.was, one.lost]
            for one in change.cells
        ],
        "passages": [
            [one.of, one.generation, one.rows.shape[1], base64.b64encode(one.rows.tobytes()).decode()]
            for one in change.passages
        ],
        "paths": None if change.paths is None else [sorted(change.paths), change.paths_were],
    }


def _change(number: int, given: Mapping[str, Any]) -> Change:
    paths, were = (None, 0) if given["paths"] is None else given["paths"]
    return Change(
        _space(given["space"]),
        tuple(_cell(number, *one) for one in given["cells"]),
        tuple(_passages(*one) for one in given["passages"]),
        None if paths is None else frozenset(texts("paths", paths)),
        whole("paths", were),
    )


def _cell(number: int, of: Any, kept: Any, was: Any, lost: Any) -> Cell:
    gone = tuple((whole("generation", generation), text("id", id)) for generation, id in lost)
    content, cell = (None, None) if kept is None else kept
    state = None if cell is None else kept_of(content, cell, number)
    return Cell(text("of", of), state, whole("was", was), gone)


def _passages(of: Any, generation: Any, dim: Any, data: Any) -> Passages:
    rows = unpacked(base64.b64decode(text("vectors", data), validate=True), whole("dim", dim))
    return Passages(text("of", of), whole("generation", generation), rows)
