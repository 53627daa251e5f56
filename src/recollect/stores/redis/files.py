"""The files of a server, where they lie on this machine: its append-only file and its snapshot, read byte by byte."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from recollect.stores.receipts import Scan
from recollect.stores.redis.evidence import Evidence

_BYTES_AT_ONCE = 1 << 22
_HERE = ("localhost", "127.", "::1", "/")
# Texts are compressed in these: whether one is older than a deletion is asked as well.
_SNAPSHOTS = (b"REDIS", b"VALKEY")


@dataclass(frozen=True, slots=True)
class Files:
    """Where one server keeps its data."""

    directory: Path
    log_directory: str
    log: str
    snapshot: str

    @classmethod
    def of(cls, host: str, config: Mapping[str, str]) -> Files | None:
        """None where they are on another machine, or nobody says where, or they cannot be read from here."""
        told = config.get("dir", "")
        if not host.startswith(_HERE) or not told:
            return None
        files = cls(
            Path(told),
            config.get("appenddirname", ""),
            config.get("appendfilename", "appendonly.aof"),
            config.get("dbfilename", "dump.rdb"),
        )
        try:
            found = files.paths()
            # A path of another machine's, behind a port that is forwarded, may be a directory here as well.
            readable = any(path.name.startswith(files.log) for path in found)
            return files if readable and all(os.access(path, os.R_OK) for path in found) else None
        except OSError:
            return None

    def paths(self) -> list[Path]:
        places = [self.directory / self.log, self.directory / self.snapshot, *self.directory.glob("temp-*")]
        if self.log_directory:
            places += sorted((self.directory / self.log_directory).iterdir())
        return [path for path in places if path.is_file()]

    def left_over(self) -> bool:
        """Whether the server still has to remove what it has written anew: it does so in its own time."""
        if not self.log_directory:
            return False
        manifest = self.directory / self.log_directory / f"{self.log}.manifest"
        listed = {line.split()[1] for line in manifest.read_text().splitlines() if line.startswith("file ")}
        there = {path.name for path in manifest.parent.iterdir()} - {manifest.name}
        return bool(there - listed) or any(" type h" in line for line in manifest.read_text().splitlines())

    def scan(self, evidence: Evidence) -> tuple[Scan, set[int]]:
        """What was looked at, and which pieces were found."""
        found: set[int] = set()
        count = size = 0
        waits = []
        for path in self.paths():
            try:
                found |= evidence.traces.found_in(_chunks(path))
                told = path.stat()
                with path.open("rb") as opened:
                    is_snapshot = opened.read(6).startswith(_SNAPSHOTS)
            except FileNotFoundError:  # a rewriting has just replaced it
                continue
            count, size = count + 1, size + told.st_size
            if is_snapshot and told.st_mtime_ns // 1000 < evidence.at:
                waits.append(f"{path} is older than the deletion; have the server write it anew, or delete it")
        return Scan(files=count, bytes=size, waits=tuple(waits)), found


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as opened:
        while chunk := opened.read(_BYTES_AT_ONCE):
            yield chunk
