"""Replay of a recorded run: the disk states that a power loss could leave at every moment."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.crash.acknowledgments import Ledger
from tests.crash.disk_model import Disk, Event, Files, Noted
from tests.crash.process_launcher import ROOT, command, environment
from tests.crash.syscall_trace import events, record


class Outage(NamedTuple):
    """A disk state after a power loss, and the lines that were noted before it."""

    moment: int
    kind: str
    files: Files
    notes: Sequence[list[str]]


def record_run(folder: Path, program: tuple[object, ...], ledger: Ledger, mutant: str = "") -> list[Event]:
    """Run a program on `folder`/store under strace and return the events; the trace stays in `folder`/trace."""
    store = folder / "store"
    store.mkdir()
    trace = folder / "trace"
    record(command(*map(str, program)), trace, keep=(ledger.writing,), environ=environment(mutant), root=ROOT)
    return events(trace, store, ledger.writing)


def iterate_outages(recorded_events: Sequence[Event], rng: random.Random, draws: int) -> Iterator[Outage]:
    """Yield each distinct disk state after each event: nothing unsynced, everything, and `draws` random parts."""
    disk = Disk()
    notes: list[list[str]] = []
    seen: set[int] = set()
    for moment, event in enumerate(recorded_events):
        if isinstance(event, Noted):
            notes.append(event.words)
        disk.apply(event)
        states = [("nothing unsynced", disk.with_nothing_unsynced()), ("everything", disk.with_all())]
        states += [("some", disk.with_some(rng)) for _ in range(draws if disk.at_risk else 0)]
        for kind, files in states:
            known = hash((len(notes), *sorted(files.items())))
            if known not in seen:
                seen.add(known)
                yield Outage(moment, kind, files, tuple(notes))


Judge = Callable[[Outage, Path], Awaitable[list[str]]]


async def judge_outages(cases: Iterator[Outage], judge: Judge, folder: Path) -> tuple[int, list[str]]:
    """Return the number of outages checked, and the first fault of each that broke a promise."""
    many, found = 0, []

    async def look(own: Path) -> None:
        nonlocal many
        for outage in cases:
            many += 1
            faults = await judge(outage, own)
            if faults:
                found.append(f"event {outage.moment}, {outage.kind}: {faults[0][:300]}")

    # Two at a time: SQLite works in threads.
    async with asyncio.TaskGroup() as group:
        for number in range(2):
            group.create_task(look(folder / str(number)))
    return many, found


def rebuild(files: Files, folder: Path) -> Path:
    """Write the files to `folder` and return the path of the store."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / "store.db"
