"""What `import recollect` promises: these names, and nothing heavy behind them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version

import recollect

# Changed on purpose only, together with the changelog: what is taken away here breaks somebody's program.
PROMISED = {
    *("AgentMemory", "WorkingMemory", "ConversationMemory", "EpisodicMemory", "SemanticMemory", "ProceduralMemory"),
    *("ResumableAgent", "step", "StepContext"),
    *("TaskError", "TaskPoisoned", "StepFailed", "UnknownOutcome", "PlanChanged", "LeaseHeld"),
    *("AgentWithMemory", "create_memory_aware_prompt"),
    *("Context", "Hit", "MemoryItem", "Scope", "ConsolidationReport", "LifecycleReport"),
    *("TIERS", "MemoryTier", "Settings"),
    *("RecollectError", "BadInput", "SecretRefused", "BadQuery", "BadVector", "BadSettings", "NotFound", "Conflict"),
    *("StoreError", "StoreUnavailable", "StoreCorrupt", "StoreFull", "StoreClosed", "SchemaTooNew", "Unsupported"),
    *("InferenceError", "ModelNotInstalled", "ModelDamaged", "EmbeddingModelMismatch", "EmbedderFailed", "ModelFailed"),
}

# Everything heavy is loaded when it is first used: a program that only imports us does not pay for it.
HEAVY = ("numpy", "apsw", "onnxruntime", "onnx", "typer", "rich", "tokenizers", "google.protobuf")

IMPORT_IN_A_NEW_PROCESS = f"""
import sys, time
started = time.perf_counter()
import recollect
took = time.perf_counter() - started
print(f"{{took:.3f}}", *[name for name in {HEAVY!r} if name in sys.modules])
"""


def run_python(program: str) -> str:
    return subprocess.run(  # the interpreter we run in, on a program of our own
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_the_public_names_are_the_ones_we_promise():
    assert set(recollect.__all__) == PROMISED


def test_every_promised_name_is_there():
    assert [name for name in recollect.__all__ if not hasattr(recollect, name)] == []


def test_nothing_else_is_public():
    """A name that is reachable gets used; what we did not mean to promise stays behind a module."""
    program = (
        "import recollect, types; print(*[n for n, v in vars(recollect).items() if not n.startswith('_')"
        " and not isinstance(v, types.ModuleType)])"
    )
    assert set(run_python(program).split()) - {"annotations", "TYPE_CHECKING"} <= set(recollect.__all__)


def test_public_names_are_few():
    """Errors are not counted: they cost nobody a thought before they are met, and are then caught by name."""
    values = [getattr(recollect, name) for name in recollect.__all__]
    others = [value for value in values if not (isinstance(value, type) and issubclass(value, Exception))]
    assert len(others) <= 25, "public names are a cost: what can be taken away?"


def test_importing_loads_nothing_heavy(record_property):
    seconds, *heavy = run_python(IMPORT_IN_A_NEW_PROCESS).split()
    record_property("import_seconds", seconds)
    assert heavy == []


def test_the_version_is_the_one_installed():
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", recollect.__version__)
    assert recollect.__version__ == version("recollect")
