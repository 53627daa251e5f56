"""Errors on opening a Redis store, their messages and the fixes that they name."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from recollect.errors import BadSettings, StoreClosed, StoreUnavailable, Unsupported
from recollect.settings import Settings
from recollect.stores.factory import open_stores
from recollect.stores.redis import RedisStore, store
from recollect.stores.redis.client import RedisTimeouts
from recollect.stores.redis.store import check_version
from recollect.testing import ManualClock
from recollect.testing.factories import LOG, TASKS, list_ids, make_append, make_put, make_save
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

SHORT_TIMEOUTS = RedisTimeouts(response=0.5, total=0.5)


@pytest.fixture
def configured(server: RedisServer) -> Iterator[RedisServer]:
    """Yield the server, and restore its settings afterwards."""
    yield server
    with server.client() as client:
        for name, value in (("appendonly", "yes"), ("appendfsync", "always"), ("maxmemory-policy", "noeviction")):
            client.config_set(name, value)


def configure(server: RedisServer, name: str, value: str) -> None:
    with server.client() as client:
        client.config_set(name, value)


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("appendonly", "no", "CONFIG SET appendonly yes"),
        ("appendfsync", "no", "CONFIG SET appendfsync always"),
        ("maxmemory-policy", "allkeys-lru", "CONFIG SET maxmemory-policy noeviction"),
        ("maxmemory-policy", "volatile-ttl", "CONFIG SET maxmemory-policy noeviction"),
    ],
)
async def test_server_that_loses_acknowledged_writes_is_refused(
    configured: RedisServer, name: str, value: str, fix: str
):
    configure(configured, name, value)
    with pytest.raises(Unsupported, match=fix):
        await RedisStore.open(configured.url)


async def test_server_that_may_lose_a_second_logs_a_warning(configured: RedisServer, caplog: pytest.LogCaptureFixture):
    configure(configured, "appendfsync", "everysec")
    with caplog.at_level(logging.WARNING, "recollect.stores"):
        await (await RedisStore.open(configured.url)).close()
    assert "CONFIG SET appendfsync always" in caplog.text


async def test_wrong_password_raises_without_showing_it(tmp_path: Path):
    server = RedisServer(tmp_path / "redis", "--aclfile", str(_write_acl_file(tmp_path))).start()
    try:
        with pytest.raises(StoreUnavailable, match="ACL SETUSER"):
            await RedisStore.open(server.url)
        for login in ("ada:wr0ng@", "bob:wr0ng@"):
            with pytest.raises(StoreUnavailable, match="PASSWORD@HOST") as refused:
                await RedisStore.open(f"redis://{login}127.0.0.1:{server.port}/0")
            assert "wr0ng" not in str(refused.value)
        store = await RedisStore.open(f"redis://ada:secret@127.0.0.1:{server.port}/0")
        await store.write(make_append("a"))
        await store.close()
    finally:
        server.kill()


def _write_acl_file(folder: Path) -> Path:
    """Write an ACL file: `ada` has the permissions that the error message names, the default user only PING."""
    file = folder / "users.acl"
    file.write_text(
        "user default on nopass -@all +ping\n"
        "user root on >secret +@all\n"
        "user ada on >secret ~recollect:* +@read +@write +@scripting +info +time +config|get\n"
    )
    return file


async def test_revoked_permission_raises_and_writes_nothing(tmp_path: Path):
    server = RedisServer(tmp_path / "redis", "--aclfile", str(_write_acl_file(tmp_path))).start()
    admin = redis.Redis(port=server.port, username="root", password="secret")
    try:
        store = await RedisStore.open(f"redis://ada:secret@127.0.0.1:{server.port}/0")
        await store.write(make_append("a"), make_save("[1]"))
        for taken, given in (("-hset", "+hset"), ("-zadd", "+zadd"), ("-set", "+set"), ("-evalsha", "+evalsha")):
            admin.acl_setuser("ada", enabled=True, commands=[taken])
            with pytest.raises(StoreUnavailable, match="ACL SETUSER"):
                await store.write(make_append("b"), make_save("[2]"))
            admin.acl_setuser("ada", enabled=True, commands=[given])
            task = await store.task(TASKS, "t")
            assert task is not None
            assert (task.version, list_ids(await store.read(LOG))) == (1, ["a"]), taken
        await store.write(make_append("b"), make_save("[2]"))
        assert list_ids(await store.read(LOG)) == ["a", "b"]
        await store.close()
    finally:
        admin.close()
        server.kill()


async def test_unknown_database_number_raises(server: RedisServer):
    with pytest.raises(StoreUnavailable, match="no database of that number"):
        await RedisStore.open(server.url.replace("/0", "/99"))


async def test_unreachable_cluster_or_single_server_raises(server: RedisServer):
    with pytest.raises(StoreUnavailable, match="check that the server runs"):
        await RedisStore.open(f"redis+cluster://127.0.0.1:{free_port()}", patience=SHORT_TIMEOUTS)
    with pytest.raises(StoreUnavailable, match="cluster"):
        await RedisStore.open(server.url.replace("redis://", "redis+cluster://"), patience=SHORT_TIMEOUTS)


async def test_unreachable_server_raises():
    with pytest.raises(StoreUnavailable, match=r"cannot be reached.*check that the server runs"):
        await RedisStore.open(f"redis://127.0.0.1:{free_port()}/0", patience=SHORT_TIMEOUTS)


async def test_old_server_is_refused(server: RedisServer, monkeypatch: pytest.MonkeyPatch):
    # Mutant: the version is not checked at open.
    with pytest.raises(Unsupported, match=r"5\.0\.14.*upgrade"):
        check_version("redis://somewhere", {"redis_version": "5.0.14"})
    monkeypatch.setattr(store, "MIN_VERSION", (99, 0))
    with pytest.raises(Unsupported, match=r"upgrade it to 99\.0 or newer"):
        await RedisStore.open(server.url)
    monkeypatch.undo()
    check_version("redis://somewhere", {"redis_version": "6.2.0"})
    check_version("redis://somewhere", {"redis_version": "8.10.1"})


async def test_open_with_unsupported_tiers_raises(server: RedisServer):
    with pytest.raises(Unsupported, match="cannot keep semantic, procedural"):
        await open_stores(server.url, Settings(), ManualClock())
    locations = {"default": "memory://", "conversation": server.url, "episodic": server.url, "checkpoints": server.url}
    stores = await open_stores(locations, Settings(), ManualClock())
    assert len(stores.all_stores) == 2
    with pytest.raises(Unsupported, match="not Put"):
        await stores.log("conversation").write(make_append("a"), make_put("b"))
    assert await stores.log("conversation").recent(LOG) == []
    await stores.close()
    with pytest.raises(StoreClosed):
        await stores.log("conversation").recent(LOG)


async def test_invalid_url_is_refused():
    wrong = (
        "redis://localhost:many/0",
        "redis://localhost/many",
        "redis+cluster://localhost/1",
        "rediss+clusters://localhost",
        "redis://localhost?purge_after_days=0",
        "redis://localhost?no_such_option=1",
        "redis+cluster://localhost?no_such_option=1",
        "rediss://localhost?ssl_cert_reqs=perhaps",
    )
    for url in wrong:
        with pytest.raises(BadSettings):
            await open_stores({"default": "memory://", "episodic": url}, Settings(), ManualClock())


def test_open_without_the_client_names_the_extra():
    code = (
        "import sys, asyncio; sys.modules['redis'] = None\n"
        "from recollect.stores.factory import open_stores\n"
        "from recollect.settings import Settings\n"
        "from recollect.clock import system_clock\n"
        "asyncio.run(open_stores({'default': 'memory://', 'episodic': 'redis://localhost'}, Settings(), system_clock))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "the extra `redis`, which is not installed: pip install 'recollect-memory[redis]'" in ended.stderr
