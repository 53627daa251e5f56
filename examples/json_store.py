"""A complete store backend: facts in one JSON file, which every write replaces atomically.

    python examples/json_store.py                        count the items and bytes of facts.json

docs/howto/backend.md explains the parts. Every call reads the file, so use it for thousands of items at most.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import fcntl
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from recollect import errors
from recollect.clock import to_micros, to_utc
from recollect.stores import base, codec, search
from recollect.stores.filters import Where, iter_metadata_paths, matches_where, normalize_times
from recollect.stores.health import IntegrityReport, ProgressCallback, StoreStats, ignore_progress
from recollect.stores.validation import build_model_mismatch, validate_limit, validate_writes
from recollect.stores.writes import Delete, Embed, Model, Put, Touch, Vectors, Write
from recollect.types import MemoryItem, Scope, Space, Turn

T = TypeVar("T")
Judge = Callable[[search.SearchEvidence, search.EvidenceLookup], T]
TIMES = ("created_at", "last_accessed", "valid_from", "valid_to", "expires_at", "decayed_at", "learned_at")


@dataclass(slots=True)
class Contents:
    """The parsed file: items as the writes that restore them, and the vectors of the model in preparation."""

    rows: dict[tuple[Space, str], Put] = field(default_factory=dict)
    prepared: dict[tuple[Space, str], Vectors] = field(default_factory=dict)
    paths: dict[Space, frozenset[str]] = field(default_factory=dict)
    active: Model | None = None
    preparing: Model | None = None

    def apply(self, write: Write) -> None:
        match write:
            case Put():
                self._put(write, self._check_version(write.space, write.item.id, write.expect, missing=0))
            case Delete(space, id, expect):
                self._check_version(space, id, expect, missing=-1)
                self.rows.pop((space, id), None)
                self.prepared.pop((space, id), None)
            case Touch(space, ids, at):
                for id, row in ((id, self.rows[space, id]) for id in ids if (space, id) in self.rows):
                    last, count = max(row.item.last_accessed or to_utc(at), to_utc(at)), row.item.access_count + 1
                    self.rows[space, id] = replace(row, item=replace(row.item, last_accessed=last, access_count=count))
            case Embed(space, id, vectors, model, expect):
                if self.preparing != model:
                    raise errors.Conflict(f"{model.name!r} is not being prepared; call `find_unembedded` with it first")
                if any(expect in (None, row.item.version) for row in self.read(space, [id]).values()):
                    self.prepared[space, id] = codec.pack_vectors(vectors).astype(np.float32)
            case _:
                raise errors.Unsupported(f"a JSON file keeps items; {type(write).__name__} needs another store")

    def _put(self, put: Put, before: Put | None) -> None:
        item = codec.normalize_item(put.item, before.item if before else None)
        terms = before.terms if before and put.terms is None else put.terms
        row = replace(before or Put(item=item), item=item, terms=tuple(terms or ()))
        if put.vectors is not None and put.model is not None:
            self.bind(put.model)
            row = replace(row, vectors=codec.pack_vectors(put.vectors).astype(np.float32), model=put.model)
            self.prepared.pop((put.space, item.id), None)
        self.rows[put.space, item.id] = row
        self.paths[put.space] = self.paths.get(put.space, frozenset()) | {*iter_metadata_paths(item.metadata)}

    def _check_version(self, space: Space, id: str, expect: int | None, *, missing: int) -> Put | None:
        row = self.rows.get((space, id))
        if expect is not None and expect != (row.item.version if row else missing):
            state = f"is at version {row.item.version}" if row else "is not there"
            raise errors.Conflict(f"item {id!r} {state}, not at version {expect}; read it again")
        return row

    def bind(self, model: Model) -> None:
        if self.active is not None and self.active != model:
            raise build_model_mismatch(self.active, model)
        self.active = model

    def prepare(self, model: Model) -> list[MemoryItem]:
        """Make `model` the model in preparation, and return the items without vectors of it."""
        if self.preparing != model:
            self.active, self.preparing, self.prepared = self.active or model, model, {}
        return [row.item for key, row in self.rows.items() if key not in self.prepared]

    def activate(self, model: Model) -> None:
        if (self.active, self.preparing) != (model, None):
            if self.prepare(model):
                raise errors.Conflict(f"some items have no vectors of {model.name!r} yet; go on embedding, then switch")
            self.rows = {key: replace(row, vectors=self.prepared[key], model=model) for key, row in self.rows.items()}
            self.active, self.preparing, self.prepared = model, None, {}

    def read(self, space: Space, ids: Sequence[str]) -> dict[str, Put]:
        return {id: self.rows[space, id] for id in ids if (space, id) in self.rows}

    def select(self, where: Where) -> dict[str, Put]:
        rows, where = self.rows.items(), normalize_times(where)
        return {id: row for (space, id), row in rows if space == where.space and matches_where(where, row.item)}

    def encode(self) -> bytes:
        items = [(row.item, row.terms, row.vectors, self.prepared.get(key)) for key, row in self.rows.items()]
        paths = [(space, sorted(names)) for space, names in self.paths.items()]
        data = {"active": self.active, "preparing": self.preparing, "paths": paths, "items": items}
        return json.dumps(data, default=_encode_value, allow_nan=False).encode()

    def gather(self, ask: search.EvidenceQuery, judge: Judge[T]) -> T:
        rows, found = self.select(Where(ask.where.space)), self.select(ask.where)
        if not rows:
            return judge(search.build_empty_evidence(ask), JsonLookup({}))
        cosines: dict[str, float] = {}
        if ask.vector is not None and self.active is not None:
            if ask.model not in (None, self.active):
                raise build_model_mismatch(self.active, ask.model)
            vector = codec.normalize_vectors(ask.vector, self.active.dim)[0].astype(np.float64)
            passages = {id: row.vectors @ vector for id, row in found.items() if row.vectors is not None}
            cosines = {id: float(scores.max(initial=-1.0)) for id, scores in passages.items()}
        # BM25 counts the terms of the whole space, also of items that the filter excludes.
        texts = [row.terms or () for row in rows.values()]
        lengths = np.array([[len(text)] for text in texts], np.float64)
        counts = np.array([[text.count(term) for term in ask.terms] for text in texts], np.float64)
        corpus = search.CorpusStats(len(texts), float(lengths.mean()))
        weights = [search.compute_idf(corpus, holders) for holders in np.count_nonzero(counts, axis=0).tolist()]
        parts = dict(zip(rows, search.compute_bm25(corpus, counts, lengths, np.array(weights)).tolist(), strict=True))
        size = {id: 1 if row.vectors is None else len(row.vectors) for id, row in rows.items()}
        briefs = {
            id: search.build_brief(row.item, length=len(row.terms or ()), passages=size[id]) for id, row in rows.items()
        }
        near = [search.ScoredItem(briefs[id], cosine) for id, cosine in cosines.items()]
        matches = [search.ScoredItem(briefs[id], sum(parts[id])) for id in found if any(parts[id])]
        best = [scored.brief for ranked in (near, matches) for scored in search.sort_by_score(ranked, ask.limit)]
        around = [briefs[id] for id in found if any(_is_near(briefs[id], turn, ask.reach) for turn in best)]
        speakers = frozenset(brief.speaker for brief in briefs.values() if brief.speaker is not None)
        return judge(search.build_evidence({*best, *around}, cosines, parts, weights, speakers), JsonLookup(rows))


class JsonStore(base.Records):
    """Items in one JSON file, which several processes on Linux or macOS may share."""

    capabilities = base.Capabilities(erasure="delete")  # the disk may keep blocks of earlier files

    def __init__(self, path: str | Path) -> None:
        self.path, self._is_closed, self._worker = Path(path), False, ThreadPoolExecutor(1, "json-store")

    async def close(self) -> None:
        self._is_closed = True
        await asyncio.to_thread(self._worker.shutdown)

    async def _run(self, work: Callable[[Contents], T], *, saves: bool = False) -> T:
        """Run `work` in the thread of the store: calls keep their order, and a write that has begun is finished."""
        if self._is_closed:
            raise errors.StoreClosed(f"{self.path} was closed; open it again to use it")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, self._work, work, saves)
        except OSError as error:
            kind = errors.StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else errors.StoreUnavailable
            raise kind(f"{self.path} cannot be read or written: {error.strerror}") from error

    def _work(self, work: Callable[[Contents], T], saves: bool) -> T:
        """Load the file and run `work`. Unless it raises, save the contents to a new file and rename that."""
        directory, new = os.open(self.path.parent, os.O_RDONLY), f"{self.path}.new"
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            contents = _decode_file(self.path) if self.path.exists() else Contents()
            result = work(contents)
            if saves:
                with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                    file.write(contents.encode())
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(new, self.path)
                os.fsync(directory)  # otherwise a power loss may undo the rename
            return result
        finally:
            os.close(directory)

    async def write(self, *writes: Write) -> None:
        checked = validate_writes(writes)
        await self._run(lambda contents: list(map(contents.apply, checked)), saves=True)

    def touch(self, touch: Touch) -> None:
        if not self._is_closed:
            self._worker.submit(self._work, lambda contents: contents.apply(touch), True)

    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        return [put.item for put in await self.get_full(space, *ids)]

    async def get_full(self, space: Space, *ids: str) -> list[Put]:
        return await self._run(lambda contents: [*contents.read(space, ids).values()])

    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        rows, count = await self._run(lambda contents: contents.select(where)), validate_limit(limit)
        ages = sorted(((row.item.created_at, id) for id, row in rows.items()), reverse=True)
        return [rows[age[1]].item for age in ages if after is None or age < (after.created_at, after.id)][:count]

    async def last_turns(self, space: Space, session: str, *, limit: int = 1) -> list[MemoryItem]:
        rows, count = await self._run(lambda contents: contents.select(Where(space))), validate_limit(limit)
        turns = [(turn.position, id) for id, row in rows.items() if (turn := row.item.turn) and turn.session == session]
        return [rows[id].item for _, id in sorted(turns, reverse=True)[:count]]

    async def gather(self, ask: search.EvidenceQuery, judge: Judge[T]) -> T:
        return await self._run(lambda contents: contents.gather(ask, judge))

    async def paths(self, space: Space) -> frozenset[str]:
        return await self._run(lambda contents: contents.paths.get(space, frozenset()))

    async def model(self) -> Model | None:
        return await self._run(lambda contents: contents.active)

    async def bind_model(self, model: Model) -> None:
        await self._run(lambda contents: contents.bind(model), saves=True)

    async def find_unembedded(self, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        return await self._run(lambda contents: contents.prepare(model)[: validate_limit(limit)], saves=True)

    async def activate_model(self, model: Model) -> None:
        await self._run(lambda contents: contents.activate(model), saves=True)

    async def trace_spaces(self, tenant: str | None = None) -> list[base.SpaceTrace]:
        contents = await self._run(lambda contents: contents)
        spaces = sorted((s for s in contents.paths if tenant in (None, s.tenant)), key=base.get_space_names)
        times = {space: [row.item.created_at for row in contents.select(Where(space)).values()] for space in spaces}
        return [base.SpaceTrace(space, len(found), max(found, default=None)) for space, found in times.items()]

    async def read_stats(self) -> StoreStats:
        count = await self._run(lambda contents: len(contents.rows))
        size = self.path.stat().st_size if self.path.exists() else 0
        return StoreStats(engine="JSON file", durability="power loss", items=count, bytes=size)

    async def check_integrity(self, tell: ProgressCallback = ignore_progress) -> IntegrityReport:
        tell("file")
        try:
            return await self._run(lambda contents: IntegrityReport())
        except errors.StoreCorrupt as error:
            return IntegrityReport(faults=(str(error),))


class JsonLookup(NamedTuple):
    """Reads of the same moment for the ranking function of `gather`."""

    rows: Mapping[str, Put]

    def items(self, ids: Sequence[str]) -> dict[str, MemoryItem]:
        return {id: self.rows[id].item for id in ids if id in self.rows}

    def terms(self, ids: Sequence[str]) -> dict[str, str]:
        return {id: " ".join(self.rows[id].terms or ()) for id in ids if id in self.rows}


def _is_near(brief: search.ItemBrief, turn: search.ItemBrief, reach: int) -> bool:
    return brief.session == turn.session is not None and abs((brief.position or 0.0) - (turn.position or 0.0)) <= reach


def _encode_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return base64.b64encode(codec.pack_vectors(value).tobytes()).decode()
    if isinstance(value, datetime):
        return to_micros(value)
    return dict(value) if isinstance(value, Mapping) else {f.name: getattr(value, f.name) for f in fields(value)}


def _decode_file(path: Path) -> Contents:
    with codec.detect_corruption(str(path)):
        file = json.loads(path.read_bytes())
        active, preparing = (model and Model.decode(**model) for model in (file["active"], file["preparing"]))
        paths = {Space(**space): frozenset(codec.decode_texts("paths", names)) for space, names in file["paths"]}
        contents = Contents(active=active, preparing=preparing, paths=paths)
        for data, terms, vectors, prepared in file["items"]:
            data |= {name: codec.decode_optional_time(name, data[name]) for name in TIMES}
            data |= {"scope": Scope(**data["scope"]), "turn": data["turn"] and Turn(**data["turn"])}
            data |= {"metadata": MappingProxyType(data["metadata"]), "derived_from": tuple(data["derived_from"])}
            row = Put(item=MemoryItem(**data), terms=codec.decode_texts("terms", terms))
            if vectors is not None:
                row = replace(row, vectors=_unpack(vectors, active), model=active)
            validate_writes([row])  # finds values that the store would not have written
            contents.rows[row.space, row.item.id] = row
            if prepared is not None:
                contents.prepared[row.space, row.item.id] = _unpack(prepared, preparing)
        return contents


def _unpack(text: str, model: Model) -> Vectors:
    return np.frombuffer(base64.b64decode(text), codec.VECTOR_DTYPE).reshape(-1, model.dim).astype(np.float32)


if __name__ == "__main__":
    print(asyncio.run(JsonStore("facts.json").read_stats()))
