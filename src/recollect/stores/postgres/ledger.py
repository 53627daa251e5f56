"""The ledger of erasures: rows that say how far each has got, and the chain of receipts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from recollect.clock import from_micros, to_micros
from recollect.errors import Conflict, NotFound
from recollect.stores.damage import as_written, reads, text
from recollect.stores.erasing import Erasure
from recollect.stores.postgres.evidence import Evidence
from recollect.stores.postgres.rows import moment
from recollect.stores.postgres.server import Lock, Work
from recollect.stores.receipts import ErasureReceipt

# Any number: whoever holds it is the only one to change the ledger.
_LOCK = 0x5265636F_00000003
ALONE = [Lock(_LOCK)]

_COLUMNS = """
    id, subject, parts, elsewhere, phase, requested_at, deleted_at, erased, rederived, evidence, receipt
"""
_LEDGER = f"""
    select {_COLUMNS}
    from recollect.erasures
    where phase <> 'complete' or not %(unfinished)s
    order by link nulls last, requested_at, id
"""  # noqa: S608 - a constant list of columns

_ROW = f"select {_COLUMNS} from recollect.erasures where id = %(id)s"  # noqa: S608

_ENTER = """
    insert into recollect.erasures (id, subject, parts, elsewhere, phase, requested_at)
    values (%(id)s, %(subject)s, %(parts)s, %(elsewhere)s, 'entered', %(requested_at)s)
    on conflict do nothing
"""

_ADD = """
    update recollect.erasures
    set erased = %(erased)s, rederived = rederived + %(rederived)s, evidence = %(evidence)s
    where id = %(id)s
"""

_DELETED = """
    update recollect.erasures
    set phase = 'deleted', deleted_at = %(now)s
    where id = %(id)s and phase = 'entered'
"""

_LAST = """
    select link, receipt
    from recollect.erasures
    where link is not null
    order by link desc
    limit 1
"""

_FINISH = """
    update recollect.erasures
    set phase = 'complete', link = %(link)s, receipt = %(receipt)s, evidence = %(evidence)s
    where id = %(id)s
"""


async def salt(work: Work) -> bytes:
    row = await work.row("select value from recollect.meta where name = 'salt'", {})
    assert row is not None
    return bytes.fromhex(row[0])


async def resalt(work: Work, salt: bytes) -> None:
    if await work.row("select 1 from recollect.erasures limit 1", {}) is not None:
        raise Conflict(
            "the erasures beside this store are another store's: its ledger has a key of its own; name another file"
        )
    await work.run("update recollect.meta set value = %(salt)s where name = 'salt'", {"salt": salt.hex()})


async def listed(work: Work, *, unfinished: bool = False) -> list[Erasure]:
    return [_erasure(row) for row in await work.rows(_LEDGER, {"unfinished": unfinished})]


async def one(work: Work, id: str) -> Erasure:
    found = await work.row(_ROW, {"id": id})
    if found is None:
        raise NotFound(f"there is no erasure {id!r} in this store's ledger; enter it first")
    return _erasure(found)


async def enter(work: Work, erasure: Erasure) -> None:
    values = {
        "id": erasure.id,
        "subject": erasure.subject,
        "parts": json.dumps(erasure.parts),
        "elsewhere": json.dumps(dict(erasure.elsewhere)),
        "requested_at": to_micros(erasure.requested_at),
    }
    await work.run(_ENTER, values)


async def add(work: Work, before: Erasure, erased: Mapping[str, int], rederived: int, evidence: bytes) -> None:
    """What one more deletion has done, in the transaction that does it."""
    total = {tier: before.erased.get(tier, 0) + erased.get(tier, 0) for tier in {*before.erased, *erased}}
    values = {"id": before.id, "erased": json.dumps(total), "rederived": rederived, "evidence": evidence}
    await work.run(_ADD, values)


async def deleted(work: Work, id: str) -> None:
    await work.run(_DELETED, {"id": id, "now": to_micros(work.now)})


async def finish(work: Work, receipt: ErasureReceipt) -> ErasureReceipt:
    row = await one(work, receipt.id)
    if row.receipt is not None:  # another process came first
        return row.receipt
    last = await work.row(_LAST, {})
    with as_written("the last receipt in the ledger of erasures"):
        link, before = (0, None) if last is None else (last[0], text("sha256", json.loads(last[1])["sha256"]))
    done = receipt.after(before, work.now)
    values = {"id": receipt.id, "link": link + 1, "receipt": json.dumps(done.as_json())}
    await work.run(_FINISH, values | {"evidence": Evidence.unpacked(await salt(work), row.evidence).few.packed})
    return done


@reads("a row of the ledger of erasures")
def _erasure(row: tuple[Any, ...]) -> Erasure:
    id, subject, parts, elsewhere, phase, requested_at, deleted_at, erased, rederived, evidence, receipt = row
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
        evidence=bytes(evidence),
        receipt=receipt,
    )
