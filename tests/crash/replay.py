"""Every way a power cut could have left the disk, at every moment of a recorded run."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.crash.disk import Disk, Event, Files, Noted
from tests.crash.ledger import Ledger
from tests.crash.processes import ROOT, command, environment
from tests.crash.trace import events, record


class Outage(NamedTuple):
    """One disk after a power cut, and what the oracle had been told by then."""

    moment: int
    kind: str
    files: Files
    told: Sequence[list[str]]


def recorded(folder: Path, program: tuple[object, ...], ledger: Ledger, mutant: str = "") -> list[Event]:
    """Run a program on `folder`/store, traced; its calls stay beside it as `trace`, to be looked at again."""
    store = folder / "store"
    store.mkdir()
    trace = folder / "trace"
    record(command(*map(str, program)), trace, keep=(ledger.writing,), environ=environment(mutant), root=ROOT)
    return events(trace, store, ledger.writing)


def outages(happened: Sequence[Event], chance: random.Random, draws: int) -> Iterator[Outage]:
    """After each event: all unsynced gone, all of it there, and some random parts; each disk once."""
    disk = Disk()
    told: list[list[str]] = []
    seen: set[int] = set()
    for moment, event in enumerate(happened):
        if isinstance(event, Noted):
            told.append(event.words)
        disk.apply(event)
        states = [("nothing unsynced", disk.with_nothing_unsynced()), ("everything", disk.with_all())]
        states += [("some", disk.with_some(chance)) for _ in range(draws if disk.at_risk else 0)]
        for kind, files in states:
            known = hash((len(told), *sorted(files.items())))
            if known not in seen:
                seen.add(known)
                yield Outage(moment, kind, files, tuple(told))


Judge = Callable[[Outage, Path], Awaitable[list[str]]]


async def judged(cases: Iterator[Outage], judge: Judge, folder: Path) -> tuple[int, list[str]]:
    """How many outages were looked at, and of each that broke a promise what is wrong."""
    many, found = 0, []

    async def look(own: Path) -> None:
        nonlocal many
        for outage in cases:
            many += 1
            faults = await judge(outage, own)
            if faults:
                found.append(f"event {outage.moment}, {outage.kind}: {faults[0][:300]}")

    # Two at a time: SQLite's share of the work is done in threads.
    async with asyncio.TaskGroup() as group:
        for one in range(2):
            group.create_task(look(folder / str(one)))
    return many, found


def rebuild(files: Files, folder: Path) -> Path:
    """Write a disk out; the path of its store."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / "store.db"
