"""Erasure: the ledger, the deletion of each owner's data in one script, and the rewrite and scan of the server's files.

On a cluster the ledger and the deleted data are on different nodes, which share no transaction. So the deleting script
leaves a marker with its counts next to the owner. The marker is deleted once the ledger has the counts. After a crash,
the markers that are left are added to the ledger: adding one twice changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path

from redis import exceptions

from recollect.errors import Conflict, Unsupported
from recollect.stores import erasure
from recollect.stores.codec import DECODE_ERRORS, detect_corruption
from recollect.stores.erasure import ByteScan, ErasureChange, ErasureRecord, ErasureSelection, ErasureStore
from recollect.stores.redis import codec
from recollect.stores.redis.client import RedisClient, RedisPrimary
from recollect.stores.redis.codec import encode_text
from recollect.stores.redis.commit import RedisBatch, RedisCommitter
from recollect.stores.traces import DeletionTraces, select_pieces
from recollect.stores.writes import DropTask
from recollect.types import Space

_SALT_KEY = codec.ERASURES_PREFIX + b"salt"
_ROWS_KEY = codec.ERASURES_PREFIX + b"rows"
_CHAIN_KEY = codec.ERASURES_PREFIX + b"chain"
_COUNTS_KEY = codec.ERASURES_PREFIX + b"counts"
_EVIDENCE_PREFIX = codec.ERASURES_PREFIX + b"evidence:"
_SEEN_REWRITES_KEY = codec.ERASURES_PREFIX + b"rewrites"
_MAX_SWAP_ATTEMPTS = 100
_MAX_ERASE_ATTEMPTS = 50
_POLL_SECONDS = 0.02
_REWRITE_SECONDS = 60.0
# The command that reads a key, by its type. Strings are the answers of batches and the counts of deletions.
_SCAN_COMMANDS = {b"hash": "HSCAN", b"zset": "ZSCAN", b"set": "SSCAN"}
_REWRITE_REFUSED = (
    "{0} refused to rewrite its {1} ({2}): run {3} there as an admin, or allow this user to "
    "(ACL SETUSER USER +bgrewriteaof +bgsave +config|get); then run: recollect lifecycle"
)
_LOCAL_HOSTS = ("localhost", "127.", "::1", "/")
_CHUNK_BYTES = 1 << 22
# Snapshots are compressed, so they are also checked by their age.
_SNAPSHOT_HEADERS = (b"REDIS", b"VALKEY")


@dataclass(slots=True)
class _OwnerErasure(RedisBatch):
    """The deletions of one owner's data, with its counts and traces."""

    counts: Counter[str] = field(default_factory=Counter)
    pieces: list[bytes] = field(default_factory=list)
    fence: int = 0

    def add_pieces(self, *values: bytes) -> None:
        for value in values:
            self.pieces.extend(select_pieces(value))


class RedisErasures(ErasureStore):
    """The ledger of erasures, their deletions, the rewrite of every server's files, and the search in keys and files.

    A row of the ledger is replaced only if it is as it was read.
    """

    _client: RedisClient
    _committer: RedisCommitter
    _salt = b""
    _blockers: tuple[str, ...] = ()
    """The files that a server has not rewritten. The next scan reports them."""

    # The ledger

    async def salt(self) -> bytes:
        if not self._salt:
            salt = await self._client.execute("GET", _SALT_KEY)
            if salt is None:
                await self._client.execute("SET", _SALT_KEY, secrets.token_bytes(32).hex(), "NX")
                salt = await self._client.execute("GET", _SALT_KEY)
            with detect_corruption("the key of the erasure ledger"):
                self._salt = bytes.fromhex(salt.decode())
        return self._salt

    async def set_salt(self, salt: bytes) -> None:
        if await self._client.execute("HLEN", _ROWS_KEY):
            raise Conflict("this store already has an erasure ledger with its own key; use another receipt file")
        await self._client.execute("SET", _SALT_KEY, salt.hex())
        self._salt = salt

    async def ledger(self, *, unfinished: bool = False) -> list[ErasureRecord]:
        rows = await self._client.execute("HGETALL", _ROWS_KEY)
        if not rows:  # The salt would be written, which a full server refuses.
            return []
        salt = await self.salt()
        found = {id: codec.decode_erasure(id.decode(), row, salt) for id, row in rows.items()}
        chain = [id for id in await self._client.execute("LRANGE", _CHAIN_KEY, 0, -1) if id in found]
        waiting = sorted((row.requested_at, id) for id, row in found.items() if row.phase != "complete")
        erased = {row.id: Counter(row.erased) for row in found.values()}
        for value in (await self._client.execute("HGETALL", _COUNTS_KEY)).values():
            id, counts = codec.decode_marker(value)
            erased.setdefault(id, Counter()).update(counts)
        return [
            replace(found[id], erased=dict(erased[found[id].id]), evidence=await self._load_evidence(id, found[id].key))
            for id in [*([] if unfinished else chain), *(id for _, id in waiting)]
        ]

    async def _load_evidence(self, id: bytes, key: bytes) -> bytes:
        """Return the evidence of all deletions of an erasure as one."""
        parts = await self._client.execute("LRANGE", _EVIDENCE_PREFIX + id, 0, -1)
        if not parts:
            return b""
        times, traces = zip(*(_decode_evidence(key, part) for part in parts), strict=True)
        return _encode_evidence(max(times), reduce(DeletionTraces.merge, traces))

    async def _load_row(self, id: str) -> ErasureRecord | None:
        row = await self._client.execute("HGET", _ROWS_KEY, encode_text(id))
        return None if row is None else codec.decode_erasure(id, row, await self.salt())

    async def change_erasure(self, id: str, change: ErasureChange) -> ErasureRecord:
        if await self._client.execute("HEXISTS", _ROWS_KEY, encode_text(id)):
            await self.recover_counts()
        for _ in range(_MAX_SWAP_ATTEMPTS):
            seen = await self._client.execute("HGET", _ROWS_KEY, encode_text(id))
            before = None if seen is None else codec.decode_erasure(id, seen, await self.salt())
            link = await self._client.execute("LINDEX", _CHAIN_KEY, -1)
            last = None if link is None else await self._load_row(link.decode())
            row = change(before, None if last is None else last.receipt)
            is_finished = row.receipt is not None and (before is None or before.receipt is None)
            args = (encode_text(id), seen or b"", codec.encode_erasure(row), (link or b"") if is_finished else b"-")
            if await self._client.run_script("swap", (_ROWS_KEY, _CHAIN_KEY), args) == b"ok":
                return row
        raise Conflict(f"too many processes work on erasure {id} at once; try again later")

    async def recover_counts(self) -> None:
        """Add the counts that a crash has left in markers to the ledger."""
        for marker in await self._client.scan_keys(codec.KEY_ROOT + b"*}:wiped:*"):
            value = await self._client.execute("GET", marker)
            if value is not None:
                await self._add_counts(marker, value)

    async def _add_counts(self, marker: bytes, value: bytes) -> None:
        """Store the counts of a deletion in the ledger under the name of its marker, and delete the marker."""
        await self._client.execute("HSET", _COUNTS_KEY, marker.rpartition(b":")[2], value)
        await self._client.execute("UNLINK", marker)

    # Deletion

    async def wipe(self, id: str, doomed: ErasureSelection) -> None:
        key = erasure.require_erasure(id, await self._load_row(id)).key
        await self.recover_counts()
        owners: dict[bytes, tuple[list[Space], list[DropTask]]] = {}
        for space in doomed.spaces:
            owners.setdefault(codec.build_owner_prefix(space), ([], []))[0].append(space)
        for write in doomed.writes:
            if not isinstance(write, DropTask):
                raise Unsupported(f"an erasure in a Redis store can only drop tasks; got {write!r:.40}")
            if write.space not in doomed.spaces:
                owners.setdefault(codec.build_owner_prefix(write.space), ([], []))[1].append(write)
        for prefix, (spaces, drops) in owners.items():
            await self._erase_owner(id, key, prefix, spaces, drops)
        await self._unlist_owners(owners)
        # Only later rewrites count.
        await self._client.execute("DEL", _SEEN_REWRITES_KEY)

    async def _erase_owner(
        self, id: str, key: bytes, prefix: bytes, spaces: Sequence[Space], drops: Sequence[DropTask]
    ) -> None:
        """Delete spaces and tasks of one owner, unless they change meanwhile: then read them again."""
        for _ in range(_MAX_ERASE_ATTEMPTS):
            gone = _OwnerErasure()
            for space in spaces:
                await self._collect_space(space, gone)
            for drop in drops:
                await self._collect_drop(drop, gone)
            counts = json.dumps([id, gone.counts]).encode()
            gone.commands += (b"erased", prefix, b"", counts)
            if gone.fence:
                await self._client.execute("ZADD", codec.ERASED_FENCE_KEY, "GT", gone.fence, codec.ERASED_FENCE_KEY)
            # Evidence of a deletion that is not carried out is found in live data, and counts as shared.
            now_micros = int((await self._client.run_script("rows", (), ()))[0])
            evidence = _encode_evidence(now_micros, DeletionTraces.from_pieces(key, gone.pieces))
            await self._client.execute("RPUSH", _EVIDENCE_PREFIX + encode_text(id), evidence)
            marker, token = prefix + b"wiped", secrets.token_hex(16)
            verdict, *_ = await self._committer.run_batch([marker], token, gone, {}, b"keep", b"", b"", b"", b"")
            if verdict == b"ok":
                return await self._add_counts(b"%s:%s" % (marker, token.encode()), counts)
        raise Conflict("other processes keep writing data that is being erased; stop them, then run the erasure again")

    async def _collect_space(self, space: Space, gone: _OwnerErasure) -> None:
        name, owner = codec.build_space_name(space), codec.build_owner_prefix(space) + b"owner"
        data_key, tasks_key = codec.build_key(b"data", space), codec.build_key(b"tasks", space)
        seq, fence = await self._client.execute("HMGET", owner, b"seq:" + name, b"fence:" + name)
        entries = dict(await self._client.scan("HSCAN", data_key))
        for id, value in entries.items():
            gone.add_pieces(id, value, *_extract_texts(value))
        tasks = dict(await self._client.scan("HSCAN", tasks_key))
        for task, row in tasks.items():
            await self._collect_task((space, task.decode("utf-8", "surrogatepass")), row, gone)
        gone.add_pieces(name, codec.encode_owner(space))
        gone.counts[space.tier] += len(entries) + len(tasks)
        gone.fence = max(gone.fence, int(fence or 0))
        gone.expected += (owner, b"seq:" + name, seq or b"", owner, b"fence:" + name, fence or b"")
        gone.expected += (data_key, b"", b"%d" % len(entries), tasks_key, b"", b"%d" % len(tasks))
        gone.add_command(b"erase", space)

    async def _collect_drop(self, drop: DropTask, gone: _OwnerErasure) -> None:
        name = encode_text(drop.task)
        row = await self._client.execute("HGET", codec.build_key(b"tasks", drop.space), name)
        if row is not None:
            gone.counts[drop.space.tier] += 1
            await self._collect_task((drop.space, drop.task), row, gone)
            gone.add_command(b"gone", drop.space, name, codec.encode_expiry(codec.decode_task(drop.task, row)))

    async def _collect_task(self, name: codec.TaskName, row: bytes, gone: _OwnerErasure) -> None:
        gone.expect_row(name, row)
        gone.add_pieces(encode_text(name[1]), row)
        for _, version in await self._client.scan("HSCAN", codec.build_task_key(b"versions", name)):
            gone.add_pieces(version[64:].partition(b"\n")[2])
        for step, value in await self._client.scan("HSCAN", codec.build_task_key(b"steps", name)):
            gone.add_pieces(step, value)

    async def _unlist_owners(self, prefixes: Iterable[bytes]) -> None:
        """Remove owners without data from their index, and delete the ids of their batches."""
        emptied = [prefix for prefix in prefixes if not await self._client.execute("EXISTS", prefix + b"owner")]
        for prefix in emptied:
            index = prefix.partition(b".")[0] + b"}:owners"
            await self._client.execute("SREM", index, prefix)
            if await self._client.execute("EXISTS", prefix + b"owner"):  # written again meanwhile
                await self._client.execute("SADD", index, prefix)
        for key in await self._client.scan_keys(codec.KEY_ROOT + b"*}:done:*") if emptied else ():
            if key.startswith(tuple(emptied)):
                await self._client.execute("UNLINK", key)

    # Files and keys

    async def purge_copies(self, *, thorough: bool = False, deferrable: bool = False) -> bool:
        """Have every append-only file and snapshot rewritten; return False if a server refused."""
        self._committer.cached_rows.clear()
        problems = [await self._rewrite_files(node) for node in await self._client.list_primaries()]
        self._blockers = tuple(filter(None, problems))
        return not self._blockers

    async def scan(self, evidence: bytes, key: bytes) -> ByteScan:
        deleted_at_micros, traces = _decode_evidence(key, evidence)
        scan = ByteScan(pieces=len(traces), of=traces.total, waits=self._blockers)
        found: set[int] = set()
        for node in await self._client.list_primaries():
            files, unseen = RedisDataFiles.locate(node.host, await self._client.read_config(node)), []
            if files is None:
                reason = "not readable here; only the server reports that it rewrote them"
                unseen.append(f"the files of {node.address}: {reason}")
            else:
                file_scan, pieces = await asyncio.to_thread(files.scan, traces, deleted_at_micros)
                scan, found = scan.merge(file_scan), found | pieces
            unseen.append(f"earlier backups of the files of {node.address}")
            info = await self._client.execute_on(node, "INFO", "replication")
            if replicas := int(info.get("connected_slaves", 0)):
                unseen.append(
                    f"{replicas} replicas of {node.address}: the data is deleted there, but their files are not "
                    "rewritten; run BGREWRITEAOF on each"
                )
            scan = scan.merge(ByteScan(unseen=tuple(unseen)))
        orphans, live = await self._scan_keys(traces, explain=bool(found))
        found |= orphans
        return scan.merge(ByteScan(shared=len(found & live - orphans), found=len(found - live | orphans)))

    async def _rewrite_files(self, node: RedisPrimary) -> str:
        """Have one server's files rewritten. Return an empty string, or a sentence with what to do."""
        config = await self._client.read_config(node)
        rewriting = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
        refused = await self._request_rewrite(node, "BGREWRITEAOF", rewriting, "aof_last_bgrewrite_status")
        if refused and not await self._is_rewritten_by_others(node):
            return _REWRITE_REFUSED.format(node.address, "append-only file", refused, "BGREWRITEAOF")
        files = RedisDataFiles.locate(node.host, config)
        if config.get("save", "?") or (files is not None and files.snapshot.is_file()):
            refused = await self._request_rewrite(node, "BGSAVE", ("rdb_bgsave_in_progress",), "rdb_last_bgsave_status")
            if refused:
                return _REWRITE_REFUSED.format(node.address, "snapshot", refused, "BGSAVE")
        if files is not None and not await _wait_until_done(lambda: asyncio.to_thread(files.has_leftovers)):
            kept = f"its old append-only file from {files.directory}"
            return f"{node.address} has not removed {kept} yet; try again later"
        return ""

    async def _request_rewrite(self, node: RedisPrimary, command: str, running: Sequence[str], status: str) -> str:
        """Start a rewrite and wait for it. Return an empty string, or the reason why it failed."""

        async def is_busy() -> bool:
            info = await self._client.execute_on(node, "INFO", "persistence")
            return any(int(info.get(name, 0)) for name in running)

        for _ in range(3):
            # A running rewrite may have started before the deletion.
            if not await _wait_until_done(is_busy):
                return "an earlier rewrite takes too long"
            try:
                await self._client.execute_on(node, command, refusals=True)
                break
            except exceptions.ResponseError as error:
                if "in progress" not in str(error).lower():
                    return str(error)[:200]
        else:
            return "other clients keep starting one"
        if not await _wait_until_done(is_busy):
            return "it takes too long"
        info = await self._client.execute_on(node, "INFO", "persistence")
        return "" if str(info.get(status, "ok")) == "ok" else f"{status} is {info.get(status)}; is its disk full?"

    async def _is_rewritten_by_others(self, node: RedisPrimary) -> bool:
        """Return whether the server has rewritten its append-only file since it first refused this user."""
        info = await self._client.execute_on(node, "INFO")
        name, count = f"{node.address} {info.get('run_id')}", info.get("aof_rewrites")
        if count is None:
            return False
        await self._client.execute("HSETNX", _SEEN_REWRITES_KEY, name, str(count))
        return int(count) > int(await self._client.execute("HGET", _SEEN_REWRITES_KEY, name))

    async def _scan_keys(self, traces: DeletionTraces, *, explain: bool) -> tuple[set[int], set[int]]:
        """Return the pieces found in keys without an owner, and, with `explain`, in those of live owners."""
        orphans: set[int] = set()
        live: set[int] = set()
        listed = await self._client.scan_keys(codec.KEY_ROOT + b"*")
        owned = {key.removesuffix(b"owner") for key in listed if key.endswith(b"}:owner")}
        for key in listed:
            is_live = key[: key.find(b"}:") + 2] in owned
            if key.startswith(codec.ERASURES_PREFIX) or key.endswith(b"}:owners") or (is_live and not explain):
                continue
            values = [key, *await self._read_values(key)]
            (live if is_live else orphans).update(traces.find_in([b"\0".join(values)]))
        return orphans, live

    async def _read_values(self, key: bytes) -> list[bytes]:
        """Return all values under a key of any type."""
        kind = await self._client.execute("TYPE", key)
        if kind == b"list":
            return list(await self._client.execute("LRANGE", key, 0, -1))
        if kind not in _SCAN_COMMANDS:
            return []
        # A pair of a hash, a member and its score, or a member.
        members = await self._client.scan(_SCAN_COMMANDS[kind], key)
        parts = [part for member in members for part in (member if isinstance(member, tuple) else (member,))]
        return [part for part in parts if isinstance(part, bytes)]


async def _wait_until_done(is_busy: Callable[[], Awaitable[bool]]) -> bool:
    """Wait until `is_busy` returns False; return False after the timeout."""
    deadline = time.monotonic() + _REWRITE_SECONDS
    while await is_busy():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True


def _encode_evidence(deleted_at_micros: int, traces: DeletionTraces) -> bytes:
    return deleted_at_micros.to_bytes(8, "little") + traces.as_bytes


def _decode_evidence(key: bytes, packed: bytes) -> tuple[int, DeletionTraces]:
    """Return the server's time of the deletion in microseconds, and the traces to search for."""
    return int.from_bytes(packed[:8], "little"), DeletionTraces.from_bytes(key, packed[8:])


def _extract_texts(value: bytes) -> list[bytes]:
    """Return an entry's text and metadata as they are stored, or nothing if it is damaged."""
    try:
        return [codec.encode_json(part) for part in json.loads(value[codec.PREFIX_DIGITS :])[2:4]]
    except DECODE_ERRORS:
        return []


@dataclass(frozen=True, slots=True)
class RedisDataFiles:
    """The data files of a server on this machine."""

    directory: Path
    log_directory: Path
    log_name: str
    snapshot: Path

    @classmethod
    def locate(cls, host: str, config: Mapping[str, str]) -> RedisDataFiles | None:
        """Return the files of a server, or None if they are on another machine, unknown or unreadable."""
        if not host.startswith(_LOCAL_HOSTS) or not config.get("dir"):
            return None
        directory, log_name = Path(config["dir"]), config.get("appendfilename", "appendonly.aof")
        snapshot = directory / config.get("dbfilename", "dump.rdb")
        files = cls(directory, directory / config.get("appenddirname", ""), log_name, snapshot)
        try:
            found = files.list_paths()
            # With a forwarded port, the directory of another machine may exist here too.
            is_here = any(path.name.startswith(log_name) for path in found)
            return files if is_here and all(os.access(path, os.R_OK) for path in found) else None
        except OSError:
            return None

    def list_paths(self) -> list[Path]:
        paths = [self.directory / self.log_name, self.snapshot, *self.directory.glob("temp-*")]
        if self.log_directory != self.directory:
            paths += sorted(self.log_directory.iterdir())
        return [path for path in paths if path.is_file()]

    def has_leftovers(self) -> bool:
        """Return whether the server has yet to remove append-only files that it has rewritten."""
        if self.log_directory == self.directory:  # before Redis 7
            return False
        manifest = self.log_directory / f"{self.log_name}.manifest"
        lines = manifest.read_text().splitlines()
        listed = {line.split()[1] for line in lines if line.startswith("file ")}
        present = {path.name for path in self.log_directory.iterdir()} - {manifest.name}
        return bool(present - listed) or any(" type h" in line for line in lines)

    def scan(self, traces: DeletionTraces, deleted_at_micros: int) -> tuple[ByteScan, set[int]]:
        """Search all files; return the scan, and the numbers of the pieces found."""
        found: set[int] = set()
        count = size = 0
        waits = []
        for path in self.list_paths():
            try:
                opened = path.open("rb")
            except FileNotFoundError:  # just replaced by a rewrite
                continue
            with opened:
                is_snapshot = opened.read(6).startswith(_SNAPSHOT_HEADERS)
                opened.seek(0)
                found |= traces.find_in(iter(partial(opened.read, _CHUNK_BYTES), b""))
                stat = os.fstat(opened.fileno())
            count, size = count + 1, size + stat.st_size
            if is_snapshot and stat.st_mtime_ns // 1000 < deleted_at_micros:
                waits.append(f"{path} is older than the deletion; run BGSAVE on the server, or delete the file")
        return ByteScan(files=count, bytes=size, waits=tuple(waits)), found
