"""Opening a Redis server: what is refused, in which words, and with which way out."""

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
from recollect.stores.connect import connect
from recollect.stores.redis import RedisStore, promise
from recollect.stores.redis.promise import check_version
from recollect.stores.redis.server import Patience
from recollect.testing import ManualClock
from recollect.testing.samples import LOG, TASKS, append, ids, put, save
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

HASTY = Patience(answer=0.5, altogether=0.5)


@pytest.fixture
def configured(server: RedisServer) -> Iterator[RedisServer]:
    """A server that the test may set as it likes."""
    yield server
    with server.client() as client:
        for name, value in (("appendonly", "yes"), ("appendfsync", "always"), ("maxmemory-policy", "noeviction")):
            client.config_set(name, value)


def configure(server: RedisServer, name: str, value: str) -> None:
    with server.client() as client:
        client.config_set(name, value)


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("appendonly", "no", "CONFIG SET appendonly yes"),
        ("appendfsync", "no", "CONFIG SET appendfsync always"),
        ("maxmemory-policy", "allkeys-lru", "CONFIG SET maxmemory-policy noeviction"),
        ("maxmemory-policy", "volatile-ttl", "CONFIG SET maxmemory-policy noeviction"),
    ],
)
async def test_a_server_that_loses_what_it_acknowledged_is_refused(
    configured: RedisServer, name: str, value: str, way_out: str
):
    configure(configured, name, value)
    with pytest.raises(Unsupported, match=way_out):
        await RedisStore.open(configured.url)


async def test_a_server_that_may_lose_a_second_is_told_of(configured: RedisServer, caplog: pytest.LogCaptureFixture):
    configure(configured, "appendfsync", "everysec")
    with caplog.at_level(logging.WARNING, "recollect.stores"):
        await (await RedisStore.open(configured.url)).close()
    assert "CONFIG SET appendfsync always" in caplog.text


async def test_a_wrong_password_is_told_at_once_and_not_shown(tmp_path: Path):
    server = RedisServer(tmp_path / "redis", "--aclfile", str(_users(tmp_path))).start()
    try:
        with pytest.raises(StoreUnavailable, match="ACL SETUSER"):
            await RedisStore.open(server.url)
        for login in ("ada:wr0ng@", "bob:wr0ng@"):
            with pytest.raises(StoreUnavailable, match="PASSWORD@HOST") as refused:
                await RedisStore.open(f"redis://{login}127.0.0.1:{server.port}/0")
            assert "wr0ng" not in str(refused.value)
        store = await RedisStore.open(f"redis://ada:secret@127.0.0.1:{server.port}/0")
        await store.write(append("a"))
        await store.close()
    finally:
        server.kill()


def _users(folder: Path) -> Path:
    """Somebody with the rights that the error message for missing ones names, and the tests with none but ping."""
    file = folder / "users.acl"
    file.write_text(
        "user default on nopass -@all +ping\n"
        "user root on >secret +@all\n"
        "user ada on >secret ~recollect:* +@read +@write +@scripting +info +time +config|get\n"
    )
    return file


async def test_rights_that_are_taken_away_are_told_and_nothing_is_half_done(tmp_path: Path):
    server = RedisServer(tmp_path / "redis", "--aclfile", str(_users(tmp_path))).start()
    admin = redis.Redis(port=server.port, username="root", password="secret")
    try:
        store = await RedisStore.open(f"redis://ada:secret@127.0.0.1:{server.port}/0")
        await store.write(append("a"), save("[1]"))
        for taken, given in (("-hset", "+hset"), ("-zadd", "+zadd"), ("-set", "+set"), ("-evalsha", "+evalsha")):
            admin.acl_setuser("ada", enabled=True, commands=[taken])
            with pytest.raises(StoreUnavailable, match="ACL SETUSER"):
                await store.write(append("b"), save("[2]"))
            admin.acl_setuser("ada", enabled=True, commands=[given])
            task = await store.task(TASKS, "t")
            assert task is not None
            assert (task.version, ids(await store.read(LOG))) == (1, ["a"]), taken
        await store.write(append("b"), save("[2]"))
        assert ids(await store.read(LOG)) == ["a", "b"]
        await store.close()
    finally:
        admin.close()
        server.kill()


async def test_a_database_that_does_not_exist_is_told_of(server: RedisServer):
    with pytest.raises(StoreUnavailable, match="no database of that number"):
        await RedisStore.open(server.url.replace("/0", "/99"))


async def test_a_cluster_that_is_not_there_or_is_none_is_told_of(server: RedisServer):
    with pytest.raises(StoreUnavailable, match="see that the server runs"):
        await RedisStore.open(f"redis+cluster://127.0.0.1:{free_port()}", patience=HASTY)
    with pytest.raises(StoreUnavailable, match="cluster"):
        await RedisStore.open(server.url.replace("redis://", "redis+cluster://"), patience=HASTY)


async def test_a_server_that_is_not_there_is_told_of():
    with pytest.raises(StoreUnavailable, match=r"cannot be reached.*see that the server runs"):
        await RedisStore.open(f"redis://127.0.0.1:{free_port()}/0", patience=HASTY)


async def test_a_server_that_is_too_old_is_refused(server: RedisServer, monkeypatch: pytest.MonkeyPatch):
    # Mutant: nobody asks for the version at open.
    with pytest.raises(Unsupported, match=r"5\.0\.14.*upgrade"):
        check_version("redis://somewhere", {"redis_version": "5.0.14"})
    monkeypatch.setattr(promise, "OLDEST", (99, 0))
    with pytest.raises(Unsupported, match=r"upgrade it to 99\.0 or newer"):
        await RedisStore.open(server.url)
    monkeypatch.undo()
    check_version("redis://somewhere", {"redis_version": "6.2.0"})
    check_version("redis://somewhere", {"redis_version": "8.10.1"})


async def test_tiers_that_redis_cannot_keep_are_refused_at_open(server: RedisServer):
    with pytest.raises(Unsupported, match="cannot keep semantic, procedural"):
        await connect(server.url, Settings(), ManualClock())
    place = {"default": "memory://", "conversation": server.url, "episodic": server.url, "checkpoints": server.url}
    stores = await connect(place, Settings(), ManualClock())
    assert len(stores.every) == 2
    with pytest.raises(Unsupported, match="no Put"):
        await stores.log("conversation").write(append("a"), put("b"))
    assert await stores.log("conversation").recent(LOG) == []
    await stores.close()
    with pytest.raises(StoreClosed):
        await stores.log("conversation").recent(LOG)


async def test_what_is_no_url_is_refused():
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
            await connect({"default": "memory://", "episodic": url}, Settings(), ManualClock())


def test_without_the_client_the_extra_is_named():
    code = (
        "import sys, asyncio; sys.modules['redis'] = None\n"
        "from recollect.stores.connect import connect\n"
        "from recollect.settings import Settings\n"
        "from recollect.clock import system_clock\n"
        "asyncio.run(connect({'default': 'memory://', 'episodic': 'redis://localhost'}, Settings(), system_clock))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "the extra `redis`, which is not installed: pip install redis" in ended.stderr
