"""The client of a Chroma directory or server: address, directory lock, error messages, and collections of records."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import chromadb
import httpx
import numpy as np
from chromadb import errors
from chromadb.config import Settings
from numpy.typing import NDArray

from recollect.errors import BadSettings, RecollectError, StoreCorrupt, StoreFull, StoreUnavailable

Vector = NDArray[np.float32]

_URL_FORMS = "chroma:./DIRECTORY, chroma+http://HOST:PORT or chroma+https://TOKEN@HOST:PORT?tenant=…&database=…"
_URL_OPTIONS = frozenset({"tenant", "database", "token_header"})
# Looks like a server, so it is not taken for the name of a directory.
_SERVER_URL = re.compile(r"//[^/.][^/]*:\d+/?")


@dataclass(frozen=True, slots=True)
class ChromaAddress:
    """A directory, or a server with its credentials."""

    directory: Path | None = None
    host: str = ""
    port: int = 8000
    is_secure: bool = False
    token: str | None = None
    token_header: str = "Authorization"
    tenant: str = "default_tenant"
    database: str = "default_database"

    @classmethod
    def parse(cls, url: str) -> ChromaAddress:
        """Return the address of a URL; the message of an error does not show the token."""
        name, (scheme, _, rest) = repr(url.split("@")[-1]), url.partition(":")
        try:
            parts = urlsplit(url)
            port, query = (parts.port, parts.query) if "+" in scheme else (None, rest.partition("?")[2])
            options: dict[str, Any] = dict(parse_qsl(query, strict_parsing=True) if query else ())
        except ValueError as error:
            raise BadSettings(f"{name} is not a Chroma URL ({error}); use {_URL_FORMS}") from error
        if unknown := sorted(options.keys() - _URL_OPTIONS):
            raise BadSettings(f"{name} has an unknown option {unknown[0]!r}; use {_URL_FORMS}")
        path = rest.removeprefix("//").partition("?")[0]
        if scheme == "chroma" and path.strip() and not _SERVER_URL.fullmatch(rest):
            return cls(directory=Path(path), **options)
        if scheme not in ("chroma+http", "chroma+https") or not parts.hostname or parts.path not in ("", "/"):
            raise BadSettings(f"{name} is not a Chroma URL; use {_URL_FORMS}")
        secure = scheme == "chroma+https"
        token = unquote(parts.username) if parts.username else None
        return cls(None, parts.hostname, port or (443 if secure else 8000), secure, token, **options)

    def __str__(self) -> str:
        """Return the address without the token."""
        return str(self.directory) if self.directory is not None else f"the Chroma server at {self.host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        if self.token is None:
            return {}
        bearer = self.token_header.lower() == "authorization"
        return {self.token_header: f"Bearer {self.token}" if bearer else self.token}


_ACCESS_DENIED = re.compile(r"\b(401|403|unauthori[sz]ed|forbidden|authentication|permission)\b", re.IGNORECASE)
_DISK_FULL = re.compile(r"disk (I/O error|is full)|no space left|database or disk is full", re.IGNORECASE)
_INDEX_DAMAGED = re.compile(r"hnsw|error finding id", re.IGNORECASE)
_INCOMPATIBLE_FILES = re.compile(
    r"migration|inconsistent|no such (table|column)|not a database|malformed|schema", re.IGNORECASE
)


@contextmanager
def translate_errors(address: str) -> Iterator[None]:
    """Raise Chroma's errors as RecollectErrors, except NotFoundError, which callers handle."""
    try:
        yield
    except (RecollectError, errors.NotFoundError):
        raise
    except httpx.TimeoutException as error:
        raise StoreUnavailable(f"{address} did not answer in time; the request may have been applied") from error
    except Exception as error:  # chromadb raises bare Exceptions for a server's errors
        raise convert_error(error, address) from error


def convert_error(error: Exception, address: str) -> RecollectError:
    lines = str(error).strip().splitlines()
    reason = lines[0][:300] if lines else type(error).__name__
    if isinstance(error, httpx.HTTPError) or "Could not connect" in reason:
        return StoreUnavailable(f"{address} cannot be reached ({reason}); check that it runs, then try again")
    if isinstance(error, errors.ChromaAuthError | errors.AuthorizationError) or _ACCESS_DENIED.search(reason):
        return StoreUnavailable(
            f"{address} refused access ({reason}); set the token in the URL: chroma+http://TOKEN@HOST:PORT"
        )
    if _INDEX_DAMAGED.search(str(error)):
        return StoreCorrupt(
            f"the vector index at {address} is damaged, probably by a crash ({reason}). Stop Chroma, delete the "
            "folders next to chroma.sqlite3 that have a header.bin, start it again, and run `recollect reembed`: facts "
            "are in chroma.sqlite3, and their vectors are made again"
        )
    if _DISK_FULL.search(reason):
        return StoreFull(f"the disk is full at {address}; free some space and try again, nothing was lost")
    if isinstance(error, errors.InvalidDimensionException) or "dimension" in reason:
        return StoreCorrupt(
            f"a collection at {address} has vectors of an unexpected length ({reason}); if another application uses "
            "it, set another database in the URL, or another directory"
        )
    if isinstance(error, errors.VersionMismatchError) or _INCOMPATIBLE_FILES.search(reason):
        return StoreCorrupt(
            f"{address} was written by an incompatible version of Chroma ({reason}); install that version of chromadb, "
            "or use an empty directory and import an export"
        )
    return StoreUnavailable(f"{address} failed: {reason}")


def check_server(address: ChromaAddress, timeout: float) -> None:
    """Raise if the server or the database is not there: chromadb's own check has no timeout."""
    scheme = "https" if address.is_secure else "http"
    tenant, database = quote(address.tenant, safe=""), quote(address.database, safe="")
    url = f"{scheme}://{address.host}:{address.port}/api/v2/tenants/{tenant}/databases/{database}"
    answer = httpx.get(url, headers=address.headers, timeout=timeout)
    if answer.status_code in (401, 403):
        raise convert_error(errors.ChromaAuthError(f"it answers {answer.status_code}"), str(address))
    if answer.status_code == 404 and "error" in answer.text:
        raise BadSettings(
            f"{address} has no database {address.database!r} in tenant {address.tenant!r}; create it with chromadb's "
            "AdminClient, or remove ?tenant= and ?database= from the URL"
        )
    if answer.status_code != 200:
        raise StoreUnavailable(
            f"{address} is not a Chroma 1.x server (HTTP status {answer.status_code}); check the port, or upgrade the "
            "server: pip install --upgrade chromadb"
        )


# A server accepts 40 MB a request by default, and SQLite 32,766 parameters a statement.
_RECORDS_PER_REQUEST = 1_000
_COLLECTIONS_PER_PAGE = 1_000
_ALL = ("metadatas", "documents")
_PLAIN_VECTOR = np.ones(1, np.float32)
"""Vector of records without one: Chroma requires it."""
# Vectors have unit length, so that the inner product is the cosine, and Chroma returns them unchanged.
_VECTOR_INDEX = {"space": "ip"}
_PLAIN_INDEX = {"space": "ip", "max_neighbors": 2, "ef_construction": 4}


@dataclass(frozen=True, slots=True, eq=False)
class ChromaRecord:
    """A record of a collection. A metadata value of None deletes the key."""

    id: str
    metadata: Mapping[str, Any]
    text: str | None = None
    vector: Vector | None = None


class ChromaClient:
    """The collections of one Chroma database. Not thread-safe."""

    def __init__(self, client: Any, address: str, sessions: Sequence[httpx.Client] = ()) -> None:
        self.address = address
        self._client = client
        self._sessions = sessions
        self._collections: dict[str, Any] = {}

    @classmethod
    def open(cls, address: ChromaAddress, *, timeout: float) -> ChromaClient:
        """Connect; `timeout` is in seconds, for each answer of a server."""
        settings = Settings(anonymized_telemetry=False)
        names = {"tenant": address.tenant, "database": address.database}
        with translate_errors(str(address)):
            if address.directory is not None:
                try:
                    return cls(chromadb.PersistentClient(address.directory, settings, **names), str(address))
                except errors.NotFoundError as error:
                    raise BadSettings(
                        f"{address} has no database {address.database!r} in tenant {address.tenant!r}"
                    ) from error
            check_server(address, timeout)
            client = chromadb.HttpClient(
                address.host, address.port, address.is_secure, address.headers, settings, **names
            )
        # chromadb has no option for a timeout, and does not close the connections of its two clients.
        sessions: list[Any] = [part._server._session for part in (client, client._admin_client)]
        for session in sessions:
            session.timeout = httpx.Timeout(timeout)
        return cls(client, str(address), sessions)

    @property
    def version(self) -> str:
        """The version of the server, or of the chromadb package."""
        with translate_errors(self.address):
            return str(self._client.get_version())

    def list_collections(self, prefix: str = "") -> list[str]:
        """Return the names of the collections that start with `prefix`."""
        names: list[str] = []
        with translate_errors(self.address):
            while page := self._client.list_collections(limit=_COLLECTIONS_PER_PAGE, offset=len(names)):
                names += [collection.name for collection in page]
        return [name for name in names if name.startswith(prefix)]

    def add(self, name: str, record: ChromaRecord) -> ChromaRecord:
        """Write a record unless its id exists, and return the stored one: of several clients, the first wins."""
        self._write("add", name, [record])
        return self.get(name, [record.id])[0]

    def upsert(self, name: str, records: Sequence[ChromaRecord]) -> None:
        """Write records. Metadata of an earlier record stays unless its key is given; None deletes a key."""
        for start in range(0, len(records), _RECORDS_PER_REQUEST):
            self._write("upsert", name, records[start : start + _RECORDS_PER_REQUEST])

    def update(self, name: str, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Change some metadata of existing records, by their ids."""
        if metadata:
            self._call("update", name, ids=list(metadata), metadatas=list(metadata.values()))

    def get(self, name: str, ids: Sequence[str], *parts: str) -> list[ChromaRecord]:
        """Return the records that exist, with metadata and text unless other `parts` are given."""
        chunks = [list(ids[start : start + _RECORDS_PER_REQUEST]) for start in range(0, len(ids), _RECORDS_PER_REQUEST)]
        return [record for chunk in chunks for record in self._read(name, parts or _ALL, ids=chunk)]

    def find(self, name: str, where: Mapping[str, Any], *parts: str, limit: int | None = None) -> list[ChromaRecord]:
        """Return the records that match a filter, with metadata and text unless other `parts` are given."""
        return self._read(name, parts or _ALL, where=where, limit=limit)

    def find_ids(self, name: str, where: Mapping[str, Any] | None = None, limit: int | None = None) -> list[str]:
        """Return the ids of the records that match a filter, or of all."""
        return [record.id for record in self._read(name, (), where=where, limit=limit)]

    def query(self, name: str, vector: Vector, where: Mapping[str, Any], limit: int) -> list[str]:
        """Return the ids of the records that Chroma's index finds nearest to a vector, nearest first."""
        found = self._call("query", name, query_embeddings=vector[None], n_results=limit, where=where, include=[])
        return list(found["ids"][0]) if found else []

    def delete(self, name: str, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), _RECORDS_PER_REQUEST):
            self._call("delete", name, ids=list(ids[start : start + _RECORDS_PER_REQUEST]))

    def delete_where(self, name: str, where: Mapping[str, Any]) -> None:
        self._call("delete", name, where=where)

    def drop_collections(self, prefix: str) -> None:
        for name in self.list_collections(prefix):
            self._collections.pop(name, None)
            with translate_errors(self.address), suppress(errors.NotFoundError):
                self._client.delete_collection(name)

    def close(self) -> None:
        self._client.close()
        for session in self._sessions:
            session.close()

    def _write(self, method: str, name: str, records: Sequence[ChromaRecord]) -> None:
        vectors = [_PLAIN_VECTOR if record.vector is None else record.vector for record in records]
        self._call(
            method,
            name,
            create=_PLAIN_INDEX if records[0].vector is None else _VECTOR_INDEX,
            ids=[record.id for record in records],
            embeddings=np.array(vectors),
            metadatas=[dict(record.metadata) for record in records],
            documents=None if records[0].text is None else [record.text for record in records],
        )

    def _read(self, name: str, parts: Sequence[str], **query: Any) -> list[ChromaRecord]:
        found = self._call("get", name, include=list(parts), **query)
        if found is None:
            return []
        nothing = [None] * len(found["ids"])
        metas, texts, vectors = (found[part] if part in parts else nothing for part in (*_ALL, "embeddings"))
        return [
            ChromaRecord(id, meta or {}, text, vector)
            for id, meta, text, vector in zip(found["ids"], metas, texts, vectors, strict=True)
        ]

    def _call(self, method: str, name: str, *, create: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
        """Call a method of a collection; without `create`, return None if the collection does not exist."""
        with translate_errors(self.address):
            for is_retry in (False, True):
                try:
                    return getattr(self._open_collection(name, create), method)(**arguments)
                except errors.NotFoundError as error:  # it may have been dropped and created by another client
                    self._collections.pop(name, None)
                    if is_retry and create is not None:
                        raise StoreUnavailable(f"{name} at {self.address} was deleted meanwhile; try again") from error
        return None

    def _open_collection(self, name: str, create: Mapping[str, Any] | None) -> Any:
        if name not in self._collections and create is None:
            self._collections[name] = self._client.get_collection(name, embedding_function=None)
        elif name not in self._collections:
            self._collections[name] = self._client.get_or_create_collection(
                name, configuration={"hnsw": create}, embedding_function=None
            )
        return self._collections[name]


_LOCK_FILE = "recollect.lock"


class ChromaDirectoryLock:
    """A lock that lets one process at a time use a directory: Chroma's files are not safe for two."""

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # Chroma creates its files world-readable
            self._file = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(
                f"{directory} cannot be used as a Chroma directory ({error.strerror}); use a writable one"
            ) from error
        try:
            _lock(self._file)
        except OSError as error:
            os.close(self._file)
            raise StoreUnavailable(
                f"{directory} is already open, in this or another process, and Chroma's files allow only one; close it "
                f"there, or run a server (chroma run --path {directory}) and use chroma+http://localhost:8000"
            ) from error

    def close(self) -> None:
        os.close(self._file)  # unlocks it


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
