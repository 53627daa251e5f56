"""The wheel that a release builds: its files, its metadata, and that it works when installed alone."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest

import recollect

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "recollect"
ABOUT = f"recollect_memory-{recollect.__version__}.dist-info"
QUICK_TO_IMPORT = 0.3  # seconds, for the fastest of several runs

IMPORTED = """
import sys, time
started = time.process_time()
import recollect
took = time.process_time() - started
print(f"{took:.3f}", recollect.__file__, *[name for name in ("numpy", "apsw", "onnxruntime", "onnx", "typer", "openai",
    "anthropic") if name in sys.modules])
"""

# The `recollect` script of an installation.
COMMAND = """
import sys
from importlib.metadata import entry_points
(command,) = entry_points(group="console_scripts", name="recollect")
command.load()()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the source distribution, so that files missing there are missing here too."""
    built = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(built), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = built.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python that has the wheel and its dependencies, and not this checkout."""
    place = tmp_path_factory.mktemp("alone")
    venv.create(place, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)}))
    with ZipFile(wheel) as zipped:
        zipped.extractall(site)
    # A line in a .pth file adds a directory without reading the .pth files in it, which keeps the editable install out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return place / "bin" / "python"


def run(python: Path, program: str, *arguments: str, cwd: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RECOLLECT_"))}
    done = subprocess.run(
        [str(python), "-c", program, *arguments],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def list_names(wheel: Path) -> list[str]:
    with ZipFile(wheel) as zipped:
        return zipped.namelist()


def read_metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as zipped:
        return Parser().parsestr(zipped.read(f"{ABOUT}/METADATA").decode("utf-8"))


def test_wheel_contains_only_the_package(wheel: Path):
    # Mutant: the tests, the benchmarks or a leftover store are packed too.
    packed = {name for name in list_names(wheel) if not name.startswith(f"{ABOUT}/")}
    ours = {f"recollect/{file.relative_to(SOURCE).as_posix()}" for file in SOURCE.rglob("*.*") if file.is_file()}
    assert packed == {name for name in ours if "__pycache__" not in name}
    kinds = {PurePosixPath(name).suffix for name in packed}
    assert kinds == {".py", ".sql", ".lua", ".typed", ".toml", ".json"}
    assert {name.split("/")[0] for name in packed} == {"recollect"}
    assert wheel.stat().st_size < 1_000_000


def test_wheel_contains_py_typed_and_license(wheel: Path):
    assert "recollect/py.typed" in list_names(wheel)
    with ZipFile(wheel) as zipped:
        licence = zipped.read(f"{ABOUT}/licenses/LICENSE").decode("utf-8")
    assert licence == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in licence


def test_wheel_metadata_lists_name_license_and_requirements(wheel: Path):
    metadata = read_metadata(wheel)
    assert (metadata["Name"], metadata["Version"]) == ("recollect-memory", recollect.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.11"} <= set(metadata.get_all("Classifier", []))
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert len(needed) == 9, "every required dependency is installed for every user"
    assert {
        "agent",
        "anthropic",
        "openai",
        "voyage",
        "sentence-transformers",
        "testing",
        "postgres",
        "redis",
        "chroma",
    } == set(metadata.get_all("Provides-Extra", []))
    assert str(metadata.get_payload()) == (ROOT / "README.md").read_text(encoding="utf-8")


def test_installed_wheel_imports_fast_and_loads_no_heavy_modules(
    installed_python: Path, tmp_path: Path, record_property
):
    # Mutant: `import numpy` in a module that `recollect/__init__.py` imports.
    answers = [run(installed_python, IMPORTED, cwd=tmp_path).split() for _ in range(5)]
    seconds = min(float(answer[0]) for answer in answers)
    record_property("import_seconds", seconds)
    assert answers[0][2:] == []
    assert Path(answers[0][1]).is_relative_to(installed_python.parent.parent), "this is the checkout, not the wheel"
    assert seconds <= QUICK_TO_IMPORT


def test_installed_command_prints_version(installed_python: Path, tmp_path: Path):
    assert run(installed_python, COMMAND, "--version", cwd=tmp_path).strip() == recollect.__version__


def test_installed_wheel_creates_and_reads_a_store(installed_python: Path, tmp_path: Path):
    """The schema is package data: without it no store can be opened."""
    program = """
from recollect.sync import AgentMemory
with AgentMemory.open("a.db", embedder=lambda text: [1.0, 0.5]) as memory:
    memory.remember("Kept by an installed wheel.", key="k")
with AgentMemory.open("a.db", embedder=lambda text: [1.0, 0.5]) as memory:
    print(memory.semantic.history("k")[0].content)
"""
    assert run(installed_python, program, cwd=tmp_path) == "Kept by an installed wheel.\n"
