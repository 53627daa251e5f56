"""The same 35 checks on encrypted files, servers and mixed stores: each reports a result or why it does not apply."""

from __future__ import annotations

import psycopg
import pytest

from recollect import AgentMemory, Settings
from recollect.health.context import CheckContext, StoreTarget
from recollect.health.examine import run_checks
from recollect.stores.postgres import records, search, store
from recollect.stores.sqlite import SqliteStore
from recollect.stores.sqlite.connection import EncryptionKey
from tests.health.examined_memory import ExaminedMemory, fill_memory
from tests.health.failures import Tools, fill_postgres
from tests.servers.redis import RedisServer


async def test_an_encrypted_file_passes(examined: ExaminedMemory):
    examined.path = examined.directory / "sealed.db"
    store = SqliteStore.open(examined.path, key=EncryptionKey("5eed" * 16))
    place = StoreTarget(
        url=str(examined.path), tiers=("semantic", "procedural", "conversation", "episodic", "checkpoints"), store=store
    )
    context = CheckContext(settings=Settings(), clock=examined.clock, targets=(place,))
    report = await run_checks(context)
    await store.close()
    assert report["access.encryption"].status == "pass"
    # No embedding model is given.
    assert [finding.id for finding in report.findings if finding.status == "fail"] == ["index.model"]


async def test_memory_over_three_backends_passes(examined: ExaminedMemory, configured_redis: RedisServer):
    examined.place = {
        "default": str(examined.path),
        "semantic": f"chroma:{examined.directory / 'chroma'}",
        "episodic": configured_redis.url,
        "checkpoints": configured_redis.url,
    }
    memory = await examined.open_memory()
    await fill_memory(memory)
    examined.tolerated |= {
        "access.files",
        "upkeep.backup",
    }  # Chroma's files are world-readable, and the file has changed
    assert await examined.find_problems() == {}
    report = await examined.examine()
    assert len(report.findings) == 35
    assert f"{configured_redis.url}: episodic, checkpoints: survive power loss" in report["store.durability"].detail
    assert "Chroma 1." in report["store.versions"].detail


async def test_inapplicable_checks_say_why(examined: ExaminedMemory):

    examined.place = "memory://"
    report = await examined.examine()
    silent = {
        finding.id
        for finding in report.findings
        if finding.status == "pass" and finding.detail.startswith("not applicable: ")
    }
    assert silent >= {"store.schema", "access.files", "access.auth", "index.nearest", "disk.log", "capacity.server"}
    assert all(finding.detail.strip() and finding.why.endswith(".") for finding in report.findings)
    assert all(finding.fix for finding in report.findings if finding.status != "pass")
    assert report["store.durability"].status == "fail"


async def test_postgres_failures_are_reported_by_their_checks(
    examined: ExaminedMemory, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    """Mutants: invalid HNSW indexes are not looked for; missing vectors and wrong terms are always counted as 0."""
    tools = Tools(examined, request, monkeypatch)
    await fill_postgres(tools, "doctor")
    assert await examined.find_problems() == {}
    assert "fsync is off" in (await examined.examine())["store.persistence"].detail
    await _build_indexes(examined, monkeypatch)
    assert await examined.find_problems() == {}
    admin = psycopg.connect(tools.postgres.url("doctor", "postgres"), autocommit=True)
    admin.execute("set recollect.everyone = 'on'")
    with admin:
        admin.execute("update pg_index set indisvalid = false where indexrelid::regclass::text like '%near_%'")
        assert await examined.find_problems() == {"index.nearest": "warn"}
        monkeypatch.undo()
        monkeypatch.chdir(examined.directory)
        [facts] = admin.execute("select id from recollect.spaces where tier = 'semantic'").fetchone() or (None,)
        admin.execute("delete from recollect.postings where space = %s and term like 'lisbon%%'", (facts,))
        assert await examined.find_problems() == {"index.words": "fail"}
        admin.execute("delete from recollect.vectors where space = %s", (facts,))
        assert await examined.find_problems() == {"index.words": "fail", "index.vectors": "fail"}
        admin.execute("update recollect.spaces set items = items + 1 where id = %s", (facts,))
        assert set(await examined.find_problems()) == {"index.words", "index.vectors", "disk.integrity"}


async def _build_indexes(examined: ExaminedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every space as large, and build its HNSW index."""
    monkeypatch.setattr(store, "HNSW_MIN_ITEMS", 1)
    monkeypatch.setattr(search, "HNSW_MIN_ITEMS", 1)
    assert "index.nearest" in await examined.find_problems()
    memory = await AgentMemory.open(examined.place, user="ada", embedder=examined.embedder)
    opened = memory._engine.stores.all_stores[0]
    connection = await opened._server.connect()  # type: ignore[attr-defined]
    async with connection:
        await connection.execute("set recollect.everyone = 'on'")
        rows = await (await connection.execute("select tenant, id from recollect.spaces")).fetchall()
        async with opened._server.begin_read(None) as work:  # type: ignore[attr-defined]
            known = await records.load_models(work)
        for tenant, number in rows:
            await search.build_hnsw_index(connection, tenant, number, known)
    await memory.close()


async def test_unreachable_server_fails_store_opens(examined: ExaminedMemory):
    examined.place = {"default": str(examined.path), "checkpoints": "postgresql://nobody@127.0.0.1:1/none"}
    report = await examined.examine()
    assert report["store.opens"].status == "fail"
    assert "not checked" in report["tasks.poisoned"].detail
    assert report["index.vectors"].detail.startswith("postgresql://")
    assert report["upkeep.lifecycle"].status == "pass"


async def test_unopenable_store_is_named_once_and_not_created(examined: ExaminedMemory):
    # Mutants: a missing directory is opened; the index check reports a missing model.
    chroma = examined.directory / "none"
    examined.place = {"default": str(examined.path), "semantic": f"chroma:{chroma}"}
    await examined.examine()
    assert not chroma.exists()
    examined.place = {"default": str(examined.path), "semantic": "redis://127.0.0.1:1"}
    report = await examined.examine()
    for point in ("index.turns", "index.vectors"):
        assert report[point].detail.count("redis://127.0.0.1:1") == 1
        assert "(Unsupported)" in report[point].detail
        assert "setup" not in report[point].fix


async def test_password_is_not_in_the_report(examined: ExaminedMemory):
    examined.place = {"default": str(examined.path), "checkpoints": "postgresql://ada:hunter2@127.0.0.1:1/none"}
    assert "hunter2" not in str((await examined.examine()).as_json())
