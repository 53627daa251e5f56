"""D5: a full disk raises StoreFull, damages nothing, and still allows reads and deletes."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.crash.acknowledgments import Ledger
from tests.crash.process_launcher import ROOT, command, environment
from tests.crash.result_table import Table

# The shell command that prepares each kind of full disk, in a mount namespace that ends with the process.
# 4 KiB blocks: with smaller ones SQLite's shared memory has holes, and the kernel kills the process with SIGBUS when
# it cannot fill them on a full disk.
MOUNTS = {
    "pages": "true",
    "file size": "true",
    "tmpfs of 2 MB": "mount -t tmpfs -o size=2m none {folder}",
    "loop mount of 4 MB": "mkfs.ext4 -q -F -O ^has_journal -b 4096 {image} && mount -o loop {image} {folder}",
}


def run_filler(way: str, folder: Path, ledger: Ledger, mutant: str = "") -> list[list[str]]:
    """Run the disk filler on a small disk and return its notes."""
    place = folder / "small"
    place.mkdir()
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(4 << 20)
    mount = MOUNTS[way].format(folder=shlex.quote(str(place)), image=shlex.quote(str(image)))
    run = shlex.join(command("disk_filler", way, place / "store.db", ledger.writing))
    # Root in a user namespace may mount a tmpfs; a loop device requires real root.
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


def find_note_faults(lines: list[list[str]]) -> list[str]:
    wrong = [f"refused by {line[1]}" for line in lines if line[0] == "refused" and line[1] != "StoreFull"]
    return wrong + [" ".join(line[1:]) for line in lines if line[0] == "fault"]


@pytest.mark.promise("D5")
@pytest.mark.parametrize("way", MOUNTS)
def test_full_disk_raises_store_full_and_allows_deletes(way: str, tmp_path: Path, ledger: Ledger, table: Table):
    assert shutil.which("unshare"), "unshare is missing; install util-linux"
    lines = run_filler(way, tmp_path, ledger)
    if lines == [["impossible"]]:
        assert way.startswith("loop"), f"{way} cannot be mounted here"
        table.add_result("D5", f"{way}: not possible here (needs root and a loop device)", 0)
        return
    found = find_note_faults(lines)
    kinds = [line[0] for line in lines]
    done = f"full by {way}: {kinds.count('refused')} writes rejected, {kinds.count('deleted')} deletions made"
    table.add_result("D5", done, len(found))
    assert found == []
    assert kinds.count("refused") == 4
    assert lines[-1][0] == "end"


@pytest.mark.mutant("D5")
@pytest.mark.parametrize(
    ("way", "mutant", "fault"),
    [
        ("tmpfs of 2 MB", "no_reserve", "not deleted: StoreFull"),
        ("file size", "ignore_errno", "refused by StoreUnavailable"),
    ],
)
def test_full_disk_mutant_is_detected(way: str, mutant: str, fault: str, tmp_path: Path, ledger: Ledger, table: Table):
    found = find_note_faults(run_filler(way, tmp_path, ledger, mutant))
    table.add_mutant("D5", f"{mutant.replace('_', ' ')}, {way}", len(found))
    assert fault in found
