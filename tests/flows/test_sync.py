"""`recollect.sync`: the same memory with blocking calls."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import recollect
from recollect import lifecycle, sync
from recollect.errors import BadInput, BadQuery, EmbeddingModelMismatch, StoreClosed, StoreUnavailable
from recollect.types import Progress
from tests.embedders import HashEmbedder


@pytest.fixture
def memory():
    with sync.AgentMemory.open("memory://", user="ada", embedder=HashEmbedder()) as opened:
        yield opened


CLASSES = [
    "AgentMemory",
    "AgentWithMemory",
    "ConversationMemory",
    "EpisodicMemory",
    "Lifecycle",
    "ProceduralMemory",
    "SemanticMemory",
    "WorkingMemory",
]


def pair(name: str) -> tuple[type, type]:
    return lifecycle.Lifecycle if name == "Lifecycle" else getattr(recollect, name), getattr(sync, name)


@pytest.mark.parametrize("name", CLASSES)
def test_every_coroutine_has_a_blocking_method(name: str):
    real, twin = pair(name)
    methods = inspect.getmembers(real, inspect.iscoroutinefunction)
    assert methods
    for method, function in methods:
        if method.startswith("_"):
            continue
        blocking = getattr(twin, method, None)
        assert blocking is not None, f"sync.{name}.{method} is missing"
        assert not inspect.iscoroutinefunction(blocking)
        if method != "close":
            assert inspect.signature(blocking) == inspect.signature(function)
            assert blocking.__doc__ == function.__doc__


@pytest.mark.parametrize("name", CLASSES)
def test_blocking_class_adds_no_public_members(name: str):
    real, twin = pair(name)
    public = {member for member in vars(twin) if not member.startswith("_")}
    public -= {"scope", "working", "last_run"}  # attributes of the async instance
    instance = real() if name == "WorkingMemory" else real
    assert public <= set(dir(instance))


def test_working_memory_has_every_public_member():
    members = {member for member in dir(recollect.WorkingMemory()) if not member.startswith("_")}
    settings = {"max_tokens", "summarize_at", "keep_recent", "max_items", "from_snapshot"}
    assert {member for member in dir(sync.WorkingMemory) if not member.startswith("_")} == members - settings


@pytest.mark.parametrize(
    ("real", "twin"),
    [
        (recollect.AgentMemory.open, sync.AgentMemory.open),
        (recollect.AgentMemory.scoped, sync.AgentMemory.scoped),
        (recollect.ResumableAgent, sync.ResumableAgent),
        (recollect.AgentWithMemory, sync.AgentWithMemory),
    ],
)
def test_blocking_signatures_have_the_same_options(real: Callable[..., Any], twin: Callable[..., Any]):
    options = [
        {name: (option.default, option.kind) for name, option in inspect.signature(function).parameters.items()}
        for function in (real, twin)
    ]
    assert options[0] == options[1]


def test_closing_a_view_keeps_its_owner_open(memory: sync.AgentMemory):
    memory.scoped(user="bob").close()
    assert memory.stats().items == 0


def test_blocking_memory_has_every_attribute(memory: sync.AgentMemory):
    parts = {name for name in vars(memory._real) if not name.startswith("_")}
    assert parts - {"scope"} >= {"working", "conversation", "episodic", "semantic", "procedural"}
    for name in parts:
        assert hasattr(memory, name), f"sync.AgentMemory.{name} is missing"


def test_blocking_tasks_turns_export_and_import(memory: sync.AgentMemory, tmp_path: Path):
    memory.record_turn("Export the invoices.", "At once.")
    memory.start_task("Export the invoices")
    memory.record_step("By month.", "export january", "812 rows")
    assert memory.working.task == "Export the invoices"
    assert memory.end_task(True, "Done.").steps == 1
    memory.working.set_task("Another one")
    memory.export(tmp_path / "a.jsonl")
    other = memory.scoped(user="bob", agent="other")
    previous = other.working
    assert other.import_from(tmp_path / "a.jsonl").added["semantic"] == 1
    assert other.working.task == "Another one"
    assert previous.task == ""


def test_blocking_remember_recall_and_forget(memory: sync.AgentMemory):
    item = memory.remember("The cello is in the attic.", importance=0.8)
    memory.semantic.add_many([{"content": "Bread is baked on Tuesdays."}])
    assert memory.semantic.get(item.id) == item
    assert memory.recall("cello attic", 1, min_relevance=0.0).hits[0].item.id == item.id
    assert memory.stats().items == 2
    assert memory.scope.user == "ada"
    assert memory.scoped(user="bob").stats().items == 0
    assert memory.reembed(HashEmbedder("fresh")) == 2
    assert memory.check() == []
    assert memory.forget(item.id)


def test_blocking_lifecycle(memory: sync.AgentMemory):
    memory.record_turn("Please remember that my flat is in Lisbon.")
    assert memory.lifecycle.plan().counts["promoted"] == 1
    assert memory.lifecycle.run_once().counts["promoted"] == 1
    memory.lifecycle.start(3600)
    with pytest.raises(BadInput, match="already"):
        memory.lifecycle.start(3600)
    memory.lifecycle.stop()
    memory.lifecycle.start(3600)  # still running; close stops it


async def test_close_stops_every_started_lifecycle():
    memory = await recollect.AgentMemory.open("memory://", user="ada", embedder=HashEmbedder())
    memory.lifecycle.start(3600)
    memory.scoped(user="bob").lifecycle.start(3600)
    running = [task for task in asyncio.all_tasks() if task.get_name() == "recollect-lifecycle"]
    assert len(running) == 2
    await memory.close()
    assert all(task.done() for task in running)


async def test_blocking_calls_work_inside_a_running_loop(memory: sync.AgentMemory):
    assert asyncio.get_running_loop().is_running()
    item = memory.remember("The cello is in the attic.")
    assert memory.semantic.search("cello", min_relevance=0.0)[0].item.id == item.id


def test_threads_share_one_blocking_memory(tmp_path: Path):
    with sync.AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder()) as memory:
        with ThreadPoolExecutor(8) as threads:
            items = list(threads.map(lambda n: memory.remember(f"fact number {n % 20}"), range(80)))
        assert len({item.id for item in items}) == 20
        assert memory.stats().items == 20


def test_blocking_calls_raise_the_same_errors(memory: sync.AgentMemory, tmp_path: Path):
    with pytest.raises(BadQuery):
        memory.recall("")
    with pytest.raises(BadInput):
        memory.remember("")
    with pytest.raises(StoreUnavailable):
        sync.AgentMemory.open(tmp_path / "no" / "agent.db", embedder=HashEmbedder())
    with pytest.raises(BadInput):
        sync.AgentMemory.open("memory://", user="")
    with sync.AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder()) as file:
        file.remember("x")
    with pytest.raises(EmbeddingModelMismatch):
        sync.AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder("another"))


def test_close_twice_is_allowed_and_later_calls_raise(tmp_path: Path):
    memory = sync.AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder())
    other = memory.scoped(user="bob")
    memory.close()
    memory.close()
    other.close()
    for use in (lambda: memory.remember("x"), lambda: other.recall("x"), memory.stats):
        with pytest.raises(StoreClosed):
            use()


def test_concurrent_close_calls_succeed(tmp_path: Path):
    memory = sync.AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder())
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: memory.close(), range(8)))


def test_failed_open_leaves_no_thread(tmp_path: Path):
    before = set(threading.enumerate())
    with pytest.raises(StoreUnavailable):
        sync.AgentMemory.open(tmp_path / "no" / "agent.db", embedder=HashEmbedder())
    new_threads = set(threading.enumerate()) - before
    assert [thread.name for thread in new_threads if thread.name.startswith("recollect-")] == []


def test_callback_that_calls_the_memory_raises(memory: sync.AgentMemory):
    memory.remember("The cello is in the attic.")

    def progress(_: Progress) -> None:
        memory.stats()

    with pytest.raises(BadInput, match="callback"):
        memory.reembed(HashEmbedder("fresh"), progress=progress)


def test_unclosed_memory_does_not_block_program_exit(tmp_path: Path):
    program = (
        "import sys\nfrom recollect.sync import AgentMemory\nfrom tests.embedders import HashEmbedder\n"
        "memory = AgentMemory.open(sys.argv[1], embedder=HashEmbedder())\n"
        "print(memory.remember('The cello is in the attic.').content)\n"
    )
    root = Path(__file__).resolve().parents[2]
    completed = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "agent.db")],
        cwd=root, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "The cello is in the attic.\n", "")
