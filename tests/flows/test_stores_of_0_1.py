"""Stores written by release 0.1.0, plain and encrypted, open, work and migrate with the current code."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from recollect import AgentMemory, ResumableAgent, Settings
from recollect.errors import SchemaTooNew
from recollect.stores.sqlite import migrations
from recollect.testing import ManualClock

DATA = Path(__file__).resolve().parents[1] / "data" / "store-0.1"
KEY = "0123456789abcdef" * 4
# `tests/data/make_store.py` wrote the stores at 9:00 of this day; their episodes have not expired yet.
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


async def quote(state):
    raise AssertionError("the step was completed by release 0.1.0 and must not run again")


async def charge(state):
    raise AssertionError("the step was completed by release 0.1.0 and must not run again")


async def notify(state):
    return f"{state['results']['step_0_quote']} sent"


@pytest.fixture(params=["plain", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Settings]:
    for file in DATA.glob(f"{request.param}.db*"):
        shutil.copy(file, tmp_path)
    path = tmp_path / f"{request.param}.db"
    assert path.is_file()
    return path, Settings(encryption_key=KEY if request.param == "encrypted" else "")


async def test_a_store_of_release_0_1_reads_in_every_tier(store: tuple[Path, Settings]):
    path, settings = store
    async with AgentMemory.open(
        path, tenant="acme", user="ada", agent="clerk", session="monday", settings=settings, clock=ManualClock(NOW)
    ) as memory:
        assert await memory.check() == []
        context = await memory.recall("Which units does Ada prefer?")
        assert "imperial units" in str(context)
        assert "metric units" not in str(context)
        history = await memory.semantic.history("user.units")
        assert history[0].content.startswith("Ada prefers imperial")
        assert len(history) == 2
        assert [hit.item.metadata["year"] for hit in await memory.semantic.search("Where is the cello?", 1)] == [2024]
        messages = await memory.conversation.get_last_n(10)
        assert any("Lisbon" in message.content for message in messages)
        assert await memory.episodic.get_recent(5)
        procedure = await memory.procedural.get("deploy")
        assert procedure is not None
        assert (procedure.version, procedure.body) == (2, "Push a signed tag.")
        assert (await memory.procedural.success_rate("deploy")).trials == 1
        assert (await memory.checkpoints.restore("bare")) == {"cursor": 7}
        assert len(await memory.erasures()) == 1


async def test_a_store_of_release_0_1_takes_writes_and_resumes_its_tasks(store: tuple[Path, Settings]):
    path, settings = store
    async with AgentMemory.open(
        path, tenant="acme", user="ada", agent="clerk", session="monday", settings=settings, clock=ManualClock(NOW)
    ) as memory:
        await memory.remember("Ada prefers metric units again.", key="user.units")
        assert "metric units again" in str(await memory.recall("Which units does Ada prefer?"))
        state = await ResumableAgent(memory, on_plan_change="by_name").run("invoice-42", [quote, charge, notify])
        assert state["results"]["step_2_notify"] == "42 sent"
        receipt = await memory.erase(user="ada")
        assert receipt.status == "complete"
        assert (await memory.verify_erasure((await memory.erasures())[0])).holds
        assert not await memory.recall("Which units does Ada prefer?")


async def test_a_store_of_release_0_1_migrates_and_its_backup_is_the_way_back(
    store: tuple[Path, Settings], monkeypatch: pytest.MonkeyPatch
):
    path, settings = store
    current = migrations.load_migrations()
    later = current[-1][0] + 1
    with monkeypatch.context() as patch:  # a later release, which this release does not know
        patch.setattr(migrations, "load_migrations", lambda: [*current, (later, "alter table records add later text")])
        async with AgentMemory.open(path, tenant="acme", user="ada", settings=settings) as memory:
            assert await memory.check() == []
            assert "imperial units" in str(await memory.recall("Which units does Ada prefer?"))
            await memory.remember("Ada has moved to the later release.")
    migrated = path.read_bytes()
    with pytest.raises(SchemaTooNew, match=f"has schema {later}, .* upgrade Recollect"):
        await AgentMemory.open(path, tenant="acme", user="ada", settings=settings)
    assert path.read_bytes() == migrated
    backup = path.with_name(f"{path.name}.before-schema-{later}")
    async with AgentMemory.open(backup, tenant="acme", user="ada", settings=settings) as memory:
        assert await memory.check() == []
        assert "imperial units" in str(await memory.recall("Which units does Ada prefer?"))
        assert "later release" not in str(await memory.recall("Where has Ada moved?"))
