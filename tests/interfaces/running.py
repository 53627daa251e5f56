"""Runs the command line as a person would type it: in this process, which is quicker, or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from recollect.interfaces.cli import main

OK, NOT_FOUND, USAGE, FAILED, INTERRUPTED = 0, 1, 2, 3, 130
RECOLLECT = str(Path(sys.executable).parent / "recollect")
PLAIN = {"RECOLLECT_THREADS": "1", "COLUMNS": "200", "TERM": "dumb", "PYTHONUTF8": "1"}


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def complaint(self) -> Any:
        """What it says of an error to a program."""
        return json.loads(self.err)


Call = Callable[..., Done]


def run(directory: Path, *arguments: str, given: bytes | None = None, **environ: str) -> Done:
    """In a process of its own: what starts, reads, pipes and ends like a program."""
    done = subprocess.run(
        [RECOLLECT, *arguments],
        cwd=directory,
        input=given,
        capture_output=True,
        timeout=120,
        env={**os.environ, **PLAIN, **environ},
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in err, err
    return Done(done.returncode, out, err)


def caller(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    def call_here(directory: Path, *arguments: str, **environ: str) -> Done:
        monkeypatch.chdir(directory)
        monkeypatch.setattr(sys, "argv", ["recollect", *arguments])
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, *capsys.readouterr())

    return call_here
