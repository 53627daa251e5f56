"""What is left after a deletion: every server writes its files anew, and then keys and files are looked at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from redis import exceptions

from recollect.stores.receipts import Scan
from recollect.stores.redis import keys
from recollect.stores.redis.evidence import Evidence
from recollect.stores.redis.files import Files
from recollect.stores.redis.server import Primary, Server

AtWork = Callable[[Mapping[str, Any]], bool]

_SETTINGS = ("dir", "appenddirname", "appendfilename", "dbfilename", "save")
# How the keys of an owner are read, by what follows its prefix; the others are names of batches.
_VERBS = {
    **dict.fromkeys((b"owner", b"logs", b"data", b"tasks", b"versions", b"steps"), "HSCAN"),
    **dict.fromkeys((b"order", b"newest", b"names", b"ends"), "ZSCAN"),
    b"spaces": "SSCAN",
    b"course": "LRANGE",
}
_PAUSE = 0.02
_PAGE = 500
_SEEN_REWRITES = keys.ERASURES + b"rewrites"
_REFUSED = (
    "{0} does not write its {1} anew for us ({2}): run {3} there as an admin, or let us do so "
    "(ACL SETUSER USER +bgrewriteaof +bgsave +config|get); then go on with: recollect lifecycle"
)
_UNREADABLE = (
    "the files of {}: they are not readable here, and that they were written anew after the deletion is its own word"
)


class Physical:
    """What an erasure asks of the servers themselves. `patience` is in seconds, for one file of one server."""

    def __init__(self, server: Server, *, patience: float = 60.0) -> None:
        self._server = server
        self._patience = patience
        self._waits: tuple[str, ...] = ()

    async def settled(self) -> bool:
        """Every append-only file and snapshot is written anew; what a server refuses is told by the next scan."""
        found = [await self._written_anew(node) for node in await self._server.nodes()]
        self._waits = tuple(said for said in found if said)
        return not self._waits

    async def deleted(self) -> None:
        """From now on only a rewriting that begins later counts."""
        await self._server.command("DEL", _SEEN_REWRITES)

    async def scan(self, evidence: Evidence) -> Scan:
        scan = Scan(pieces=len(evidence.traces), of=evidence.traces.of, waits=self._waits)
        found: set[int] = set()
        for node in await self._server.nodes():
            files = Files.of(node.host, await self._config(node))
            if files is None:
                scan = scan.plus(Scan(unseen=(_UNREADABLE.format(node.place),)))
            else:
                looked, pieces = await asyncio.to_thread(files.scan, evidence)
                scan, found = scan.plus(looked), found | pieces
            scan = scan.plus(Scan(unseen=await self._copies(node)))
        orphans, live = await self._in_keys(evidence, explain=bool(found))
        found |= orphans
        return scan.plus(Scan(shared=len(found & live - orphans), found=len(found - live | orphans)))

    # Files

    async def _written_anew(self, node: Primary) -> str:
        """Nothing, or what somebody has to do for it."""
        config = await self._config(node)
        refused = await self._asked(node, "BGREWRITEAOF", _aof_is_at_work, "aof_last_bgrewrite_status")
        if refused and not await self._by_others(node):
            return _REFUSED.format(node.place, "append-only file", refused, "BGREWRITEAOF")
        files = Files.of(node.host, config)
        snapshot = files is not None and (files.directory / files.snapshot).is_file()
        if config.get("save", "?") or snapshot:
            refused = await self._asked(node, "BGSAVE", _snapshot_is_at_work, "rdb_last_bgsave_status")
            if refused:
                return _REFUSED.format(node.place, "snapshot", refused, "BGSAVE")
        if files is not None and not await self._until(lambda: asyncio.to_thread(files.left_over)):
            return f"{node.place} has not removed its old append-only file from {files.directory} yet; go on later"
        return ""

    async def _asked(
        self, node: Primary, command: str, at_work: Callable[[Mapping[str, Any]], bool], status: str
    ) -> str:
        """Have a file written anew, from what is there now; nothing, or why that was refused."""

        async def busy() -> bool:
            return at_work(await self._server.of_node(node, "INFO", "persistence"))

        for _ in range(3):
            # One that is under way began before the deletion, perhaps.
            if not await self._until(busy):
                return "it is at work on one for too long"
            try:
                await self._server.of_node(node, command)
            except exceptions.ResponseError as error:
                if "in progress" in str(error).lower():
                    continue
                return str(error)[:200]
            if not await self._until(busy):
                return "it takes too long"
            told = await self._server.of_node(node, "INFO", "persistence")
            return "" if str(told.get(status, "ok")) == "ok" else f"{status} is {told.get(status)}; is its disk full?"
        return "others ask for it all the time"

    async def _by_others(self, node: Primary) -> bool:
        """Whether the server has written its append-only file anew since it first refused to."""
        info = await self._server.of_node(node, "INFO")
        name, count = f"{node.place} {info.get('run_id')}", info.get("aof_rewrites")
        if count is None:
            return False
        await self._server.command("HSETNX", _SEEN_REWRITES, name, str(count))
        return int(count) > int(await self._server.command("HGET", _SEEN_REWRITES, name))

    async def _until(self, busy: Callable[[], Any]) -> bool:
        """Wait until something is over; False when it takes too long."""
        until = time.monotonic() + self._patience
        while await busy():
            if time.monotonic() > until:
                return False
            await asyncio.sleep(_PAUSE)
        return True

    async def _config(self, node: Primary) -> Mapping[str, str]:
        try:
            told = await self._server.of_node(node, "CONFIG GET", "*")
        except exceptions.ResponseError:
            return {}
        return {name: _text(value) for key, value in dict(told).items() if (name := _text(key)) in _SETTINGS}

    async def _copies(self, node: Primary) -> tuple[str, ...]:
        replicas = int((await self._server.of_node(node, "INFO", "replication")).get("connected_slaves", 0))
        told = [f"copies of the files of {node.place} that somebody made before"]
        if replicas:
            told.append(
                f"{replicas} replicas of {node.place}: what they hold is deleted, but not their files written anew; "
                "run BGREWRITEAOF on each"
            )
        return tuple(told)

    # Keys

    async def _in_keys(self, evidence: Evidence, *, explain: bool) -> tuple[set[int], set[int]]:
        """Pieces in keys that belong to nobody; and in those of others, if that is to be known."""
        orphans: set[int] = set()
        live: set[int] = set()
        listed = await self._server.names(keys.ROOT + b"*")
        owned = {key[: -len(b"owner")] for key in listed if key.endswith(b"}:owner")}
        for key in listed:
            prefix = key[: key.find(b"}:") + 2]
            if key.startswith(keys.ERASURES) or key.endswith(b"}:owners"):
                continue
            mine = prefix in owned
            if not mine or explain:
                values = [key, *[value async for value in self._values(key)]]
                (live if mine else orphans).update(evidence.traces.found_in([b"\0".join(values)]))
        return orphans, live

    async def _values(self, key: bytes) -> AsyncIterator[bytes]:
        """Everything under a key, whatever it is."""
        verb = _VERBS.get(key.partition(b"}:")[2].partition(b":")[0], "")
        if verb == "LRANGE":
            for value in await self._server.command("LRANGE", key, 0, -1):
                yield value
        elif verb:
            cursor: Any = 0
            while True:
                cursor, told = await self._server.command(verb, key, cursor, "COUNT", _PAGE)
                for value in [part for pair in told.items() for part in pair] if isinstance(told, dict) else told:
                    one = value[0] if isinstance(value, tuple) else value
                    yield one if isinstance(one, bytes) else str(one).encode()
                if int(cursor) == 0:
                    return


def _aof_is_at_work(told: Mapping[str, Any]) -> bool:
    return bool(int(told.get("aof_rewrite_in_progress", 0)) or int(told.get("aof_rewrite_scheduled", 0)))


def _snapshot_is_at_work(told: Mapping[str, Any]) -> bool:
    return bool(int(told.get("rdb_bgsave_in_progress", 0)))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
