"""The public names of `recollect`, and the modules that importing it must not load."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from importlib.metadata import version

import recollect
from recollect import types

# Change these only on purpose and with a changelog entry: removing a name breaks programs that use it.
PROMISED = {
    *("AgentMemory", "WorkingMemory", "ConversationMemory", "EpisodicMemory", "SemanticMemory", "ProceduralMemory"),
    *("ResumableAgent", "step", "StepContext"),
    *("AgentWithMemory", "create_memory_aware_prompt"),
    *("Context", "Hit", "MemoryItem", "Scope", "ConsolidationReport", "LifecycleReport"),
    *("TIERS", "MemoryTier", "Settings"),
    "RecollectError",
}

# Heavy modules are loaded on first use.
HEAVY = ("numpy", "apsw", "onnxruntime", "onnx", "typer", "rich", "tokenizers", "google.protobuf")

IMPORT_IN_A_NEW_PROCESS = f"""
import sys, time
started = time.perf_counter()
import recollect
took = time.perf_counter() - started
print(f"{{took:.3f}}", *[name for name in {HEAVY!r} if name in sys.modules])
"""


def run_python(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_public_names_match_the_promised_set():
    assert set(recollect.__all__) == PROMISED


def test_promised_names_exist():
    assert [name for name in recollect.__all__ if not hasattr(recollect, name)] == []


def test_package_has_no_other_public_names():
    """Names that are not promised must not be importable from the top level, or programs will use them."""
    program = (
        "import recollect, types; print(*[n for n, v in vars(recollect).items() if not n.startswith('_')"
        " and not isinstance(v, types.ModuleType)])"
    )
    assert set(run_python(program).split()) - {"annotations", "TYPE_CHECKING"} <= set(recollect.__all__)


def test_public_names_are_at_most_30():
    assert len(recollect.__all__) <= 30, "at most 30 public names are allowed: remove one first"


def test_result_types_are_importable_from_types():
    for module, names in types._LAZY_TYPES.items():
        for name in names:
            assert getattr(types, name) is getattr(importlib.import_module(module), name)


def test_import_loads_no_heavy_modules(record_property):
    seconds, *heavy = run_python(IMPORT_IN_A_NEW_PROCESS).split()
    record_property("import_seconds", seconds)
    assert heavy == []


def test_version_matches_the_installed_distribution():
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", recollect.__version__)
    assert recollect.__version__ == version("recollect-memory")
