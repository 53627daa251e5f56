"""What is left after a deletion: the files of a directory are written anew without it, and every byte is looked at.

Chroma keeps deleted texts in its log of writes, in its word index, in free pages of its file, and in its index files,
into which it writes whatever lay in memory. None of that can be reached from outside of a server.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import apsw

from recollect.stores.chroma import ledger
from recollect.stores.chroma.address import Address
from recollect.stores.chroma.cells import PREFIX, dumped, names_of
from recollect.stores.chroma.collections import Collections, Record
from recollect.stores.chroma.engine import Engine
from recollect.stores.chroma.wiping import values_of
from recollect.stores.receipts import Scan
from recollect.stores.traces import Traces

_FILE = "chroma.sqlite3"
_INDEX = "header.bin"
_BYTES_AT_ONCE = 1 << 22
_TICK = "tick"
_BUSY_MILLISECONDS = 1000

# The log of what was written to our collections, as far as it is in its place. Not its last row: numbers go on from
# there, and whoever gets one that was used before writes nothing at all.
_FORGET_LOG = """
    delete from embeddings_queue
    where seq_id < (select max(seq_id) from embeddings_queue)
        and seq_id <= coalesce(
            (
                select max(done.seq_id)
                from collections
                join segments on segments.collection = collections.id and segments.scope = 'METADATA'
                join max_seq_id as done on done.segment_id = segments.id
                where collections.name like ?1 || '%' and embeddings_queue.topic like '%/' || collections.id
            ),
            -1
        )
"""

_OF_OTHERS = """
    select segments.id
    from segments
    join collections on collections.id = segments.collection
    where collections.name not like ?1 || '%'
"""


def written_anew(directory: Path) -> bool:
    """The files of a directory, without what was deleted; False while somebody else reads them."""
    connection = apsw.Connection(str(directory / _FILE))
    connection.set_busy_timeout(_BUSY_MILLISECONDS)
    try:
        connection.execute(_FORGET_LOG, (PREFIX,))
        connection.execute("insert into embedding_fulltext_search (embedding_fulltext_search) values ('optimize')")
        connection.execute("vacuum")
        kept = {id for (id,) in connection.execute(_OF_OTHERS, (PREFIX,))}
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    drop_indices(directory, kept)
    return True


def drop_indices(directory: Path, kept: set[str] | None = None) -> None:
    """Index files: nothing of ours is in them that is needed, and anything may be in them that is not."""
    if kept is None:
        connection = apsw.Connection(str(directory / _FILE), flags=apsw.SQLITE_OPEN_READONLY)
        kept = {id for (id,) in connection.execute(_OF_OTHERS, (PREFIX,))}
        connection.close()
    for sign in directory.glob(f"*/{_INDEX}"):
        if sign.parent.name not in kept:
            shutil.rmtree(sign.parent)


def tick(collections: Collections) -> None:
    """Have the log end in a row that says nothing: it is the one that stays."""
    collections.add(ledger.NAME, [Record(_TICK, {"kind": _TICK})])
    collections.delete(ledger.NAME, [_TICK])
    for name in collections.names(PREFIX):  # whoever is asked has taken in the log as far as it goes
        collections.read(name, ids=[_TICK])


def scan_directory(engine: Engine, address: Address, evidence: bytes) -> Scan:
    """Every byte of a directory at rest: without the index files, which are made again with the next write."""
    directory = address.directory
    assert directory is not None
    traces = _traces(engine, evidence)

    def looked() -> tuple[Scan, set[int]]:
        drop_indices(directory)
        return _in_files(traces, directory)

    scan, found = engine.collections.closed_for(looked, address)
    shared = _explained(engine, traces, found)
    return replace(
        scan,
        pieces=len(traces),
        of=traces.of,
        shared=len(shared),
        found=len(found - shared),
        unseen=(
            f"copies of {directory} that somebody made before",
            f"index files in {directory} while it is open, into which Chroma writes what lay in memory; they are "
            "removed when it is closed",
        ),
    )


def _in_files(traces: Traces, directory: Path) -> tuple[Scan, set[int]]:
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    found: set[int] = set()
    size = 0
    for path in files:
        size += path.stat().st_size
        found |= traces.found_in(_chunks(path))
    return Scan(files=len(files), bytes=size), found


def scan_server(engine: Engine, place: str, evidence: bytes) -> Scan:
    """All that a server shows of itself: its records. Of its files it tells nothing."""
    traces = _traces(engine, evidence)
    found: set[int] = set()
    size = 0
    for name in engine.collections.names(PREFIX):
        if name == ledger.NAME:
            continue
        for record in engine.collections.read(name):
            value = "\0".join(map(str, (record.id, record.text, *record.meta.values()))).encode()
            size += len(value)
            found |= traces.found_in([value])
    shared = _explained(engine, traces, found)
    return Scan(
        bytes=size,
        pieces=len(traces),
        of=traces.of,
        shared=len(shared),
        found=len(found - shared),
        unseen=(f"copies of the directory of {place} that somebody made before",),
        waits=(
            f"{place} keeps deleted texts in its files, where nobody but its operator can reach them: stop it, run "
            "`recollect finish-erasures --store chroma:DIRECTORY` on its directory, and start it again; then go on "
            "with: recollect lifecycle",
        ),
    )


def _traces(engine: Engine, evidence: bytes) -> Traces:
    key = ledger.salt(engine.collections)
    return Traces.unpacked(key, evidence) if evidence else Traces.of_pieces(key, [])


def _explained(engine: Engine, traces: Traces, found: set[int]) -> set[int]:
    """Those that something which is still kept holds too."""
    shared: set[int] = set()
    for space, shelf in engine.each() if found else ():
        for kept in shelf.kept.values():
            shared |= traces.found_in([b"\0".join((*values_of(kept), dumped(names_of(space)).encode()))])
        for rows in engine.places.vectors(space, engine.models.generation).values():
            shared |= traces.found_in([rows.tobytes() + b"\0" + base64.b64encode(rows.tobytes())])
    return shared & found


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as opened:
        while chunk := opened.read(_BYTES_AT_ONCE):
            yield chunk
