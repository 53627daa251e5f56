"""Launcher of the child programs, unchanged or as a mutant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.crash import mutants

ROOT = Path(__file__).resolve().parents[2]


def command(module: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", f"tests.crash.{module}", *(str(argument) for argument in arguments)]


def environment(mutant: str = "") -> dict[str, str]:
    # One thread for numpy: there are many processes and their vectors are small.
    return {**os.environ, mutants.VARIABLE: mutant, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def start(module: str, *arguments: object, mutant: str = "", keep: tuple[int, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(module, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(mutant),
        pass_fds=keep,
    )


def send_line(process: subprocess.Popen[str], line: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")
