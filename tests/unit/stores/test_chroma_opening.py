"""Opening a Chroma: what is refused, in which words, and with which way out."""

from __future__ import annotations

import asyncio
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from recollect.errors import BadSettings, StoreCorrupt, StoreUnavailable, Unsupported
from recollect.settings import Settings
from recollect.stores.chroma import ChromaStore
from recollect.stores.chroma.address import Address
from recollect.stores.connect import connect
from recollect.testing import ManualClock
from recollect.testing.samples import EVERYTHING, append, ids, put, vector
from tests.servers.chroma import ChromaServer
from tests.servers.ports import free_port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChromaServer]:
    started = ChromaServer(tmp_path_factory.mktemp("chroma") / "data").start()
    yield started
    started.kill()


@pytest.mark.parametrize(
    ("url", "directory"),
    [
        ("chroma:./dir", "dir"),
        ("chroma:dir", "dir"),
        ("chroma:/srv/dir", "/srv/dir"),
        ("chroma://./dir", "dir"),
        ("chroma:///srv/dir", "/srv/dir"),
    ],
)
def test_a_directory_is_named_by_a_path(url: str, directory: str):
    assert Address.parse(url) == Address(directory=Path(directory))


def test_a_server_is_named_with_all_that_it_wants_to_know():
    assert Address.parse("chroma+http://localhost") == Address(host="localhost", port=8000)
    full = Address.parse(
        "chroma+https://s%40cret@db.example:9000/?tenant=acme&database=memory&token_header=X-Chroma-Token"
    )
    assert (full.host, full.port, full.secure, full.tenant, full.database) == (
        "db.example",
        9000,
        True,
        "acme",
        "memory",
    )
    assert full.headers == {"X-Chroma-Token": "s@cret"}
    assert Address.parse("chroma+http://t@h").headers == {"Authorization": "Bearer t"}
    assert "s@cret" not in str(full)


@pytest.mark.parametrize(
    "url",
    ["chroma:", "chroma://", "chroma://localhost:8000", "chroma+http://", "chroma+http://h:many", "chroma+ftp://h",
     "chroma+http://h/path", "chroma+http://t0ken@h?tenants=x"],
)  # fmt: skip
async def test_what_is_no_url_is_refused(url: str):
    with pytest.raises(BadSettings, match="chroma") as refused:
        await connect({"default": "memory://", "semantic": url}, Settings(), ManualClock())
    assert "t0ken" not in str(refused.value)


async def test_tiers_that_chroma_cannot_keep_are_refused_at_open(tmp_path: Path):
    url = f"chroma:{tmp_path / 'chroma'}"
    with pytest.raises(Unsupported, match="cannot keep conversation"):
        await connect(url, Settings(), ManualClock())
    stores = await connect({"default": "memory://", "semantic": url}, Settings(), ManualClock())
    with pytest.raises(Unsupported, match="Append"):
        await stores.records("semantic").write(put("a"), append("b"))
    assert await stores.records("semantic").find(EVERYTHING) == []
    await stores.close()


async def test_a_directory_is_for_one_at_a_time(tmp_path: Path):
    url = f"chroma:{tmp_path / 'chroma'}"
    store = await ChromaStore.open(url)
    with pytest.raises(StoreUnavailable, match="chroma run --path"):
        await ChromaStore.open(url)
    await store.write(put("a"))
    await store.close()
    store = await ChromaStore.open(url)
    assert ids(await store.find(EVERYTHING)) == ["a"]
    await store.close()


@pytest.mark.parametrize("torn", ["index_metadata.pickle", "header.bin"])
async def test_index_files_that_were_torn_by_a_kill_cost_nothing(tmp_path: Path, torn: str):
    directory = tmp_path / "chroma"
    code = (
        "import asyncio, os, sys\n"
        "from recollect.stores.chroma import ChromaStore\n"
        "from recollect.testing.samples import put\n"
        "async def main():\n"
        "    store = await ChromaStore.open('chroma:' + sys.argv[1], settle_after=1)\n"
        "    await store.write(*(put(f'i{n}', [1, n, 0, 0], 'word') for n in range(1200)))\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())"
    )
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(directory))
    assert await ended.wait() == -signal.SIGKILL
    found = list(directory.glob(f"*/{torn}"))
    assert found
    for file in found:
        os.truncate(file, 10)
    store = await ChromaStore.open(f"chroma:{directory}")
    assert len(await store.find(EVERYTHING, limit=5000)) == 1200
    assert len(await store.nearest(EVERYTHING, vector(1, 5, 0, 0), limit=5000)) == 1200
    await store.write(put("later", [1, 0, 0, 0]))
    assert await store.check() == []
    await store.close()


async def test_a_server_that_is_not_there_or_does_not_answer_is_told_of(tmp_path: Path):
    with pytest.raises(StoreUnavailable, match="is it running"):
        await ChromaStore.open(f"chroma+http://127.0.0.1:{free_port()}")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"chroma+http://127.0.0.1:{silent.getsockname()[1]}"
        opening = ChromaStore.open(url, patience=0.2)
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await opening


async def test_a_server_that_falls_silent_is_not_waited_for_for_ever(server: ChromaServer):
    store = await ChromaStore.open(server.create("silent"), patience=3)
    server.send(signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await store.write(put("a"))
    finally:
        server.send(signal.SIGCONT)
    await store.write(put("b"))
    assert "b" in ids(await store.find(EVERYTHING))
    await store.close()


async def test_a_database_that_does_not_exist_is_told_of(server: ChromaServer):
    with pytest.raises(BadSettings, match=r"no database 'nowhere'.*AdminClient"):
        await ChromaStore.open(f"{server.url}?database=nowhere")


class _BeforeVersionOne(http.server.BaseHTTPRequestHandler):
    """Answers as a server of the years before: of what we ask it knows nothing."""

    def do_GET(self) -> None:
        self.send_response(404 if self.path.startswith("/api/v2/") else 200)
        self.end_headers()
        self.wfile.write(b'{"detail":"Not Found"}')

    def log_message(self, *given: object) -> None:
        """Nothing: a test's output is its own."""


async def test_a_server_that_is_too_old_is_told_of():
    # Mutant: only a 404 with an error of Chroma's in it is looked at.
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _BeforeVersionOne) as old:
        threading.Thread(target=old.serve_forever, daemon=True).start()
        with pytest.raises(StoreUnavailable, match=r"older server has to be upgraded: pip install --upgrade chromadb"):
            await ChromaStore.open(f"chroma+http://127.0.0.1:{old.server_address[1]}")
        old.shutdown()


class _Doorman(http.server.BaseHTTPRequestHandler):
    """Lets those through to a Chroma who bring the token, as a proxy before one does."""

    port = 0

    def do_GET(self) -> None:
        self._pass()

    def do_POST(self) -> None:
        self._pass()

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != "Bearer secret":
            self._answer(401, b"no")
            return
        wish = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{self.path}",
            body or None,
            {"Content-Type": "application/json"},
            method=self.command,
        )
        try:
            with urllib.request.urlopen(wish, timeout=60) as found:
                self._answer(found.status, found.read())
        except urllib.error.HTTPError as error:
            self._answer(error.code, error.read())
            error.close()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: object) -> None:
        """Nothing: a test's output is its own."""


async def test_a_wrong_token_is_told_at_once_and_not_shown(server: ChromaServer):
    _Doorman.port = server.port
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Doorman) as door:
        threading.Thread(target=door.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{door.server_address[1]}"
        for token in ("", "wr0ng@"):
            with pytest.raises(StoreUnavailable, match="TOKEN@HOST") as refused:
                await ChromaStore.open(f"chroma+http://{token}{place}")
            assert "wr0ng" not in str(refused.value)
        store = await ChromaStore.open(f"chroma+http://secret@{place}")
        await store.write(put("a"))
        assert ids(await store.find(EVERYTHING)) == ["a"]
        await store.close()
        door.shutdown()


@pytest.mark.parametrize(
    "damage",
    ["update migrations set version = 99 where dir = 'metadb' and version = 5", "drop table collections"],
)
async def test_a_directory_of_another_chroma_is_refused(tmp_path: Path, damage: str):
    directory = tmp_path / "chroma"
    await (await ChromaStore.open(f"chroma:{directory}")).close()
    connection = apsw.Connection(str(directory / "chroma.sqlite3"))
    connection.execute(damage)
    connection.close()
    with pytest.raises(StoreCorrupt, match="install the chromadb that made it"):
        await ChromaStore.open(f"chroma:{directory}")


async def test_a_file_is_no_directory(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable, match="may be written to"):
        await ChromaStore.open(f"chroma:{tmp_path / 'file'}")


async def test_a_record_that_somebody_deleted_is_told_of(tmp_path: Path):
    store = await ChromaStore.open(f"chroma:{tmp_path / 'chroma'}", settle_after=1)
    await store.write(put("a", [1, 0, 0, 0]), put("b", [0, 1, 0, 0]))
    [name] = store._engine.collections.names("recollect.vectors.")
    store._engine.collections.delete(name, store._engine.collections.ids(name)[:1])
    [fault] = await store.check()
    assert "lost a vector" in fault
    with pytest.raises(StoreCorrupt, match="recollect reembed"):
        await store.nearest(EVERYTHING, vector(1, 0, 0, 0))
    await store.close()


async def test_a_large_batch_goes_through_in_pieces(tmp_path: Path):
    url = f"chroma:{tmp_path / 'chroma'}"
    store = await ChromaStore.open(url, settle_after=9)
    await store.write(*(put(f"i{n}", content="x" * 1_000_000) for n in range(6)))
    assert store._engine._pending
    os.close(store._guard._file)  # type: ignore[union-attr]
    again = await ChromaStore.open(url)
    assert [len(one.content) for one in await again.find(EVERYTHING)] == [1_000_000] * 6
    await again.close()
    store._worker.shutdown()


def test_without_the_client_the_extra_is_named():
    code = (
        "import sys, asyncio; sys.modules['chromadb'] = None\n"
        "import recollect\n"
        "from recollect.stores.connect import connect\n"
        "from recollect.settings import Settings\n"
        "from recollect.clock import system_clock\n"
        "asyncio.run(connect({'default': 'memory://', 'semantic': 'chroma:./x'}, Settings(), system_clock))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "pip install chromadb httpx" in ended.stderr


def test_opening_a_directory_speaks_to_nobody(tmp_path: Path):
    trace = tmp_path / "trace"
    code = (
        "import asyncio, sys\n"
        "from recollect.stores.chroma import ChromaStore\n"
        "from recollect.testing.samples import put\n"
        "async def main():\n"
        "    store = await ChromaStore.open('chroma:' + sys.argv[1])\n"
        "    await store.write(put('a', [1, 0, 0, 0]))\n"
        "    await store.close()\n"
        "asyncio.run(main())"
    )
    watched = ["strace", "-f", "-qq", "-e", "trace=connect,sendto", "-o", str(trace)]
    ended = subprocess.run(
        [*watched, sys.executable, "-c", code, str(tmp_path / "chroma")], capture_output=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert "AF_INET" not in trace.read_text()
