"""The same 35 points of stores that are no file: each says what it sees, or why there is nothing to see."""

from __future__ import annotations

import psycopg
import pytest

from recollect import AgentMemory, Settings
from recollect.doctor import Patient, Place, examine
from recollect.stores.postgres import health, index, models
from recollect.stores.sqlite import SqliteStore
from recollect.stores.sqlite.key import Key
from tests.doctor.breakages import Tools, on_postgres
from tests.doctor.ward import Ward, live
from tests.servers.redis import RedisServer


async def test_an_encrypted_file_passes(ward: Ward):
    ward.path = ward.directory / "sealed.db"
    store = SqliteStore.open(ward.path, key=Key("5eed" * 16))
    place = Place(
        url=str(ward.path), tiers=("semantic", "procedural", "conversation", "episodic", "checkpoints"), store=store
    )
    patient = Patient(settings=Settings(), clock=ward.clock, places=(place,))
    report = await examine(patient)
    await store.close()
    assert report["access.encryption"].status == "pass"
    # Nobody has said by which model it is to be asked.
    assert [one.id for one in report.findings if one.status == "fail"] == ["index.model"]


async def test_a_memory_over_three_backends(ward: Ward, roomy_redis: RedisServer):
    ward.place = {
        "default": str(ward.path),
        "semantic": f"chroma:{ward.directory / 'chroma'}",
        "episodic": roomy_redis.url,
        "checkpoints": roomy_redis.url,
    }
    memory = await ward.opened()
    await live(memory)
    ward.tolerated |= {"access.files", "upkeep.backup"}  # Chroma's files are everybody's, and the file has news
    assert await ward.ill() == {}
    report = await ward.examined()
    assert len(report.findings) == 35
    assert f"{roomy_redis.url}: episodic, checkpoints: survive power loss" in report["store.durability"].detail
    assert "Chroma 1." in report["store.versions"].detail


async def test_nothing_is_silently_passed_over(ward: Ward):
    """Where a question does not arise, the line says so."""
    ward.place = "memory://"
    report = await ward.examined()
    silent = {one.id for one in report.findings if one.status == "pass" and one.detail.startswith("not applicable: ")}
    assert silent >= {"store.schema", "access.files", "access.auth", "index.nearest", "disk.log", "capacity.server"}
    assert all(one.detail.strip() and one.why.endswith(".") for one in report.findings)
    assert all(one.fix for one in report.findings if one.status != "pass")
    assert report["store.durability"].status == "fail"


async def test_postgresql_from_end_to_end(ward: Ward, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Mutants: `_NEAR` does not look whether an index is valid; `_LACKING_VECTORS` and `_WORDS` always answer 0."""
    tools = Tools(ward, request, monkeypatch)
    await on_postgres(tools, "doctor")
    assert await ward.ill() == {}
    assert "fsync is off" in (await ward.examined())["store.persistence"].detail
    await _with_an_index(ward, monkeypatch)
    assert await ward.ill() == {}
    admin = psycopg.connect(tools.postgres.url("doctor", "postgres"), autocommit=True)
    admin.execute("set recollect.everyone = 'on'")
    with admin:
        admin.execute("update pg_index set indisvalid = false where indexrelid::regclass::text like '%near_%'")
        assert await ward.ill() == {"index.nearest": "warn"}
        monkeypatch.undo()
        monkeypatch.chdir(ward.directory)
        [facts] = admin.execute("select id from recollect.spaces where tier = 'semantic'").fetchone() or (None,)
        admin.execute("delete from recollect.postings where space = %s and term like 'lisbon%%'", (facts,))
        assert await ward.ill() == {"index.words": "fail"}
        admin.execute("delete from recollect.vectors where space = %s", (facts,))
        assert await ward.ill() == {"index.words": "fail", "index.vectors": "fail"}
        admin.execute("update recollect.spaces set items = items + 1 where id = %s", (facts,))
        assert set(await ward.ill()) == {"index.words", "index.vectors", "disk.integrity"}


async def _with_an_index(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every space counts as large, and questions build what they miss."""
    monkeypatch.setattr(health, "LARGE", 1)
    monkeypatch.setattr(index, "LARGE", 1)
    assert "index.nearest" in await ward.ill()
    memory = await AgentMemory.open(ward.place, user="ada", embedder=ward.embedder)
    store = memory._parts.stores.every[0]
    connection = await store._server.made()  # type: ignore[attr-defined]
    async with connection:
        await connection.execute("set recollect.everyone = 'on'")
        rows = await (await connection.execute("select tenant, id from recollect.spaces")).fetchall()
        async with store._server.reading(None) as work:  # type: ignore[attr-defined]
            known = await models.read(work)
        for tenant, number in rows:
            await index.build(connection, tenant, number, known)
    await memory.close()


async def test_a_server_that_is_not_there(ward: Ward):
    ward.place = {"default": str(ward.path), "checkpoints": "postgresql://nobody@127.0.0.1:1/none"}
    report = await ward.examined()
    assert report["store.opens"].status == "fail"
    assert "not looked at" in report["tasks.poisoned"].detail
    assert report["index.vectors"].detail.startswith("postgresql://")
    assert report["upkeep.lifecycle"].status == "pass"


async def test_a_place_that_does_not_open_is_named_once_and_nothing_is_made_there(ward: Ward):
    # Mutants: a directory that is not there is opened; the index is said to lack a model.
    chroma = ward.directory / "none"
    ward.place = {"default": str(ward.path), "semantic": f"chroma:{chroma}"}
    await ward.examined()
    assert not chroma.exists()
    ward.place = {"default": str(ward.path), "semantic": "redis://127.0.0.1:1"}
    report = await ward.examined()
    for point in ("index.turns", "index.vectors"):
        assert report[point].detail.count("redis://127.0.0.1:1") == 1
        assert "(Unsupported)" in report[point].detail
        assert "setup" not in report[point].fix


async def test_a_password_is_never_told(ward: Ward):
    ward.place = {"default": str(ward.path), "checkpoints": "postgresql://ada:hunter2@127.0.0.1:1/none"}
    assert "hunter2" not in str((await ward.examined()).as_json())
