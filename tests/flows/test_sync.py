"""`recollect.sync` is the same memory for code that does not await."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import recollect
from recollect import BadInput, BadQuery, EmbeddingModelMismatch, StoreClosed, StoreUnavailable, lifecycle, sync
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

# For whoever writes several things in one transaction, within one event loop.
NOT_FOR_CALLERS = {"approved", "drafted"}


def pair(name: str) -> tuple[type, type]:
    return lifecycle.Lifecycle if name == "Lifecycle" else getattr(recollect, name), getattr(sync, name)


@pytest.mark.parametrize("name", CLASSES)
def test_every_coroutine_has_its_twin(name: str):
    real, twin = pair(name)
    methods = inspect.getmembers(real, inspect.iscoroutinefunction)
    assert methods
    for method, function in methods:
        if method.startswith("_") or method in NOT_FOR_CALLERS:
            continue
        blocking = getattr(twin, method, None)
        assert blocking is not None, f"sync.{name}.{method} is missing"
        assert not inspect.iscoroutinefunction(blocking)
        if method != "close":
            assert inspect.signature(blocking) == inspect.signature(function)
            assert blocking.__doc__ == function.__doc__


@pytest.mark.parametrize("name", CLASSES)
def test_the_twin_promises_nothing_more(name: str):
    real, twin = pair(name)
    public = {one for one in vars(twin) if not one.startswith("_")} - {"scope", "working", "last_run"}  # values there
    assert public <= set(dir(real))


def test_every_part_of_a_memory_has_its_twin(memory: sync.AgentMemory):
    parts = {name for name in vars(memory._real) if not name.startswith("_")}
    assert parts - {"scope"} >= {"working", "conversation", "episodic", "semantic", "procedural"}
    for name in parts:
        assert hasattr(memory, name), f"sync.AgentMemory.{name} is missing"


def test_a_task_and_a_turn_without_await(memory: sync.AgentMemory, tmp_path: Path):
    memory.record_turn("Export the invoices.", "At once.")
    memory.start_task("Export the invoices")
    memory.record_step("By month.", "export january", "812 rows")
    assert memory.working.task == "Export the invoices"
    assert memory.end_task(True, "Done.").steps == 1
    memory.working.set_task("Another one")
    memory.export(tmp_path / "a.jsonl")
    other = memory.scoped(user="bob", agent="other")
    held = other.working
    assert other.import_from(tmp_path / "a.jsonl").added["semantic"] == 1
    assert other.working.task == "Another one"
    assert held.task == ""


def test_it_remembers_and_recalls(memory: sync.AgentMemory):
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


def test_the_lifecycle_without_await(memory: sync.AgentMemory):
    memory.record_turn("Please remember that my flat is in Lisbon.")
    assert memory.lifecycle.plan().counts["promoted"] == 1
    assert memory.lifecycle.run_once().counts["promoted"] == 1
    memory.lifecycle.start(3600)
    with pytest.raises(BadInput, match="already"):
        memory.lifecycle.start(3600)
    memory.lifecycle.stop()
    memory.lifecycle.start(3600)  # and left running: closing ends it


async def test_closing_ends_every_lifecycle_that_was_started():
    memory = await recollect.AgentMemory.open("memory://", user="ada", embedder=HashEmbedder())
    memory.lifecycle.start(3600)
    memory.scoped(user="bob").lifecycle.start(3600)
    running = [task for task in asyncio.all_tasks() if task.get_name() == "recollect-lifecycle"]
    assert len(running) == 2
    await memory.close()
    assert all(task.done() for task in running)


async def test_it_works_where_a_loop_is_running(memory: sync.AgentMemory):
    assert asyncio.get_running_loop().is_running()
    item = memory.remember("The cello is in the attic.")
    assert memory.semantic.search("cello", min_relevance=0.0)[0].item.id == item.id


def test_many_threads_share_one_memory(tmp_path: Path):
    with sync.AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder()) as memory:
        with ThreadPoolExecutor(8) as threads:
            items = list(threads.map(lambda n: memory.remember(f"fact number {n % 20}"), range(80)))
        assert len({item.id for item in items}) == 20
        assert memory.stats().items == 20


def test_errors_come_through(memory: sync.AgentMemory, tmp_path: Path):
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


def test_closing_twice_is_fine_and_using_it_afterwards_is_told(tmp_path: Path):
    memory = sync.AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder())
    other = memory.scoped(user="bob")
    memory.close()
    memory.close()
    other.close()
    for use in (lambda: memory.remember("x"), lambda: other.recall("x"), memory.stats):
        with pytest.raises(StoreClosed):
            use()


def test_closing_from_many_threads_at_once_is_fine(tmp_path: Path):
    memory = sync.AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder())
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: memory.close(), range(8)))


def test_what_fails_to_open_leaves_no_thread(tmp_path: Path):
    before = set(threading.enumerate())
    with pytest.raises(StoreUnavailable):
        sync.AgentMemory.open(tmp_path / "no" / "agent.db", embedder=HashEmbedder())
    left = set(threading.enumerate()) - before
    assert [thread.name for thread in left if thread.name.startswith("recollect-")] == []


def test_a_callback_that_would_wait_for_itself_is_refused(memory: sync.AgentMemory):
    memory.remember("The cello is in the attic.")

    def progress(done: int, total: int) -> None:
        memory.stats()

    with pytest.raises(BadInput, match="callback"):
        memory.reembed(HashEmbedder("fresh"), progress=progress)


def test_a_program_that_forgets_to_close_ends_all_the_same(tmp_path: Path):
    program = (
        "import sys\nfrom recollect.sync import AgentMemory\nfrom tests.embedders import HashEmbedder\n"
        "memory = AgentMemory.open(sys.argv[1], embedder=HashEmbedder())\n"
        "print(memory.remember('The cello is in the attic.').content)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "agent.db")],
        cwd=root, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "The cello is in the attic.\n", "")
