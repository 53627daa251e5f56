"""What is asked of Chroma: named collections, whose records are added once, read, and deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import chromadb
import httpx
import numpy as np
from chromadb import errors
from chromadb.config import Settings

from recollect.stores.chroma.address import Address
from recollect.stores.chroma.faults import knock, not_opened, translated

T = TypeVar("T")

Meta = Mapping[str, str | int | float | bool]

# Below what one request may carry by default, on a server (40 MB) and in SQLite's count of parameters.
_AT_ONCE = 2_000
_LISTED_AT_ONCE = 1_000
# Every record has to have a vector. Ours says nothing, and the index over it is as small as can be: Chroma writes its
# index files in place, and one that is torn when a process dies makes the whole collection unreadable. So nothing of
# ours is in an index, and it can be thrown away.
_NO_VECTOR = np.ones(1, np.float32)
_NO_INDEX = {"space": "ip", "max_neighbors": 2, "ef_construction": 4}
# After so many records Chroma writes an index and forgets its log of them, which until then every write reads again.
SYNC_AFTER = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One record. It is never changed: `add` leaves one that is there already as it is."""

    id: str
    meta: Meta
    text: str | None = None


class Collections:
    """A client of one Chroma."""

    def __init__(self, client: Any, place: str, sessions: Sequence[httpx.Client] = ()) -> None:
        self.place = place
        self._client = client
        self._sessions = sessions
        self._known: dict[str, Any] = {}

    @classmethod
    def open(cls, address: Address, *, patience: float) -> Collections:
        """Connect; `patience` is how many seconds a server has for one answer."""
        place, quiet = str(address), Settings(anonymized_telemetry=False)
        names = {"tenant": address.tenant, "database": address.database}
        if address.directory is not None:
            try:
                return cls(chromadb.PersistentClient(address.directory, quiet, **names), place)
            except Exception as error:
                raise not_opened(error, place, **names) from error
        with translated(place):
            knock(address, patience)
            client = chromadb.HttpClient(address.host, address.port, address.secure, address.headers, quiet, **names)
        # The client waits for ever by default, has no option for that, and leaves its connections open: its own, and
        # those of the client for tenants and databases that it makes besides.
        sessions: list[Any] = [one._server._session for one in (client, client._admin_client)]
        for session in sessions:
            session.timeout = httpx.Timeout(patience)
        return cls(client, place, sessions)

    @property
    def version(self) -> str:
        """Of the server, or of the package where there is none."""
        with translated(self.place):
            return str(self._client.get_version())

    def names(self, prefix: str) -> dict[str, Meta]:
        """The collections whose names begin like this, each with what was said of it."""
        found: dict[str, Meta] = {}
        with translated(self.place):
            start = 0
            while page := self._client.list_collections(limit=_LISTED_AT_ONCE, offset=start):
                found.update({one.name: one.metadata or {} for one in page if one.name.startswith(prefix)})
                start += len(page)
        return found

    def add(
        self, name: str, records: Sequence[Record], about: Meta | None = None, *, sync_after: int = SYNC_AFTER
    ) -> None:
        """Add what is not there yet; the collection too, of which `about` is then said."""
        for start in range(0, len(records), _AT_ONCE):
            some = records[start : start + _AT_ONCE]
            texts = [record.text or "" for record in some] if some[0].text is not None else None
            vectors = np.tile(_NO_VECTOR, (len(some), 1))
            given = ([one.id for one in some], vectors, [dict(one.meta) for one in some], texts)
            with translated(self.place):
                try:
                    self._made(name, about, sync_after).add(*given)
                except errors.NotFoundError:  # dropped by another client meanwhile
                    self._known.pop(name, None)
                    self._made(name, about, sync_after).add(*given)

    def read(self, name: str, *, where: dict[str, Any] | None = None, ids: Sequence[str] | None = None) -> list[Record]:
        """The records of a collection that fit; none of one that does not exist."""
        if ids is None and where is None:
            # Not page by page: a record that is deleted meanwhile would move others off their page.
            ids = self.ids(name)
        if ids is None:
            return self._read(name, where=where)
        chunks = [ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE)]
        return [record for some in chunks for record in self._read(name, ids=list(some))]

    def ids(self, name: str, where: dict[str, Any] | None = None) -> list[str]:
        return [record.id for record in self._read(name, where=where, include=[])]

    def delete(self, name: str, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), _AT_ONCE):
            with translated(self.place):
                collection = self._found(name)
                if collection is not None:
                    collection.delete(list(ids[start : start + _AT_ONCE]))

    def drop(self, name: str) -> None:
        self._known.pop(name, None)
        with translated(self.place):
            try:
                self._client.delete_collection(name)
            except errors.NotFoundError:
                return

    def closed_for(self, work: Callable[[], T], address: Address) -> T:
        """Let go of a directory for as long as somebody works on its files."""
        self._client.close()
        self._known.clear()
        try:
            return work()
        finally:
            self._client = type(self).open(address, patience=0)._client  # which is a server's

    def close(self) -> None:
        self._client.close()
        for session in self._sessions:
            session.close()

    def _read(self, name: str, **asked: Any) -> list[Record]:
        asked.setdefault("include", ["metadatas", "documents"])
        with translated(self.place):
            for _ in range(2):
                collection = self._found(name)
                if collection is None:
                    return []
                try:
                    found = collection.get(**asked)
                except errors.NotFoundError:  # dropped by another client; perhaps made again
                    self._known.pop(name, None)
                    continue
                metas = found["metadatas"] or [{}] * len(found["ids"])
                texts = found["documents"] or [None] * len(found["ids"])
                return [Record(id, m or {}, t) for id, m, t in zip(found["ids"], metas, texts, strict=True)]
        return []

    def _found(self, name: str) -> Any | None:
        if name not in self._known:
            try:
                self._known[name] = self._client.get_collection(name, embedding_function=None)
            except errors.NotFoundError:
                return None
        return self._known[name]

    def _made(self, name: str, about: Meta | None, sync_after: int) -> Any:
        if name not in self._known:
            self._known[name] = self._client.get_or_create_collection(
                name,
                metadata=dict(about) if about else None,
                configuration={"hnsw": {**_NO_INDEX, "sync_threshold": sync_after, "batch_size": min(sync_after, 100)}},
                embedding_function=None,
            )
        return self._known[name]
