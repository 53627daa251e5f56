"""Optional packages: everything else works without them, and the error for a URL names the extra to install."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NEEDS = {
    "postgres": ("psycopg", "postgresql://h/d"),
    "redis": ("redis", "redis://127.0.0.1:1/0"),
    "chroma": ("chromadb", "chroma:./facts"),
}

WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None  # makes the import fail
from recollect import AgentMemory
from recollect.errors import BadSettings
from recollect.sync import AgentMemory as Memory
from tests.embedders import HashEmbedder
with Memory.open("memory://", embedder=HashEmbedder()) as memory:
    memory.remember("It works without.")
try:
    # A tier that the backend supports, so that only the missing package can fail.
    tier = "semantic" if sys.argv[2].startswith("chroma") else "episodic"
    Memory.open({"default": "memory://", tier: sys.argv[2]}, embedder=HashEmbedder())
except BadSettings as error:
    print(error)
"""


@pytest.mark.parametrize("extra", NEEDS)
def test_url_with_missing_packages_names_the_extra(extra: str):
    # Mutant: a backend package is imported at module level.
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *NEEDS[extra]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert f"needs the extra `{extra}`" in done.stdout
    assert f"pip install 'recollect-memory[{extra}]' (in a checkout: pip install '.[{extra}]')" in done.stdout


def test_install_hints_never_name_the_foreign_package():
    # Mutant: an error says `pip install 'recollect[redis]'`.
    files = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py"), *ROOT.glob("examples/*")]
    pattern = re.compile(r"recollect\[[a-z,-]+\]|install [\"']?recollect\b(?!-memory)")
    assert [file.name for file in files if file.is_file() and pattern.search(file.read_text(encoding="utf-8"))] == []


def test_extras_have_only_lower_bounds():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in NEEDS:
        assert extras[extra]
        for wanted in extras[extra]:
            assert re.fullmatch(r"[a-z]+(\[[a-z,]+\])?>=[0-9.]+", wanted), wanted
