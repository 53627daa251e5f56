"""How a Chroma is: its version, its files, and how much it holds."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from recollect.stores.chroma.engine import Engine
from recollect.stores.health import Vitals

_WEEK = timedelta(days=7)
_BYTES_A_NUMBER = 4
_EMBEDDED = ("semantic", "procedural", "conversation")


def vitals(engine: Engine, directory: Path | None, bytes: int) -> Vitals:
    """What this process knows of it. In a directory nobody else writes, so that the newest moment is this one's."""
    engine.follow()
    shelves = [(space, shelf) for space, shelf in engine.each() if shelf.kept]
    items = [kept.item for _, shelf in shelves for kept in shelf.kept.values()]
    moments: list[datetime] = [item.created_at for item in items]
    newest = max(moments, default=None)
    model = engine.models.active
    large = max((len(shelf.kept) for space, shelf in shelves if space.tier in _EMBEDDED), default=0)
    return Vitals(
        engine="Chroma",
        versions={"Chroma" if directory is not None else "Chroma server": engine.collections.version},
        survives="power loss",
        oldest=min(moments, default=None),
        newest=newest,
        files=() if directory is None else (directory, directory / "chroma.sqlite3"),
        bytes=bytes,
        items=len(items),
        fresh=sum(newest is not None and item.created_at >= newest - _WEEK for item in items),
        superseded=sum(item.superseded_by is not None for item in items),
        largest_space=0 if model is None else large * model.dim * _BYTES_A_NUMBER,
        encrypted=False if directory is not None else None,
    )


def bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def bytes_of(engine: Engine) -> int:
    """What was handed to a server, which does not say how much room it takes."""
    model = engine.models.active
    row = model.dim * 4 if model is not None else 0
    return sum(
        len(kept.item.content.encode()) + len(str(kept.cell())) + row * sum(ref.passages for ref in kept.refs.values())
        for _, shelf in engine.each()
        for kept in shelf.kept.values()
    )
