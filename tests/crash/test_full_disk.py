"""D5: a full disk is told as such, breaks nothing, and leaves reading and deleting possible."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.crash.ledger import Ledger
from tests.crash.processes import ROOT, command, environment
from tests.crash.table import Table

# Each way to run out of room: what has to be done first, in a mount namespace of its own, so that it ends with it.
# 4 KiB blocks: with smaller ones SQLite's shared memory has holes, which the kernel cannot fill on a full disk
# and ends the process for (SIGBUS).
MOUNTS = {
    "pages": "true",
    "file size": "true",
    "tmpfs of 2 MB": "mount -t tmpfs -o size=2m none {folder}",
    "loop mount of 4 MB": "mkfs.ext4 -q -F -O ^has_journal -b 4096 {image} && mount -o loop {image} {folder}",
}


def filled(way: str, folder: Path, ledger: Ledger, mutant: str = "") -> list[list[str]]:
    """Run the filler where there is little room; what it told."""
    place = folder / "small"
    place.mkdir()
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(4 << 20)
    mount = MOUNTS[way].format(folder=shlex.quote(str(place)), image=shlex.quote(str(image)))
    run = shlex.join(command("filler", way, place / "store.db", ledger.writing))
    # Root in a user namespace may mount a tmpfs but no loop device; for that it has to be root itself.
    apart = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    done = subprocess.run(
        [*(apart if mount != "true" else []), "sh", "-c", f"({mount}) > /dev/null 2>&1 || exit 99; {run}"],
        cwd=ROOT,
        env={**environment(mutant), "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
        pass_fds=(ledger.writing,),
        capture_output=True,
        text=True,
    )
    if done.returncode == 99:
        return [["impossible"]]
    assert (done.returncode, done.stderr) == (0, "")
    return ledger.read()


def faults_of(lines: list[list[str]]) -> list[str]:
    wrong = [f"refused by {line[1]}" for line in lines if line[0] == "refused" and line[1] != "StoreFull"]
    return wrong + [" ".join(line[1:]) for line in lines if line[0] == "fault"]


@pytest.mark.parametrize("way", MOUNTS)
def test_a_full_disk_is_told_and_forgetting_works(way: str, tmp_path: Path, ledger: Ledger, table: Table):
    assert shutil.which("unshare"), "unshare is not here; install util-linux"
    lines = filled(way, tmp_path, ledger)
    if lines == [["impossible"]]:
        assert way.startswith("loop"), f"{way} cannot be mounted here"
        table.held("D5", f"{way}: not possible here (needs root and a loop device)", 0)
        return
    found = faults_of(lines)
    kinds = [line[0] for line in lines]
    done = f"full by {way}: {kinds.count('refused')} writes refused, {kinds.count('deleted')} deletions made"
    table.held("D5", done, len(found))
    assert found == []
    assert kinds.count("refused") == 4
    assert lines[-1][0] == "end"


@pytest.mark.parametrize(
    ("way", "mutant", "fault"),
    [("tmpfs of 2 MB", "no_ballast", "not deleted: StoreFull"), ("file size", "untold", "refused by StoreUnavailable")],
)
def test_what_would_be_wrong_is_seen(way: str, mutant: str, fault: str, tmp_path: Path, ledger: Ledger, table: Table):
    found = faults_of(filled(way, tmp_path, ledger, mutant))
    table.seen("D5", f"{mutant.replace('_', ' ')}, {way}", len(found))
    assert fault in found
