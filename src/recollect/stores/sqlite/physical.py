"""What is left on disk after a deletion: the log is written back and emptied, then every byte is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw

from recollect.stores.receipts import Scan
from recollect.stores.sqlite import ledger
from recollect.stores.sqlite.connection import checkpointed, translated
from recollect.stores.sqlite.evidence import Evidence
from recollect.stores.sqlite.file import connected
from recollect.stores.sqlite.gaps import COPY, blank
from recollect.stores.sqlite.key import Key
from recollect.stores.sqlite.leaves import words_of
from recollect.stores.sqlite.pages import read_file, read_log
from recollect.stores.sqlite.words import token

_BYTES_AT_ONCE = 1 << 22
_BUSY_MILLISECONDS = 100
# Not the `-shm`: it holds numbers of pages and no content, and whoever opens and closes it gives up all locks.
_COMPANIONS = ("-wal", "-journal", "-ballast", COPY)

_LIVE = (
    """
    select id, content, metadata, superseded_by, source, key, session, speaker, derived_from, by_user, by_agent,
        by_session, terms
    from records
    """,
    "select id, kind, content, metadata from entries",
    "select id, plan_hash, owner from tasks",
    "select state from checkpoints",
    "select key, task, idempotency_key, input_sha, result, error from steps",
    "select tenant, user, agent, session from spaces",
    "select path from paths",
    "select value from meta",
    "select id, subject, receipt from erasures",
    # The largest last: what is found is mostly a text that somebody else has too, and looking ends when all are.
    "select data from vectors_a",
    "select data from vectors_b",
)


def settled(path: Path, key: Key | None = None) -> bool:
    """Nothing is left in the log nor between the rows of a page; False while somebody is in the way."""
    return emptied_log(path, key) and blank(path, key) and emptied_log(path, key)


def emptied_log(path: Path, key: Key | None = None) -> bool:
    """Write the log back and cut it to nothing; False while somebody reads from it or writes to it."""
    with translated(path):
        connection = connected(path, key)
        try:
            connection.set_busy_timeout(_BUSY_MILLISECONDS)
            return checkpointed(connection)
        finally:
            connection.close()


def scan(connection: apsw.Connection, path: Path, packed: bytes) -> Scan:
    """Look for deleted bytes in the file and all that lies beside it, and for words that nothing holds.

    The file and its log are read as SQLite reads them: of what is encrypted the bytes on disk would prove nothing.
    """
    evidence = Evidence.unpacked(ledger.salt(connection), packed)
    traces = evidence.traces
    beside = [file for suffix in _COMPANIONS if (file := path.with_name(path.name + suffix)).is_file()]
    found = traces.found_in(read_file(connection)) | traces.found_in(read_log(connection))
    for file in beside:
        found |= traces.found_in(_chunks(file))
    shared = _explained(connection, evidence, found)
    return Scan(
        files=1 + len(beside),
        bytes=sum(file.stat().st_size for file in (path, *beside) if file.exists()),
        pieces=len(traces),
        of=traces.of,
        shared=len(shared),
        found=len(found - shared),
        words=sum(_left_words(connection, space) for space in sorted(evidence.spaces)),
    )


def _chunks(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as opened:
            while chunk := opened.read(_BYTES_AT_ONCE):
                yield chunk
    except FileNotFoundError:  # the last other process has closed the store, and its log went with it
        return


def _explained(connection: apsw.Connection, evidence: Evidence, found: set[int]) -> set[int]:
    """Those that something which is still kept holds too."""
    shared: set[int] = set()
    values = _batches(_live_values(connection))
    while left := sorted(found - shared):
        some = next(values, None)
        if some is None:
            break
        shared.update(left[one] for one in evidence.traces.only(left).found_in([some]))
    return shared


def _live_values(connection: apsw.Connection) -> Iterator[bytes]:
    """All that is kept, value by value: what of it is found in the file is where it belongs."""
    for statement in _LIVE:
        for row in connection.execute(statement):
            yield b"\0".join(value if isinstance(value, bytes) else str(value).encode() for value in row if value)


def _batches(values: Iterator[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for value in values:
        held.append(value)
        size += len(value) + 1
        if size >= _BYTES_AT_ONCE:
            yield b"\0".join(held)
            held, size = [], 0
    yield b"\0".join(held)


def _left_words(connection: apsw.Connection, space: int) -> int:
    """Words of a space in the index's pages that none of its items has."""
    rows = connection.execute("select distinct terms from records where space = ?", (space,))
    held = {token(space, term) for (terms,) in rows for term in terms.split()}
    return len({word for word in words_of(connection, space) if word not in held})
