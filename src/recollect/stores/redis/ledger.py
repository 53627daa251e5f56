"""The ledger of erasures on the server: a row each, the chain of those that are complete, and what is under way.

On a cluster the ledger lies on one server and what is deleted on others, which share no transaction. So a deletion is
planned here first, with its counts; the script that deletes leaves a mark beside the owner; and the plan becomes part
of the row when the mark is seen. Whoever comes after a crash finds the plan, and asks the mark whether it was done.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, get_args

from recollect.clock import to_micros
from recollect.errors import Conflict, NotFound
from recollect.stores.damage import as_written, counts, maybe_moment, moment, named_texts, one_of, text, texts
from recollect.stores.erasing import Erasure, Phase
from recollect.stores.receipts import ErasureReceipt
from recollect.stores.redis import keys
from recollect.stores.redis.evidence import Evidence
from recollect.stores.redis.server import Server

_SALT = keys.ERASURES + b"salt"
_ROWS = keys.ERASURES + b"rows"
_CHAIN = keys.ERASURES + b"chain"
_PLANS = keys.ERASURES + b"plans"
_EVIDENCE = keys.ERASURES + b"evidence:"
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """What is about to be deleted of one owner."""

    erasure: str
    mark: bytes
    counts: Mapping[str, int]


class Ledger:
    """Every change of a row is made to the row that was seen, or again."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._salt = b""

    async def salt(self) -> bytes:
        """Known from the first time on."""
        if not self._salt:
            held = await self._server.command("GET", _SALT)
            if held is None:
                await self._server.command("SET", _SALT, secrets.token_bytes(32).hex(), "NX")
                held = await self._server.command("GET", _SALT)
            with as_written("the key of the ledger of erasures"):
                self._salt = bytes.fromhex(held.decode())
        return self._salt

    async def resalt(self, salt: bytes) -> None:
        if await self._server.command("HLEN", _ROWS):
            raise Conflict("this store has a ledger of erasures with a key of its own; name another file of receipts")
        await self._server.command("SET", _SALT, salt.hex())
        self._salt = salt

    async def rows(self, *, unfinished: bool = False) -> list[Erasure]:
        told = await self._server.command("HGETALL", _ROWS)
        held = dict(told.items() if isinstance(told, dict) else zip(told[::2], told[1::2], strict=True))
        found = {id: _erasure(id.decode(), row) for id, row in held.items()}
        chain = [id for id in await self._server.command("LRANGE", _CHAIN, 0, -1) if id in found]
        waiting = sorted((row.requested_at, id) for id, row in found.items() if row.phase != "complete")
        listed = [*([] if unfinished else chain), *(id for _, id in waiting)]
        return [replace(found[id], evidence=await self._evidence(id)) for id in listed]

    async def enter(self, erasure: Erasure) -> None:
        await self._server.command("HSETNX", _ROWS, keys.raw(erasure.id), _row(erasure))

    async def check(self, id: str) -> None:
        await self._held(id)

    async def deleted(self, id: str, now: datetime) -> None:
        await self._change(
            id, lambda row: replace(row, phase="deleted", deleted_at=now) if row.phase == "entered" else row
        )

    async def finish(self, receipt: ErasureReceipt, now: datetime) -> ErasureReceipt:
        for _ in range(_ATTEMPTS):
            seen, row = await self._held(receipt.id)
            if row.receipt is not None:  # another process came first
                return row.receipt
            last = await self._server.command("LINDEX", _CHAIN, -1)
            before = (await self._held(last.decode()))[1].receipt if last else None
            done = receipt.after(None if before is None else before.sha256, now)
            new = _row(replace(row, phase="complete", receipt=done))
            if await self._swap(receipt.id, seen, new, last or b""):
                return done
        raise _busy(receipt.id)

    # Deletions

    async def plan(self, plan: Plan, evidence: bytes) -> str:
        """Note what is about to go, and what to look for then. The name of the plan."""
        name = secrets.token_hex(16)
        told = json.dumps([plan.erasure, plan.mark.decode(), dict(plan.counts)])
        # Looked for though it may not be deleted in the end: then somebody has it still, and it counts as theirs.
        await self._server.command("RPUSH", _EVIDENCE + keys.raw(plan.erasure), evidence)
        await self._server.command("HSET", _PLANS, name, told)
        return name

    async def carried_out(self, name: str, plan: Plan) -> None:
        """That what was planned is done: it counts."""

        def counted(row: Erasure) -> Erasure:
            return replace(row, erased=dict(Counter(row.erased) + Counter(plan.counts)))

        await self._change(plan.erasure, counted, plan=name)
        await self._server.command("DEL", plan.mark)

    async def give_up(self, name: str) -> None:
        await self._server.command("HDEL", _PLANS, name)

    async def recover(self) -> None:
        """Plans that a crash has left: those that were carried out count, and the others are forgotten."""
        told = await self._server.command("HGETALL", _PLANS)
        held = dict(told.items() if isinstance(told, dict) else zip(told[::2], told[1::2], strict=True))
        for name, value in held.items():
            plan = _plan(value)
            if await self._server.command("GET", plan.mark) == name:
                await self.carried_out(name.decode(), plan)
            else:
                await self.give_up(name.decode())
        for mark in await self._server.names(keys.ROOT + b"*}:wiped"):  # of plans that counted, and no more came of it
            await self._server.command("UNLINK", mark)

    # Rows

    async def _evidence(self, id: bytes) -> bytes:
        return Evidence.joined(await self.salt(), await self._server.command("LRANGE", _EVIDENCE + id, 0, -1))

    async def _held(self, id: str) -> tuple[bytes, Erasure]:
        row = await self._server.command("HGET", _ROWS, keys.raw(id))
        if row is None:
            raise NotFound(f"there is no erasure {id!r} in this store's ledger; enter it first")
        return row, _erasure(id, row)

    async def _change(self, id: str, change: Callable[[Erasure], Erasure], plan: str = "") -> None:
        for _ in range(_ATTEMPTS):
            seen, row = await self._held(id)
            if await self._swap(id, seen, _row(change(row)), b"-", plan):
                return
        raise _busy(id)

    async def _swap(self, id: str, seen: bytes, new: bytes, last: bytes, plan: str = "") -> bool:
        args = (keys.raw(id), seen, new, last, plan.encode())
        [verdict] = await self._server.script("swap", (_ROWS, _CHAIN, _PLANS), args)
        return bool(verdict == b"ok")


def _busy(id: str) -> Conflict:
    return Conflict(f"erasure {id} is carried out by many at once; try again when they are fewer")


def _row(erasure: Erasure) -> bytes:
    told = {
        "subject": erasure.subject,
        "parts": list(erasure.parts),
        "requested_at": to_micros(erasure.requested_at),
        "elsewhere": dict(erasure.elsewhere),
        "phase": erasure.phase,
        "deleted_at": None if erasure.deleted_at is None else to_micros(erasure.deleted_at),
        "erased": dict(erasure.erased),
        "receipt": None if erasure.receipt is None else erasure.receipt.as_json(),
    }
    return json.dumps(told, sort_keys=True).encode()


def _plan(value: bytes) -> Plan:
    with as_written("the plan of a deletion"):
        erasure, mark, gone = json.loads(value)
        return Plan(text("erasure", erasure), text("mark", mark).encode(), counts("counts", gone))


def _erasure(id: str, row: bytes) -> Erasure:
    with as_written(f"the row of erasure {id!r:.80}"):
        told: dict[str, Any] = json.loads(row)
        return Erasure(
            id=id,
            subject=text("subject", told["subject"]),
            parts=texts("parts", told["parts"]),
            requested_at=moment("requested_at", told["requested_at"]),
            elsewhere=MappingProxyType(named_texts("elsewhere", told["elsewhere"])),
            phase=one_of("phase", told["phase"], get_args(Phase)),
            deleted_at=maybe_moment("deleted_at", told["deleted_at"]),
            erased=MappingProxyType(counts("erased", told["erased"])),
            receipt=None if told["receipt"] is None else ErasureReceipt.from_json(told["receipt"]),
        )
