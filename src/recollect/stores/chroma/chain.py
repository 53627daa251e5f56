"""The chain: batches under successive numbers, each added only where nobody was before. It decides who wrote first.

Chroma has no transaction and no compare-and-swap, but it leaves a record alone that is there already. So whoever adds
the record of the next number and then finds itself there has written; whoever finds another looks at what that one
did, and tries the number after it. Once a batch is there it has happened, all of it, whatever becomes of its writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recollect.errors import SchemaTooNew, StoreCorrupt, StoreUnavailable
from recollect.stores.chroma.batch import Batch
from recollect.stores.chroma.cells import PREFIX
from recollect.stores.chroma.collections import Collections, Meta, Record
from recollect.stores.damage import Misshapen, as_written, text, whole

NAME = f"{PREFIX}chain"
SCHEMA = 2
# Who knows no erasures reads all other batches.
_WITHOUT_ERASURES = 1

# Larger texts go into several records, added before the one that counts.
_LARGEST = 4_000_000

# What looks damaged is looked at again, so often.
_LOOKS = 3


@dataclass(frozen=True, slots=True)
class News:
    """What happened since one last looked. After a `gap` it is not known what happened before it."""

    batches: tuple[Batch, ...]
    floor: int
    gap: bool


class Chain:
    """The chain of one Chroma."""

    def __init__(self, collections: Collections, token: Callable[[], str], *, sync_after: int) -> None:
        self._collections = collections
        self._sync_after = sync_after
        self._token = token

    def token(self) -> str:
        """A name for one attempt, so that it knows itself again."""
        return self._token()

    def news(self, since: int, floor: int) -> News:
        """The batches above a number."""
        for _ in range(_LOOKS):
            try:
                return self._news(since, floor)
            except StoreCorrupt:
                continue  # somebody may be sweeping just now
        return self._news(since, floor)

    def _news(self, since: int, floor: int) -> News:
        records = self._collections.read(NAME, where={"n": {"$gt": since}})
        floor = max([floor, *(_whole(record, "floor") for record in records)])
        # A writer that slept for long may have taken a number that was used and swept away: it never happened.
        counting = sorted((one for one in records if _whole(one, "n") >= floor), key=lambda one: _whole(one, "n"))
        batches = tuple(self._batch(record) for record in counting)
        first = max(since + 1, floor)
        if [batch.number for batch in batches] != list(range(first, first + len(batches))):
            raise StoreCorrupt(
                f"batches are missing from the collection {NAME!r} between {first} and {batches[-1].number}; "
                "somebody deleted records there: restore a backup of the directory"
            )
        return News(batches, floor, gap=floor > since + 1)

    def add(self, batch: Batch) -> None:
        """Try to be the batch of this number; only `won` tells."""
        written = batch.text()
        meta: dict[str, str | int] = {
            "n": batch.number, "by": batch.by, "floor": batch.floor, "parts": 0,
            "schema": _WITHOUT_ERASURES if batch.wiped is None else SCHEMA,
        }  # fmt: skip
        if len(written) <= _LARGEST:
            meta["batch"] = written
        else:
            pieces = [written[start : start + _LARGEST] for start in range(0, len(written), _LARGEST)]
            for part, piece in enumerate(pieces):
                about: Meta = {"for": batch.number, "by": batch.by, "piece": piece}
                self._add(Record(_piece_id(batch.by, part), about))
            meta["parts"] = len(pieces)
        self._add(Record(_id(batch.number), meta))

    def won(self, batch: Batch) -> bool | None:
        """Whether the number is this batch's; None when nobody has it."""
        records = self._collections.read(NAME, where={"n": {"$gte": batch.number}})
        if not records:
            return None
        newest = max(records, key=lambda one: _whole(one, "floor"))
        if _whole(newest, "floor") <= batch.number:
            found = {record.id: record.meta.get("by") for record in records}
            return found[_id(batch.number)] == batch.by if _id(batch.number) in found else None
        # Others have been here, and swept. A number that had been used before this batch came to it does not count.
        settled = self._batch(newest).settled
        if batch.number not in settled:
            raise StoreUnavailable(
                f"{len(settled)} batches were written by others while this one was on its way, and whether it was "
                "among them is not known any more; read again to see"
            )
        return settled[batch.number] == batch.by

    def sweep(self, floor: int) -> None:
        """Take away what lies below the floor."""
        for field in ("n", "for"):
            self._collections.delete(NAME, self._collections.ids(NAME, where={field: {"$lt": floor}}))

    def _add(self, record: Record) -> None:
        self._collections.add(NAME, [record], sync_after=self._sync_after)

    def _batch(self, record: Record) -> Batch:
        meta = record.meta
        if (schema := _whole(record, "schema")) > SCHEMA:
            raise SchemaTooNew(
                f"this Chroma was written by a newer Recollect (schema {schema}, here {SCHEMA}); upgrade"
            )
        number, parts, floor = (_whole(record, name) for name in ("n", "parts", "floor"))
        with as_written(_named(record)):
            by, written = text("by", meta["by"]), text("batch", meta.get("batch", ""))
            if parts:
                found = self._collections.read(NAME, where={"for": number})
                pieces = {one.id: text("piece", one.meta["piece"]) for one in found}
                if parts > len(pieces):
                    raise Misshapen("pieces are missing")
                written = "".join(pieces[_piece_id(by, part)] for part in range(parts))
            return Batch.parse(number, by, floor, written)


def _whole(record: Record, name: str) -> int:
    with as_written(_named(record)):
        return whole(name, record.meta[name])


def _named(record: Record) -> str:
    return f"the batch {record.id!r:.80} in the collection {NAME!r}"


def _id(number: int) -> str:
    return f"{number:020}"


def _piece_id(by: str, part: int) -> str:
    return f"{by}.{part}"
