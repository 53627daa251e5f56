"""The ledger of erasures in a collection of its own: records that are added once, so that each phase happens once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from recollect.clock import to_micros
from recollect.errors import Conflict, NotFound
from recollect.stores.chroma.batch import Batch, Wiped
from recollect.stores.chroma.cells import PREFIX, dumped, names_of
from recollect.stores.chroma.collections import Collections, Meta, Record
from recollect.stores.damage import as_written, moment, named_texts, one_of, text, texts, whole
from recollect.stores.damage import counts as counts_of
from recollect.stores.erasing import Erasure
from recollect.stores.receipts import ErasureReceipt
from recollect.stores.traces import Traces
from recollect.values import Space

NAME = f"{PREFIX}erasures"
_SALT = "salt"
_ENTERED, _WIPED, _DELETED, _LINK = "entered", "wiped", "deleted", "link"
_KINDS = (_SALT, _ENTERED, _WIPED, _DELETED, _LINK, "tick")


def salt(collections: Collections) -> bytes:
    """Made with the store: whoever adds it first has decided it."""
    found = collections.read(NAME, ids=[_SALT])
    if not found:
        _add(collections, Record(_SALT, {"kind": _SALT, "salt": secrets.token_bytes(32).hex()}))
        found = collections.read(NAME, ids=[_SALT])
    with as_written("the key of the ledger of erasures"):
        return bytes.fromhex(text("salt", found[0].meta["salt"]))


def resalt(collections: Collections, salt: bytes) -> None:
    if collections.ids(NAME, where={"kind": _ENTERED}):
        raise Conflict("this store has a ledger of erasures with a key of its own; move the file of receipts away")
    collections.delete(NAME, [_SALT])
    _add(collections, Record(_SALT, {"kind": _SALT, "salt": salt.hex()}))


def enter(collections: Collections, erasure: Erasure) -> None:
    told = {
        "subject": erasure.subject,
        "parts": list(erasure.parts),
        "requested_at": to_micros(erasure.requested_at),
        "elsewhere": dict(erasure.elsewhere),
    }
    _add(collections, Record(erasure.id, {"kind": _ENTERED, "id": erasure.id, "row": dumped(told)}))


def note(collections: Collections, number: int, wiped: Wiped) -> None:
    """What a batch has done for an erasure; however often the batch is put into its place, it is noted once."""
    key = salt(collections)
    told: Meta = {
        "kind": _WIPED,
        "id": wiped.erasure,
        "n": number,
        "counts": dumped(dict(wiped.counts)),
        "rederived": wiped.rederived,
        "evidence": base64.b64encode(wiped.evidence).decode(),
        "spaces": dumped([_mark(key, space) for space in wiped.spaces]),
    }
    _add(collections, Record(f"{wiped.erasure}.{_WIPED}.{number}", told))


def deleted(collections: Collections, id: str, now: datetime) -> None:
    check(collections, id)
    _add(collections, Record(f"{id}.{_DELETED}", {"kind": _DELETED, "id": id, "at": to_micros(now)}))


def finish(collections: Collections, receipt: ErasureReceipt, now: datetime) -> ErasureReceipt:
    """Under the next number of the chain, unless somebody else has that: then the one after it."""
    check(collections, receipt.id)
    while True:
        links = _links(collections.read(NAME, where={"kind": _LINK}))
        for _, done in links:
            if done.id == receipt.id:
                return done
        done = receipt.after(links[-1][1].sha256 if links else None, now)
        number = links[-1][0] + 1 if links else 0
        told: Meta = {"kind": _LINK, "id": receipt.id, "n": number, "receipt": dumped(done.as_json())}
        _add(collections, Record(f"{_LINK}.{number:020}", told))


def rows(collections: Collections, pending: Sequence[Batch]) -> list[Erasure]:
    """Every erasure, with what batches have done for it that are not in their places yet."""
    by_kind: dict[str, list[Record]] = {}
    key = salt(collections)
    with as_written(f"the collection {NAME!r}"):
        for record in collections.read(NAME):
            by_kind.setdefault(one_of("kind", record.meta["kind"], _KINDS), []).append(record)
        moments = {text("id", one.meta["id"]): moment("at", one.meta["at"]) for one in by_kind.get(_DELETED, [])}
        wiped = {(one.erasure, number): one for number, one in map(_wiped_of, by_kind.get(_WIPED, []))}
    done = {receipt.id: receipt for _, receipt in _links(by_kind.get(_LINK, []))}
    wiped |= {(one.wiped.erasure, one.number): one.wiped for one in pending if one.wiped is not None}
    found = {
        row.id: row
        for record in by_kind.get(_ENTERED, [])
        for row in [_erasure(record, moments, done, [one for (id, _), one in wiped.items() if id == record.id], key)]
    }
    waiting = sorted((row.requested_at, row.id) for row in found.values() if row.receipt is None)
    return [found[id] for id in (*(id for id in done if id in found), *(id for _, id in waiting))]


def ends(collections: Collections) -> dict[str, int]:
    """The last batch of each space that has ended, by a hash of its name."""
    found: dict[str, int] = {}
    for record in collections.read(NAME, where={"kind": _WIPED}):
        with as_written(_named(record)):
            for mark in texts("spaces", json.loads(text("spaces", record.meta["spaces"]))):
                found[mark] = max(found.get(mark, 0), whole("n", record.meta["n"]))
    return found


def mark_of(collections: Collections, space: Space) -> str:
    return _mark(salt(collections), space)


def _mark(key: bytes, space: Space) -> str:
    return hmac.new(key, dumped(names_of(space)).encode(), hashlib.sha256).hexdigest()


def check(collections: Collections, id: str) -> None:
    if not collections.ids(NAME, where={"$and": [{"kind": _ENTERED}, {"id": id}]}):
        raise NotFound(f"there is no erasure {id!r} in this store's ledger; enter it first")


def _links(records: Sequence[Record]) -> list[tuple[int, ErasureReceipt]]:
    told = [_link(record) for record in records]
    return sorted(told, key=lambda link: link[0])


def _link(record: Record) -> tuple[int, ErasureReceipt]:
    with as_written(_named(record)):
        told = json.loads(text("receipt", record.meta["receipt"]))
        return whole("n", record.meta["n"]), ErasureReceipt.from_json(told)


def _wiped_of(record: Record) -> tuple[int, Wiped]:
    """What a batch did for an erasure, and the number of the batch."""
    meta = record.meta
    evidence = base64.b64decode(text("evidence", meta["evidence"]), validate=True)
    gone = counts_of("counts", json.loads(text("counts", meta["counts"])))
    return whole("n", meta["n"]), Wiped(
        text("id", meta["id"]), (), gone, whole("rederived", meta["rederived"]), evidence
    )


def _named(record: Record) -> str:
    return f"the record {record.id!r:.80} in the collection {NAME!r}"


def _erasure(
    record: Record,
    moments: Mapping[str, datetime],
    done: Mapping[str, ErasureReceipt],
    wiped: Sequence[Wiped],
    key: bytes,
) -> Erasure:
    counts: Counter[str] = Counter()
    traces = Traces.of_pieces(key, [])
    id = record.id
    with as_written(_named(record)):
        for one in wiped:
            counts.update(one.counts)
            traces = traces.plus(Traces.unpacked(key, one.evidence))
        told: dict[str, Any] = json.loads(text("row", record.meta["row"]))
        return Erasure(
            id=id,
            subject=text("subject", told["subject"]),
            parts=texts("parts", told["parts"]),
            requested_at=moment("requested_at", told["requested_at"]),
            elsewhere=MappingProxyType(named_texts("elsewhere", told["elsewhere"])),
            phase="complete" if id in done else "deleted" if id in moments else "entered",
            deleted_at=moments.get(id),
            erased=MappingProxyType(dict(counts)),
            rederived=sum(one.rederived for one in wiped),
            evidence=traces.packed if wiped else b"",
            receipt=done.get(id),
        )


def _add(collections: Collections, record: Record) -> None:
    collections.add(NAME, [record])
