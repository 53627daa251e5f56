"""Without the packages of a server everything else works, and its URL names the extra to install."""

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
INSTALL = {"postgres": "'psycopg[binary]' pgvector", "redis": "redis", "chroma": "chromadb httpx"}

WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None  # as if it had never been installed
from recollect import AgentMemory, BadSettings
from recollect.sync import AgentMemory as Memory
from tests.embedders import HashEmbedder
with Memory.open("memory://", embedder=HashEmbedder()) as memory:
    memory.remember("It works without.")
try:
    # In a tier that each of them could keep: what is missing is said before what is unsuited.
    tier = "semantic" if sys.argv[2].startswith("chroma") else "episodic"
    Memory.open({"default": "memory://", tier: sys.argv[2]}, embedder=HashEmbedder())
except BadSettings as error:
    print(error)
"""


@pytest.mark.parametrize("extra", NEEDS)
def test_a_url_whose_packages_are_missing_names_the_extra(extra: str):
    # Mutant: a backend that `connect` imports at the top.
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *NEEDS[extra]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert f"needs the extra `{extra}`" in done.stdout
    assert f"pip install {INSTALL[extra]} (in a checkout: pip install '.[{extra}]')" in done.stdout


@pytest.mark.parametrize("extra", NEEDS)
def test_what_an_error_says_to_install_is_what_the_extra_has(extra: str):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert INSTALL[extra].replace("'", "").split() == [re.split("[<>=]", wanted)[0] for wanted in extras[extra]]


def test_nobody_is_sent_to_the_project_of_another_that_has_our_name_on_the_index():
    # Mutant: an error that says `pip install 'recollect[redis]'`.
    files = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py"), *ROOT.glob("examples/*")]
    said = re.compile(r"recollect\[[a-z,-]+\]|install [\"']?recollect\b")
    assert [file.name for file in files if file.is_file() and said.search(file.read_text(encoding="utf-8"))] == []


def test_extras_have_lower_bounds_and_no_others():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in NEEDS:
        assert extras[extra]
        for wanted in extras[extra]:
            assert re.fullmatch(r"[a-z]+(\[[a-z,]+\])?>=[0-9.]+", wanted), wanted
