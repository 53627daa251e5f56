"""One journey to the server and back for several statements: sent together, answered together.

The driver has a pipeline for this, but goes round the event loop once for every statement in it, which costs more than
the journeys that it saves. Here all of them are written to the line at once, and waited for once.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from pgvector import HalfVector
from psycopg import AsyncConnection, errors, generators
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

Values = dict[str, Any]
Rows = list[tuple[Any, ...]]
_Key = tuple[bytes, tuple[int, ...]]

_PLACEHOLDER = re.compile(r"%(?:%|\((\w+)\)s)")
# The server keeps a plan of each statement that it remembers; rarer kinds than so many are planned when they come.
_REMEMBERED = 256


class Statement(NamedTuple):
    """What is asked, put together from constants, and what came from outside as its values."""

    text: str
    values: Values


class _Ready(NamedTuple):
    """A statement as it goes over the line."""

    text: bytes
    values: Sequence[Any]
    transformer: Any

    @property
    def key(self) -> _Key:
        return self.text, tuple(self.transformer.types or ())


# Which statements the server at the other end of a connection remembers, and under which names. Not left to the driver,
# which would have all of them forgotten after an error.
_KNOWN: WeakKeyDictionary[AsyncConnection[Any], dict[_Key, bytes]] = WeakKeyDictionary()


def remember(connection: AsyncConnection[Any]) -> None:
    """From now on the server remembers statements, and does not read and plan them anew each time."""
    _KNOWN[connection] = {}


def remembers(connection: AsyncConnection[Any]) -> bool:
    return connection in _KNOWN


async def journey(connection: AsyncConnection[Any], statements: Sequence[Statement]) -> list[Rows]:
    """The rows of each statement. The first that fails is raised, and those after it have not been done."""
    pgconn, known = connection.pgconn, _KNOWN.get(connection)
    ready = [_ready(connection, one) for one in statements]
    new: dict[_Key, bytes] = {}
    async with connection.lock:
        pgconn.enter_pipeline_mode()
        try:
            count = sum(_send(pgconn, one, known, new) for one in ready)
            pgconn.pipeline_sync()
            answers = await connection.wait(_answers(pgconn, count))
        except BaseException:
            if new:  # nobody knows which of them the server has heard of
                pgconn.finish()
            raise
        finally:
            _leave(pgconn)
    return _rows(ready, answers, new, known)


def _ready(connection: AsyncConnection[Any], statement: Statement) -> _Ready:
    text, names = numbered(statement.text)
    values = [statement.values[name] for name in names]
    transformer = Transformer(connection)
    return _Ready(text, transformer.dump_sequence(values, [_format(value) for value in values]), transformer)


def _format(value: Any) -> PyFormat:
    """As the driver thinks best, but for lists of vectors: as text each would take it half a millisecond."""
    vectors = isinstance(value, list) and bool(value) and isinstance(value[0], HalfVector)
    return PyFormat.BINARY if vectors else PyFormat.AUTO


def _send(pgconn: PGconn, one: _Ready, known: dict[_Key, bytes] | None, new: dict[_Key, bytes]) -> int:
    """How many answers there will be."""
    types, formats, key = one.transformer.types or (), one.transformer.formats, one.key
    if known is None or (key not in known and len(known) + len(new) >= _REMEMBERED):
        pgconn.send_query_params(one.text, one.values, types, formats, Format.BINARY)
        return 1
    name = known.get(key) or new.get(key)
    if name is not None:
        pgconn.send_query_prepared(name, one.values, formats, Format.BINARY)
        return 1
    new[key] = b"recollect_%d" % (len(known) + len(new) + 1)
    pgconn.send_prepare(new[key], one.text, types)
    pgconn.send_query_prepared(new[key], one.values, formats, Format.BINARY)
    return 2


def _answers(pgconn: PGconn, count: int) -> Generator[Any, Any, list[PGresult]]:
    """What the server says to each; or why it hung up, if it says so."""
    yield from generators.send(pgconn)
    answers: list[PGresult] = []
    try:
        for _ in range(count):
            answer = yield from generators.fetch(pgconn)
            assert answer is not None
            answers.append(answer)
            yield from generators.fetch(pgconn)  # nothing: this was all of that statement
        yield from generators.fetch(pgconn)  # and this was all of them
    except psycopg.OperationalError:
        if all(one.status != ExecStatus.FATAL_ERROR for one in answers):
            raise
    return answers


def _rows(
    ready: Sequence[_Ready], answers: Sequence[PGresult], new: dict[_Key, bytes], known: dict[_Key, bytes] | None
) -> list[Rows]:
    found: list[Rows] = []
    told = iter(answers)
    for one in ready:
        name = new.pop(one.key, None)
        if name is not None and known is not None:  # the first answer is whether it is remembered
            _done(next(told))
            known[one.key] = name
        result = _done(next(told))
        one.transformer.set_pgresult(result)
        found.append(one.transformer.load_rows(0, result.ntuples, tuple))
    return found


def _done(answer: PGresult) -> PGresult:
    """The answer, or why a statement was not done: those after it were not even tried."""
    if answer.status == ExecStatus.FATAL_ERROR:
        raise errors.error_from_result(answer)
    return answer


def _leave(pgconn: PGconn) -> None:
    """Back to where one statement is sent at a time; a line on which that cannot be done is not used again."""
    try:
        pgconn.exit_pipeline_mode()
    except psycopg.OperationalError:
        pgconn.finish()


@lru_cache(maxsize=1024)
def numbered(text: str) -> tuple[bytes, tuple[str, ...]]:
    """A statement as the server reads it, with its parameters by number, and their names."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name = found[1]
        return "%" if name is None else f"${names.setdefault(name, len(names) + 1)}"

    return _PLACEHOLDER.sub(number, " ".join(text.split())).encode(), tuple(names)
