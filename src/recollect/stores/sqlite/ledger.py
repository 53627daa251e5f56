"""The ledger of erasures: rows that say how far each has got, and the chain of receipts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import apsw

from recollect.clock import from_micros, to_micros
from recollect.errors import Conflict, NotFound
from recollect.stores.damage import as_written, reads, text
from recollect.stores.erasing import Erasure
from recollect.stores.receipts import ErasureReceipt
from recollect.stores.sqlite.evidence import Evidence
from recollect.stores.sqlite.rows import moment

_COLUMNS = "id, subject, parts, phase, requested_at, deleted_at, erased, rederived, evidence, receipt, elsewhere"
_LEDGER = f"""
    select {_COLUMNS}
    from erasures
    where phase <> 'complete' or not ?
    order by link is null, link, requested_at, id
"""  # noqa: S608 - a constant list of columns

_ROW = f"select {_COLUMNS} from erasures where id = ?"  # noqa: S608

_ENTER = """
    insert or ignore into erasures (id, subject, parts, phase, requested_at, elsewhere)
    values (?, ?, ?, 'entered', ?, ?)
"""

_ADD = """
    update erasures
    set erased = ?, rederived = rederived + ?, evidence = ?
    where id = ?
"""

_FINISH = """
    update erasures
    set phase = 'complete', link = ?, receipt = ?, evidence = ?
    where id = ? and phase <> 'complete'
"""

# Counted up with every deletion: a copy in memory that was made before is dropped, in whichever process it is.
_WIPED = """
    insert into meta (name, value)
    values ('wiped', '1')
    on conflict do update
    set value = cast(cast(value as integer) + 1 as text)
"""


def salt(connection: apsw.Connection) -> bytes:
    return bytes.fromhex(connection.execute("select value from meta where name = 'salt'").get)


def resalt(connection: apsw.Connection, salt: bytes) -> None:
    if connection.execute("select exists (select 1 from erasures)").get:
        raise Conflict(
            "the erasures beside this store are another store's: its ledger has a key of its own; move that file away"
        )
    connection.execute("update meta set value = ? where name = 'salt'", (salt.hex(),))


def rows(connection: apsw.Connection, *, unfinished: bool = False) -> list[Erasure]:
    return [_erasure(row) for row in connection.execute(_LEDGER, (unfinished,))]


def row(connection: apsw.Connection, id: str) -> Erasure:
    for found in connection.execute(_ROW, (id,)):
        return _erasure(found)
    raise NotFound(f"there is no erasure {id!r} in this store's ledger; enter it first")


def enter(connection: apsw.Connection, erasure: Erasure) -> None:
    told = json.dumps(erasure.parts), to_micros(erasure.requested_at), json.dumps(dict(erasure.elsewhere))
    connection.execute(_ENTER, (erasure.id, erasure.subject, *told))


def add(connection: apsw.Connection, id: str, erased: Mapping[str, int], rederived: int, evidence: bytes) -> None:
    """What one more deletion has done, in the transaction that does it."""
    before = row(connection, id).erased
    total = {tier: before.get(tier, 0) + erased.get(tier, 0) for tier in {*before, *erased}}
    connection.execute(_ADD, (json.dumps(total), rederived, evidence, id))
    connection.execute(_WIPED)


def deleted(connection: apsw.Connection, id: str, now: datetime) -> None:
    connection.execute(
        "update erasures set phase = 'deleted', deleted_at = ? where id = ? and phase = 'entered'", (to_micros(now), id)
    )


def finish(connection: apsw.Connection, receipt: ErasureReceipt, now: datetime) -> ErasureReceipt:
    entered = row(connection, receipt.id)
    if entered.receipt is not None:  # another process came first
        return entered.receipt
    last = connection.execute(
        "select link, receipt from erasures where link is not null order by link desc limit 1"
    ).fetchone()
    with as_written("the last receipt in the ledger of erasures"):
        link, before = (0, None) if last is None else (last[0], text("sha256", json.loads(last[1])["sha256"]))
    done = receipt.after(before, now)
    kept = Evidence.unpacked(salt(connection), entered.evidence).few.packed
    connection.execute(_FINISH, (link + 1, json.dumps(done.as_json()), kept, receipt.id))
    return done


@reads("a row of the ledger of erasures")
def _erasure(row: tuple[Any, ...]) -> Erasure:
    id, subject, parts, phase, requested_at, deleted_at, erased, rederived, evidence, receipt, elsewhere = row
    return Erasure.of_texts(
        id=id,
        subject=subject,
        parts=parts,
        elsewhere=elsewhere,
        phase=phase,
        requested_at=from_micros(requested_at),
        deleted_at=moment(deleted_at),
        erased=erased,
        rederived=rederived,
        evidence=evidence,
        receipt=receipt,
    )
