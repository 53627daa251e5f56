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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from redis import exceptions

from recollect.clock import to_micros
from recollect.errors import Conflict, StoreCorrupt, Unsupported
from recollect.stores.codec import (
    decode_choice,
    decode_counts,
    decode_optional_time,
    decode_text,
    decode_text_mapping,
    decode_texts,
    decode_time,
    detect_corruption,
    detects_corruption,
)
from recollect.stores.erasure import (
    ByteScan,
    ErasureChange,
    ErasurePhase,
    ErasureReceipt,
    ErasureRecord,
    ErasureSelection,
    ErasureStore,
    require_erasure,
)
from recollect.stores.redis import codec
from recollect.stores.redis.client import RedisClient, RedisPrimary, decode_reply
from recollect.stores.redis.codec import decode_entry_fields, decode_task, encode_expiry
from recollect.stores.redis.commit import RedisServerClock
from recollect.stores.redis.queries import RedisOwners
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
_TIME_BYTES = 8


@dataclass(frozen=True, slots=True)
class RedisErasureEvidence:
    """The traces to search for, and the server's time of the last deletion, in microseconds."""

    deleted_at_micros: int
    traces: DeletionTraces

    @classmethod
    def decode(cls, key: bytes, packed: bytes) -> RedisErasureEvidence:
        if not packed:
            return cls(0, DeletionTraces.from_pieces(key, []))
        return cls(int.from_bytes(packed[:_TIME_BYTES], "little"), DeletionTraces.from_bytes(key, packed[_TIME_BYTES:]))

    @classmethod
    def merge(cls, key: bytes, encoded: Sequence[bytes]) -> bytes:
        """Return the encoded evidence of several deletions as one."""
        if not encoded:
            return b""
        merged, *others = (cls.decode(key, value) for value in encoded)
        for other in others:
            merged = cls(max(merged.deleted_at_micros, other.deleted_at_micros), merged.traces.merge(other.traces))
        return merged.encoded

    @property
    def encoded(self) -> bytes:
        return self.deleted_at_micros.to_bytes(_TIME_BYTES, "little") + self.traces.as_bytes


@dataclass(slots=True)
class _OwnerErasure:
    """The deletions of one owner's data, and the state that the script must find unchanged."""

    counts: Counter[str] = field(default_factory=Counter)
    pieces: list[bytes] = field(default_factory=list)
    expected_spaces: list[bytes] = field(default_factory=list)
    expected_rows: list[bytes] = field(default_factory=list)
    deletions: list[bytes] = field(default_factory=list)
    fence: int = 0

    def add_pieces(self, *values: bytes) -> None:
        for value in values:
            self.pieces.extend(select_pieces(value))

    @property
    def arguments(self) -> list[bytes]:
        return [
            b"%d" % (len(self.expected_spaces) // 5),
            *self.expected_spaces,
            b"%d" % (len(self.expected_rows) // 3),
            *self.expected_rows,
            *self.deletions,
        ]


class RedisErasureLedger(RedisOwners, ErasureStore):
    """The ledger of erasures, and their deletions. A row is replaced only if it is as it was read."""

    def __init__(self, client: RedisClient, clock: RedisServerClock) -> None:
        super().__init__(client, clock)
        self._salt = b""

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
        rows = await self._client.read_hash(_ROWS_KEY)
        if not rows:  # The salt would be written, which a full server refuses.
            return []
        salt = await self.salt()
        found = {id: _decode_erasure(id.decode(), row, salt) for id, row in rows.items()}
        chain = [id for id in await self._client.execute("LRANGE", _CHAIN_KEY, 0, -1) if id in found]
        waiting = sorted((row.requested_at, id) for id, row in found.items() if row.phase != "complete")
        erased = {row.id: Counter(row.erased) for row in found.values()}
        for value in (await self._client.read_hash(_COUNTS_KEY)).values():
            id, counts = _decode_marker(value)
            erased.setdefault(id, Counter()).update(counts)
        return [
            replace(found[id], erased=dict(erased[found[id].id]), evidence=await self._load_evidence(id, found[id].key))
            for id in [*([] if unfinished else chain), *(id for _, id in waiting)]
        ]

    async def change_erasure(self, id: str, change: ErasureChange) -> ErasureRecord:
        if await self._client.execute("HEXISTS", _ROWS_KEY, codec.encode_text(id)):
            await self.recover_counts()
        for _ in range(_MAX_SWAP_ATTEMPTS):
            seen = await self._client.execute("HGET", _ROWS_KEY, codec.encode_text(id))
            before = None if seen is None else _decode_erasure(id, seen, await self.salt())
            link = await self._client.execute("LINDEX", _CHAIN_KEY, -1)
            last = None if link is None else await self._load_row(link.decode())
            row = change(before, None if last is None else last.receipt)
            is_finished = row.receipt is not None and (before is None or before.receipt is None)
            args = (codec.encode_text(id), seen or b"", _encode_erasure(row), (link or b"") if is_finished else b"-")
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

    async def _load_evidence(self, id: bytes, key: bytes) -> bytes:
        return RedisErasureEvidence.merge(key, await self._client.execute("LRANGE", _EVIDENCE_PREFIX + id, 0, -1))

    async def _load_row(self, id: str) -> ErasureRecord | None:
        row = await self._client.execute("HGET", _ROWS_KEY, codec.encode_text(id))
        return None if row is None else _decode_erasure(id, row, await self.salt())

    async def _delete(self, id: str, doomed: ErasureSelection) -> None:
        """Delete the selection, owner by owner."""
        key = require_erasure(id, await self._load_row(id)).key
        await self.recover_counts()
        tasks: list[codec.TaskName] = []
        for write in doomed.writes:
            if not isinstance(write, DropTask):
                raise Unsupported(f"an erasure in a Redis store can only drop tasks; got {write!r:.40}")
            tasks.append((write.space, write.task))
        owners: dict[bytes, Space] = {}
        for space in (*doomed.spaces, *(space for space, _ in tasks)):
            owners.setdefault(codec.build_owner_prefix(space), space)
        emptied: dict[bytes, bytes] = {}
        for prefix, owner in owners.items():
            spaces = [space for space in doomed.spaces if codec.build_owner_prefix(space) == prefix]
            names = [name for name in tasks if codec.build_owner_prefix(name[0]) == prefix and name[0] not in spaces]
            if await self._erase_owner(id, key, prefix, spaces, names):
                emptied[prefix] = codec.build_owner_index_key(owner.tenant)
        await self._unlist_owners(emptied)

    async def _erase_owner(
        self, id: str, key: bytes, prefix: bytes, spaces: Sequence[Space], tasks: Sequence[codec.TaskName]
    ) -> bool:
        """Delete spaces and tasks of one owner; return whether the owner has nothing left."""
        for _ in range(_MAX_ERASE_ATTEMPTS):
            gone = _OwnerErasure()
            for space in spaces:
                await self._collect_space(space, gone)
            for name in tasks:
                await self._collect_task(name, gone)
            now_micros = int((await self._client.run_script("rows", (), ()))[0])
            traces = DeletionTraces.from_pieces(key, gone.pieces)
            if gone.fence:
                await self._client.execute("ZADD", codec.ERASED_FENCE_KEY, "GT", gone.fence, codec.ERASED_FENCE_KEY)
            # Evidence of a deletion that is not carried out is found in live data, and counts as shared.
            evidence = RedisErasureEvidence(now_micros, traces).encoded
            await self._client.execute("RPUSH", _EVIDENCE_PREFIX + codec.encode_text(id), evidence)
            marker = prefix + b"wiped:" + secrets.token_hex(16).encode()
            value = json.dumps([id, gone.counts]).encode()
            verdict = await self._client.run_script("wipe", (marker,), (value, prefix, *gone.arguments))
            if verdict != b"stale":
                await self._add_counts(marker, value)
                return verdict == b"empty" or not await self._client.execute("EXISTS", prefix + b"owner")
        raise Conflict("other processes keep writing data that is being erased; stop them, then run the erasure again")

    async def _collect_space(self, space: Space, gone: _OwnerErasure) -> None:
        name = codec.build_space_name(space)
        owner = codec.build_owner_prefix(space) + b"owner"
        seq, fence = await self._client.execute("HMGET", owner, b"seq:" + name, b"fence:" + name)
        entries = await self._client.scan_hash(codec.build_key(b"data", space))
        for id, value in entries.items():
            gone.add_pieces(id, value, *_extract_texts(value))
        tasks = await self._client.scan_hash(codec.build_key(b"tasks", space))
        for task, row in tasks.items():
            await self._collect_task_data((space, task.decode("utf-8", "surrogatepass")), row, gone)
        gone.add_pieces(name, codec.encode_owner(space))
        gone.counts[space.tier] += len(entries) + len(tasks)
        gone.fence = max(gone.fence, int(fence or 0))
        gone.expected_spaces += (name, b"%d" % len(entries), b"%d" % len(tasks), seq or b"", fence or b"")
        gone.deletions += (b"space", name)

    async def _collect_task(self, name: codec.TaskName, gone: _OwnerErasure) -> None:
        space, task = name
        row = await self._client.execute("HGET", codec.build_key(b"tasks", space), codec.encode_text(task)) or b""
        if row:
            gone.counts[space.tier] += 1
            await self._collect_task_data(name, row, gone)
        expiry = encode_expiry(decode_task(task, row))
        gone.deletions += (b"task", codec.build_space_name(space), codec.encode_text(task), expiry)

    async def _collect_task_data(self, name: codec.TaskName, row: bytes, gone: _OwnerErasure) -> None:
        gone.expected_rows += (codec.build_space_name(name[0]), codec.encode_text(name[1]), row)
        gone.add_pieces(codec.encode_text(name[1]), row)
        for version in (await self._client.scan_hash(codec.build_task_key(b"versions", name))).values():
            gone.add_pieces(version[64:].partition(b"\n")[2])
        for step, value in (await self._client.scan_hash(codec.build_task_key(b"steps", name))).items():
            gone.add_pieces(step, value)

    async def _unlist_owners(self, indexes: Mapping[bytes, bytes]) -> None:
        """Remove owners, by prefix, from their indexes, and delete the ids of their batches."""
        for prefix, index in indexes.items():
            await self._client.execute("SREM", index, prefix)
            if await self._client.execute("EXISTS", prefix + b"owner"):  # written again meanwhile
                await self._client.execute("SADD", index, prefix)
        if indexes:
            for key in await self._client.scan_keys(codec.KEY_ROOT + b"*}:done:*"):
                if key.startswith(tuple(indexes)):
                    await self._client.execute("UNLINK", key)


def _encode_erasure(erasure: ErasureRecord) -> bytes:
    row = {
        "subject": erasure.subject,
        "parts": list(erasure.parts),
        "requested_at": to_micros(erasure.requested_at),
        "elsewhere": dict(erasure.elsewhere),
        "phase": erasure.phase,
        "deleted_at": None if erasure.deleted_at is None else to_micros(erasure.deleted_at),
        "erased": dict(erasure.erased),
        "key": erasure.key.hex(),
        "receipt": None if erasure.receipt is None else erasure.receipt.as_json(),
    }
    return json.dumps(row, sort_keys=True).encode()


def _decode_erasure(id: str, row: bytes, salt: bytes) -> ErasureRecord:
    """Return a row of the ledger. Rows of release 0.1 have no key: their evidence is keyed by the salt."""
    with detect_corruption(f"the row of erasure {id!r:.80}"):
        fields: dict[str, Any] = json.loads(row)
        return ErasureRecord(
            id=id,
            subject=decode_text("subject", fields["subject"]),
            parts=decode_texts("parts", fields["parts"]),
            requested_at=decode_time("requested_at", fields["requested_at"]),
            elsewhere=MappingProxyType(decode_text_mapping("elsewhere", fields["elsewhere"])),
            phase=decode_choice("phase", fields["phase"], get_args(ErasurePhase)),
            deleted_at=decode_optional_time("deleted_at", fields["deleted_at"]),
            erased=MappingProxyType(decode_counts("erased", fields["erased"])),
            key=bytes.fromhex(fields["key"]) if "key" in fields else salt,
            receipt=None if fields["receipt"] is None else ErasureReceipt.from_json(fields["receipt"]),
        )


@detects_corruption("the counts of a deletion")
def _decode_marker(value: bytes) -> tuple[str, dict[str, int]]:
    """Return the id of the erasure and the number of deleted rows by tier."""
    id, counts = json.loads(value)
    return decode_text("erasure", id), decode_counts("counts", counts)


def _extract_texts(value: bytes) -> list[bytes]:
    """Return an entry's text and metadata as they are stored, or the whole value if it is damaged."""
    try:
        content, metadata = decode_entry_fields(value)[2:4]
    except (StoreCorrupt, ValueError):
        return [value]
    return [json.dumps(part, ensure_ascii=False, separators=(",", ":")).encode() for part in (content, metadata)]


_CHUNK_BYTES = 1 << 22
_LOCAL_HOSTS = ("localhost", "127.", "::1", "/")
# Snapshots are compressed, so they are also checked by their age.
_SNAPSHOT_HEADERS = (b"REDIS", b"VALKEY")


@dataclass(frozen=True, slots=True)
class RedisDataFiles:
    """The data files of one server."""

    directory: Path
    log_directory: str
    log_name: str
    snapshot_name: str

    @classmethod
    def locate(cls, host: str, config: Mapping[str, str]) -> RedisDataFiles | None:
        """Return the files of a server, or None if they are on another machine, unknown or unreadable."""
        directory = config.get("dir", "")
        if not host.startswith(_LOCAL_HOSTS) or not directory:
            return None
        files = cls(
            Path(directory),
            config.get("appenddirname", ""),
            config.get("appendfilename", "appendonly.aof"),
            config.get("dbfilename", "dump.rdb"),
        )
        try:
            found = files.list_paths()
            # With a forwarded port, the directory of another machine may exist here too.
            is_here = any(path.name.startswith(files.log_name) for path in found)
            return files if is_here and all(os.access(path, os.R_OK) for path in found) else None
        except OSError:
            return None

    def list_paths(self) -> list[Path]:
        paths = [self.directory / self.log_name, self.directory / self.snapshot_name, *self.directory.glob("temp-*")]
        if self.log_directory:
            paths += sorted((self.directory / self.log_directory).iterdir())
        return [path for path in paths if path.is_file()]

    def has_leftovers(self) -> bool:
        """Return whether the server has yet to remove append-only files that it has rewritten."""
        if not self.log_directory:
            return False
        manifest = self.directory / self.log_directory / f"{self.log_name}.manifest"
        lines = manifest.read_text().splitlines()
        listed = {line.split()[1] for line in lines if line.startswith("file ")}
        present = {path.name for path in manifest.parent.iterdir()} - {manifest.name}
        return bool(present - listed) or any(" type h" in line for line in lines)

    def scan(self, evidence: RedisErasureEvidence) -> tuple[ByteScan, set[int]]:
        """Search all files; return the scan, and the numbers of the pieces found."""
        found: set[int] = set()
        count = size = 0
        waits = []
        for path in self.list_paths():
            try:
                found |= evidence.traces.find_in(_read_chunks(path))
                stat = path.stat()
                with path.open("rb") as opened:
                    is_snapshot = opened.read(6).startswith(_SNAPSHOT_HEADERS)
            except FileNotFoundError:  # just replaced by a rewrite
                continue
            count, size = count + 1, size + stat.st_size
            if is_snapshot and stat.st_mtime_ns // 1000 < evidence.deleted_at_micros:
                waits.append(f"{path} is older than the deletion; run BGSAVE on the server, or delete the file")
        return ByteScan(files=count, bytes=size, waits=tuple(waits)), found


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            yield chunk


_SETTING_NAMES = ("dir", "appenddirname", "appendfilename", "dbfilename", "save")
# The command that reads a key, by its type. Strings are the answers of batches and the counts of deletions.
_SCAN_COMMANDS = {"hash": "HSCAN", "zset": "ZSCAN", "set": "SSCAN", "list": "LRANGE"}
_POLL_SECONDS = 0.02
_REWRITE_REFUSED = (
    "{0} refused to rewrite its {1} ({2}): run {3} there as an admin, or allow this user to "
    "(ACL SETUSER USER +bgrewriteaof +bgsave +config|get); then run: recollect lifecycle"
)
_FILES_UNREADABLE = "the files of {}: not readable here; only the server reports that it rewrote them"


class RedisPhysicalErasure:
    """The rewrite of every server's files, and the search in keys and files. `timeout` is in seconds for each file."""

    def __init__(self, client: RedisClient, *, timeout: float = 60.0) -> None:
        self._client = client
        self._timeout = timeout
        self._blockers: tuple[str, ...] = ()

    async def rewrite_files(self) -> bool:
        """Have every append-only file and snapshot rewritten; return False if a server refused.

        The next scan reports the refusals.
        """
        problems = [await self._rewrite_node_files(node) for node in await self._client.list_primaries()]
        self._blockers = tuple(problem for problem in problems if problem)
        return not self._blockers

    async def reset_seen_rewrites(self) -> None:
        """Make only later rewrites count, after a deletion."""
        await self._client.execute("DEL", _SEEN_REWRITES_KEY)

    async def scan(self, evidence: RedisErasureEvidence) -> ByteScan:
        scan = ByteScan(pieces=len(evidence.traces), of=evidence.traces.total, waits=self._blockers)
        found: set[int] = set()
        for node in await self._client.list_primaries():
            files = RedisDataFiles.locate(node.host, await self._read_config(node))
            if files is None:
                scan = scan.merge(ByteScan(unseen=(_FILES_UNREADABLE.format(node.address),)))
            else:
                file_scan, pieces = await asyncio.to_thread(files.scan, evidence)
                scan, found = scan.merge(file_scan), found | pieces
            scan = scan.merge(ByteScan(unseen=await self._describe_copies(node)))
        orphans, live = await self._scan_keys(evidence, explain=bool(found))
        found |= orphans
        return scan.merge(ByteScan(shared=len(found & live - orphans), found=len(found - live | orphans)))

    async def _rewrite_node_files(self, node: RedisPrimary) -> str:
        """Have one server's files rewritten. Return an empty string, or a sentence with what to do."""
        config = await self._read_config(node)
        rewriting = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
        refused = await self._request_rewrite(node, "BGREWRITEAOF", rewriting, "aof_last_bgrewrite_status")
        if refused and not await self._is_rewritten_by_others(node):
            return _REWRITE_REFUSED.format(node.address, "append-only file", refused, "BGREWRITEAOF")
        files = RedisDataFiles.locate(node.host, config)
        snapshot = files is not None and (files.directory / files.snapshot_name).is_file()
        if config.get("save", "?") or snapshot:
            saving = ("rdb_bgsave_in_progress",)
            refused = await self._request_rewrite(node, "BGSAVE", saving, "rdb_last_bgsave_status")
            if refused:
                return _REWRITE_REFUSED.format(node.address, "snapshot", refused, "BGSAVE")
        if files is not None and not await self._wait_until_done(lambda: asyncio.to_thread(files.has_leftovers)):
            return (
                f"{node.address} has not removed its old append-only file from {files.directory} yet; try again later"
            )
        return ""

    async def _request_rewrite(self, node: RedisPrimary, command: str, running: Sequence[str], status: str) -> str:
        """Start a rewrite and wait for it. Return an empty string, or the reason why it failed."""

        async def busy() -> bool:
            info = await self._client.execute_on(node, "INFO", "persistence")
            return any(int(info.get(name, 0)) for name in running)

        for _ in range(3):
            # A running rewrite may have started before the deletion.
            if not await self._wait_until_done(busy):
                return "an earlier rewrite takes too long"
            try:
                await self._client.execute_on(node, command)
            except exceptions.ResponseError as error:
                if "in progress" in str(error).lower():
                    continue
                return str(error)[:200]
            if not await self._wait_until_done(busy):
                return "it takes too long"
            info = await self._client.execute_on(node, "INFO", "persistence")
            return "" if str(info.get(status, "ok")) == "ok" else f"{status} is {info.get(status)}; is its disk full?"
        return "other clients keep starting one"

    async def _is_rewritten_by_others(self, node: RedisPrimary) -> bool:
        """Return whether the server has rewritten its append-only file since it first refused this user."""
        info = await self._client.execute_on(node, "INFO")
        name, count = f"{node.address} {info.get('run_id')}", info.get("aof_rewrites")
        if count is None:
            return False
        await self._client.execute("HSETNX", _SEEN_REWRITES_KEY, name, str(count))
        return int(count) > int(await self._client.execute("HGET", _SEEN_REWRITES_KEY, name))

    async def _wait_until_done(self, busy: Callable[[], Any]) -> bool:
        """Wait until `busy` returns False; return False after the timeout."""
        deadline = time.monotonic() + self._timeout
        while await busy():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    async def _read_config(self, node: RedisPrimary) -> Mapping[str, str]:
        try:
            config = await self._client.execute_on(node, "CONFIG GET", "*")
        except exceptions.ResponseError:
            return {}
        return {
            name: decode_reply(value)
            for key, value in dict(config).items()
            if (name := decode_reply(key)) in _SETTING_NAMES
        }

    async def _describe_copies(self, node: RedisPrimary) -> tuple[str, ...]:
        replicas = int((await self._client.execute_on(node, "INFO", "replication")).get("connected_slaves", 0))
        copies = [f"earlier backups of the files of {node.address}"]
        if replicas:
            copies.append(
                f"{replicas} replicas of {node.address}: the data is deleted there, but their files are not rewritten; "
                "run BGREWRITEAOF on each"
            )
        return tuple(copies)

    async def _scan_keys(self, evidence: RedisErasureEvidence, *, explain: bool) -> tuple[set[int], set[int]]:
        """Return the pieces found in keys without an owner, and, with `explain`, in those of live owners."""
        orphans: set[int] = set()
        live: set[int] = set()
        listed = await self._client.scan_keys(codec.KEY_ROOT + b"*")
        owned = {key[: -len(b"owner")] for key in listed if key.endswith(b"}:owner")}
        for key in listed:
            prefix = key[: key.find(b"}:") + 2]
            if key.startswith(codec.ERASURES_PREFIX) or key.endswith(b"}:owners"):
                continue
            is_live = prefix in owned
            if not is_live or explain:
                values = [key, *await self._read_values(key)]
                (live if is_live else orphans).update(evidence.traces.find_in([b"\0".join(values)]))
        return orphans, live

    async def _read_values(self, key: bytes) -> list[bytes]:
        """Return all values under a key of any type."""
        command = _SCAN_COMMANDS.get(decode_reply(await self._client.execute("TYPE", key)), "")
        if command == "LRANGE":
            return list(await self._client.execute("LRANGE", key, 0, -1))
        members = [member async for member in self._client.iterate(command, key)] if command else []
        # A pair of a hash, a member and its score, or a member.
        parts = [part for member in members for part in (member if isinstance(member, tuple) else (member,))]
        return [part for part in parts if isinstance(part, bytes)]
