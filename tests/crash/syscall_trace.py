"""System calls of a real process, recorded by strace and parsed into disk events."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.crash.disk_model import Cut, Event, FolderSynced, Noted, Opened, Removed, SyncBegan, SyncEnded, Wrote

# All calls that can change a file or a folder, so that a call unknown to the model raises an error.
_CALLS = (
    "openat,open,creat,pwrite64,write,writev,pwritev,pwritev2,fsync,fdatasync,sync_file_range,ftruncate,truncate,"
    "fallocate,unlink,unlinkat,rename,renameat,renameat2,link,linkat,copy_file_range,sendfile"
)
_LONGEST = 1 << 22

_LINE = re.compile(r"^(\d+) +(.*)$")
_UNFINISHED = re.compile(r"^(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^<\.\.\. \w+ resumed>(.*)$")
_CALL = re.compile(r"^(\w+)\((.*)\) += (-?\d+)")
_DESCRIPTOR = re.compile(r"^(\d+)<([^>]*)>")
_STRING = re.compile(r'"([^"]*)"')


class UnknownCall(Exception):
    """The trace has a call on the store's files that the replay does not support."""


class _Call(NamedTuple):
    """One call, with the line numbers of its start and end: calls of other threads may lie between them."""

    began: int
    ended: int
    name: str
    arguments: str
    result: int


def record(command: list[str], into: Path, *, keep: tuple[int, ...], environ: Mapping[str, str], root: Path) -> None:
    """Run a program to its end and write its system calls to `into`."""
    strace = shutil.which("strace")
    if strace is None:
        raise FileNotFoundError("strace is missing; run: sh scripts/strace.sh   (Debian: apt-get install strace)")
    traced = [strace, "-f", "-y", "-xx", "-s", str(_LONGEST), "-e", f"trace={_CALLS}", "-o", str(into), *command]
    done = subprocess.run(traced, pass_fds=keep, env=dict(environ), cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the traced program exited with code {done.returncode}: {done.stderr[-2000:]}")


def events(trace: Path, folder: Path, notes: int) -> list[Event]:
    """Return the events in a folder and on the acknowledgment pipe, in order."""
    placed: list[tuple[int, Event]] = []
    for number, call in enumerate(_calls(trace)):
        placed += _events(number, call, str(folder), notes)
    return [event for _, event in sorted(placed, key=lambda pair: pair[0])]


def _calls(trace: Path) -> Iterator[_Call]:
    begun: dict[str, tuple[int, str]] = {}
    with trace.open() as lines:
        for place, line in enumerate(lines):
            match = _LINE.match(line.rstrip("\n"))
            if match is None:
                continue
            thread, text = match.groups()
            began = place
            if half := _UNFINISHED.match(text):
                begun[thread] = (place, half[1])
                continue
            if rest := _RESUMED.match(text):
                began, first = begun.pop(thread)
                text = first + rest[1]
            if (call := _CALL.match(text)) and int(call[3]) >= 0:
                yield _Call(began, place, call[1], call[2], int(call[3]))


def _events(number: int, call: _Call, folder: str, notes: int) -> list[tuple[int, Event]]:
    """Return the events of a call. A write counts from its end and a note from its start, the strictest order."""
    if call.name in ("unlink", "unlinkat"):
        name = _name(_bytes(call.arguments).decode(), folder)
        return [(call.ended, Removed(name))] if name else []
    if call.name == "openat":
        name = _name(_bytes(call.arguments).decode(), folder)
        return [(call.ended, Opened(call.result, name, "O_TRUNC" in call.arguments))] if name else []
    where = _DESCRIPTOR.match(call.arguments)
    if where is None:
        if folder in _bytes(call.arguments).decode("utf-8", "replace"):
            raise UnknownCall(f"the replay does not support {call.name} on the store's files")
        return []
    descriptor, path = int(where[1]), _unhexed(where[2]).decode().removesuffix(" (deleted)")
    if descriptor == notes and path.startswith("pipe:"):
        return [(call.began, Noted(line.split(" "))) for line in _bytes(call.arguments).decode().splitlines()]
    if path == folder and call.name in ("fsync", "fdatasync"):
        return [(call.ended, FolderSynced())]
    return _file_events(number, call, descriptor) if _name(path, folder) else []


def _file_events(number: int, call: _Call, descriptor: int) -> list[tuple[int, Event]]:
    last = call.arguments.rpartition(", ")[2]
    match call.name:
        case "pwrite64":
            return [(call.ended, Wrote(descriptor, int(last), _bytes(call.arguments)[: call.result]))]
        case "ftruncate":
            return [(call.ended, Cut(descriptor, int(last)))]
        case "fsync" | "fdatasync":
            return [(call.began, SyncBegan(number, descriptor)), (call.ended, SyncEnded(number))]
        case _:
            raise UnknownCall(f"the replay does not support {call.name} on the store's files")


def _name(path: str, folder: str) -> str:
    """Return the file's name in the folder, or "" for another path, shared memory or the reserve file.

    SQLite rebuilds shared memory after every crash, and never reads the reserve file.
    """
    name = path.removeprefix(folder + "/")
    return "" if name == path or name.endswith(("-shm", "-ballast")) else name


def _bytes(arguments: str) -> bytes:
    match = _STRING.search(arguments)
    return _unhexed(match[1]) if match else b""


def _unhexed(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", "")) if text.startswith("\\x") else text.encode()
