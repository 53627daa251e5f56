"""Runs the command line in this process, as a person would type it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from recollect.interfaces.cli import main


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
