"""Without the packages of a server everything else works, and its URL names the extra to install."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NEEDS = {"postgres": ("psycopg", "postgresql://h/d"), "redis": ("redis", "redis://127.0.0.1:1/0")}

WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None  # as if it had never been installed
from recollect import AgentMemory, BadSettings
from recollect.sync import AgentMemory as Memory
from tests.embedders import HashEmbedder
with Memory.open("memory://", embedder=HashEmbedder()) as memory:
    memory.remember("It works without.")
try:
    Memory.open(sys.argv[2], embedder=HashEmbedder())
except BadSettings as error:
    print(error)
"""


@pytest.mark.parametrize("extra", NEEDS)
def test_a_url_whose_packages_are_missing_names_the_extra(extra: str):
    # Mutant: a backend that `connect` imports at the top.
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *NEEDS[extra]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert f"recollect[{extra}]" in done.stdout


def test_extras_have_lower_bounds_and_no_others():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in NEEDS:
        assert extras[extra]
        for wanted in extras[extra]:
            assert re.fullmatch(r"[a-z]+(\[[a-z,]+\])?>=[0-9.]+", wanted), wanted
