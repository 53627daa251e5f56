"""Runners of the command line: in this process, which is faster, or in a new process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from recollect.cli import main

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
    def error_json(self) -> Any:
        """The JSON error on stderr."""
        return json.loads(self.err)


Call = Callable[..., Done]


def run(directory: Path, *arguments: str, given: bytes | None = None, **environ: str) -> Done:
    """Run a command in a new process, for tests of startup, pipes, signals and exit codes."""
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


def run_here(directory: Path, *arguments: str, given: bytes | None = None, **environ: str) -> Done:
    """Run a command in this process, with its input, output and environment replaced."""
    streams = [
        io.TextIOWrapper(io.BytesIO(content), "utf-8", write_through=True) for content in (given or b"", b"", b"")
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for name, value in {**PLAIN, **environ}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["recollect", *arguments])
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    printed, errors = (stream.buffer.getvalue().decode() for stream in streams[1:])
    return Done(ended.value.code, printed, errors)


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
