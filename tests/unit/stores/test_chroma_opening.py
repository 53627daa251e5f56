"""Errors on opening a Chroma store, their messages and the fixes that they name."""

from __future__ import annotations

import http.server
import os
import shutil
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
import chromadb
import numpy as np
import pytest

from recollect.errors import BadSettings, StoreCorrupt, StoreUnavailable, Unsupported
from recollect.settings import Settings
from recollect.stores.chroma import ChromaStore, records
from recollect.stores.chroma.client import ChromaAddress, ChromaRecord
from recollect.stores.erasure import ErasureSelection
from recollect.stores.factory import open_stores
from recollect.stores.filters import Where, parse_where
from recollect.stores.writes import Embed, Model, Put
from recollect.testing import ManualClock
from recollect.testing.factories import (
    EVERYTHING,
    MODEL,
    SECOND,
    SPACE,
    START,
    find_nearest,
    list_ids,
    make_append,
    make_item,
    make_put,
    make_vector,
)
from recollect.testing.whole_store import make_erasure
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
def test_parse_directory_url_returns_its_path(url: str, directory: str):
    assert ChromaAddress.parse(url) == ChromaAddress(directory=Path(directory))


def test_parse_server_url_returns_all_its_options():
    assert ChromaAddress.parse("chroma+http://localhost") == ChromaAddress(host="localhost", port=8000)
    full = ChromaAddress.parse(
        "chroma+https://s%40cret@db.example:9000/?tenant=acme&database=memory&token_header=X-Chroma-Token"
    )
    assert (full.host, full.port, full.is_secure, full.tenant, full.database) == (
        "db.example",
        9000,
        True,
        "acme",
        "memory",
    )
    assert full.headers == {"X-Chroma-Token": "s@cret"}
    assert ChromaAddress.parse("chroma+http://t@h").headers == {"Authorization": "Bearer t"}
    assert "s@cret" not in str(full)


@pytest.mark.parametrize(
    "url",
    ["chroma:", "chroma://", "chroma://localhost:8000", "chroma+http://", "chroma+http://h:many", "chroma+ftp://h",
     "chroma+http://h/path", "chroma+http://t0ken@h?tenants=x"],
)  # fmt: skip
async def test_invalid_url_is_refused(url: str):
    with pytest.raises(BadSettings, match="chroma") as refused:
        await open_stores({"default": "memory://", "semantic": url}, Settings(), ManualClock())
    assert "t0ken" not in str(refused.value)


async def test_open_with_unsupported_tiers_raises(tmp_path: Path):
    url = f"chroma:{tmp_path / 'chroma'}"
    with pytest.raises(Unsupported, match="cannot keep conversation"):
        await open_stores(url, Settings(), ManualClock())
    stores = await open_stores({"default": "memory://", "semantic": url}, Settings(), ManualClock())
    with pytest.raises(Unsupported, match="Append"):
        await stores.records("semantic").write(make_put("a"), make_append("b"))
    assert await stores.records("semantic").find(EVERYTHING) == []
    await stores.close()


async def test_directory_is_locked_by_one_process(tmp_path: Path):
    url = f"chroma:{tmp_path / 'chroma'}"
    store = await ChromaStore.open(url)
    with pytest.raises(StoreUnavailable, match="chroma run --path"):
        await ChromaStore.open(url)
    await store.write(make_put("a"))
    await store.close()
    store = await ChromaStore.open(url)
    assert list_ids(await store.find(EVERYTHING)) == ["a"]
    await store.close()


async def test_store_of_an_older_format_is_refused(tmp_path: Path):
    # The collections of the older format: its batches, its records of a space and its erasures.
    directory = tmp_path / "chroma"
    client = chromadb.PersistentClient(directory)
    for name in ("recollect.chain", "recollect.items.00112233445566778899aabbccddeeff", "recollect.erasures"):
        client.create_collection(name, embedding_function=None)
    client.close()
    with pytest.raises(Unsupported, match=r"older format.*recollect export.*import them into a new directory"):
        await ChromaStore.open(f"chroma:{directory}")


async def test_damaged_vector_index_keeps_facts_and_is_rebuilt_by_reembedding(tmp_path: Path):
    directory = tmp_path / "chroma"
    store = await ChromaStore.open(f"chroma:{directory}")
    await store.write(*(make_put(f"i{n}", [1, n, 0, 0], "word") for n in range(1200)))
    await store.close()
    metadata = list(directory.glob("*/index_metadata.pickle"))
    assert metadata
    for file in metadata:
        os.truncate(file, 10)
    store = await ChromaStore.open(f"chroma:{directory}")
    with pytest.raises(StoreCorrupt, match=r"that have a header\.bin"):
        await store.get(SPACE, "i5")
    await store.close()
    for file in directory.glob("*/header.bin"):
        shutil.rmtree(file.parent)
    store = await ChromaStore.open(f"chroma:{directory}")
    assert len(await store.find(EVERYTHING, limit=5000)) == 1200
    [fault] = await store.check()
    assert "recollect reembed" in fault
    while items := await store.find_unembedded(MODEL, limit=500):
        vectors = [make_vector(1, int(item.id[1:]), 0, 0)[None] for item in items]
        pairs = zip(items, vectors, strict=True)
        await store.write(*(Embed(SPACE, item.id, rows, MODEL, item.version) for item, rows in pairs))
    await store.activate_model(MODEL)
    assert len(await find_nearest(store, EVERYTHING, make_vector(1, 5, 0, 0), limit=5000)) == 1200
    assert await store.check() == []
    await store.close()


async def test_open_of_an_unreachable_or_silent_server_raises(tmp_path: Path):
    with pytest.raises(StoreUnavailable, match="check that it runs"):
        await ChromaStore.open(f"chroma+http://127.0.0.1:{free_port()}")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"chroma+http://127.0.0.1:{silent.getsockname()[1]}"
        opening = ChromaStore.open(url, patience=0.2)
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await opening


async def test_write_to_a_stopped_server_times_out(server: ChromaServer):
    store = await ChromaStore.open(server.create("silent"), patience=3)
    server.send(signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await store.write(make_put("a"))
    finally:
        server.send(signal.SIGCONT)
    await store.write(make_put("b"))
    assert "b" in list_ids(await store.find(EVERYTHING))
    await store.close()


async def test_open_of_an_unknown_database_names_the_fix(server: ChromaServer):
    with pytest.raises(BadSettings, match=r"no database 'nowhere'.*AdminClient"):
        await ChromaStore.open(f"{server.url}?database=nowhere")


class _OldServerHandler(http.server.BaseHTTPRequestHandler):
    """HTTP handler of a server before 1.0, which does not know the v2 API."""

    def do_GET(self) -> None:
        self.send_response(404 if self.path.startswith("/api/v2/") else 200)
        self.end_headers()
        self.wfile.write(b'{"detail":"Not Found"}')

    def log_message(self, *given: object) -> None:
        """Log nothing."""


async def test_open_of_a_too_old_server_names_the_upgrade():
    # Mutant: only a 404 with a Chroma error in its body is recognized.
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _OldServerHandler) as old:
        threading.Thread(target=old.serve_forever, daemon=True).start()
        with pytest.raises(StoreUnavailable, match=r"upgrade the server: pip install --upgrade chromadb"):
            await ChromaStore.open(f"chroma+http://127.0.0.1:{old.server_address[1]}")
        old.shutdown()


class _TokenProxyHandler(http.server.BaseHTTPRequestHandler):
    """HTTP handler of a proxy that forwards requests with the right token to Chroma."""

    port = 0

    def do_GET(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != "Bearer secret":
            self._answer(401, b"no")
            return
        forwarded = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{self.path}",
            body or None,
            {"Content-Type": "application/json"},
            method=self.command,
        )
        try:
            with urllib.request.urlopen(forwarded, timeout=60) as found:
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
        """Log nothing."""


async def test_wrong_token_raises_without_showing_it(server: ChromaServer):
    _TokenProxyHandler.port = server.port
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _TokenProxyHandler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{proxy.server_address[1]}"
        for token in ("", "wr0ng@"):
            with pytest.raises(StoreUnavailable, match="TOKEN@HOST") as refused:
                await ChromaStore.open(f"chroma+http://{token}{address}")
            assert "wr0ng" not in str(refused.value)
        store = await ChromaStore.open(f"chroma+http://secret@{address}")
        await store.write(make_put("a"))
        assert list_ids(await store.find(EVERYTHING)) == ["a"]
        await store.close()
        proxy.shutdown()


@pytest.mark.parametrize(
    "damage",
    ["update migrations set version = 99 where dir = 'metadb' and version = 5", "drop table collections"],
)
async def test_directory_of_another_chroma_version_is_refused(tmp_path: Path, damage: str):
    directory = tmp_path / "chroma"
    await (await ChromaStore.open(f"chroma:{directory}")).close()
    connection = apsw.Connection(str(directory / "chroma.sqlite3"))
    connection.execute(damage)
    connection.close()
    with pytest.raises(StoreCorrupt, match="install that version of chromadb"):
        await ChromaStore.open(f"chroma:{directory}")


async def test_open_of_a_file_as_a_directory_raises(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable, match="use a writable one"):
        await ChromaStore.open(f"chroma:{tmp_path / 'file'}")


async def test_check_reports_a_record_deleted_by_another_program(tmp_path: Path):
    store = await ChromaStore.open(f"chroma:{tmp_path / 'chroma'}")
    await store.write(make_put("a", [1, 0, 0, 0]), make_put("b", [0, 1, 0, 0]))
    [name] = store._client.list_collections("recollect.vectors.")
    store._client.delete(name, store._client.find_ids(name)[:1])
    [fault] = await store.check()
    assert "1 items have lost a vector" in fault
    with pytest.raises(StoreCorrupt, match="recollect reembed"):
        await store.get_full(SPACE, "a", "b")
    assert len(await find_nearest(store, EVERYTHING, make_vector(1, 0, 0, 0))) == 1
    assert len(await store.find(EVERYTHING)) == 2
    await store.close()


async def test_large_batch_is_written(tmp_path: Path):
    store = await ChromaStore.open(f"chroma:{tmp_path / 'chroma'}")
    await store.write(*(make_put(f"i{n}", content="x" * 1_000_000) for n in range(6)))
    assert [len(item.content) for item in await store.find(EVERYTHING)] == [1_000_000] * 6
    await store.close()


async def test_large_space_is_searched_by_the_index(tmp_path: Path):
    """The index finds passages: the items with the nearest are returned, also if most items do not match."""
    rows = np.random.default_rng(3).normal(size=(500, 32)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    model = Model("wide", 32, "f")
    store = await ChromaStore.open(f"chroma:{tmp_path / 'chroma'}")
    await store.write(
        *(
            Put(
                item=make_item(f"i{n:03}", valid_to=None if n % 10 == 0 else START + SECOND),
                vectors=rows[[n, (n + 1) % 500]],
                model=model,
            )
            for n in range(500)
        )
    )
    found = total = 0
    for query in rows[::25] + np.float32(0.01):
        cosines = rows @ query
        best = np.argsort(-np.maximum(cosines, np.roll(cosines, -1)), kind="stable")
        for moment, expected in ((START, best), (START + 2 * SECOND, [n for n in best if n % 10 == 0])):
            nearest = await find_nearest(store, Where(SPACE, live_at=moment), query, limit=5)
            found += len({f"i{n:03}" for n in expected[:5]}.intersection(list_ids(nearest)))
            total += 5
    assert found > 0.9 * total
    await store.close()


async def test_filter_on_texts_is_passed_to_chroma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = await ChromaStore.open(f"chroma:{tmp_path / 'chroma'}")
    await store.write(
        *(make_put(f"i{n}", metadata={"project": f"p{n % 3}", "n": n}, source="web") for n in range(30)),
        make_put("keyed", key="k"),
    )
    seen: list[str] = []
    decode = records.decode_item

    def count(record: ChromaRecord) -> records.ChromaItem:
        seen.append(record.id)
        return decode(record)

    monkeypatch.setattr(records, "decode_item", count)
    where = Where(SPACE, conditions=parse_where({"project": "p1", "source": ["web", "none"], "n": {"gt": 20}}))
    assert sorted(list_ids(await store.find(where))) == ["i22", "i25", "i28"]
    assert len(seen) == 10
    assert list_ids(await store.find(Where(SPACE, key="k"))) == ["keyed"]
    assert len(seen) == 11
    await store.close()


async def test_erasure_names_what_chroma_keeps(tmp_path: Path, server: ChromaServer):
    for url, place in (
        (f"chroma:{tmp_path / 'chroma'}", str(tmp_path / "chroma")),
        (server.create("kept"), "server at"),
    ):
        store = await ChromaStore.open(url)
        await store.write(make_put("a", [1, 0, 0, 0], "word"))
        await store.add_erasure(make_erasure())
        [row] = await store.ledger()
        assert (await store.scan(row.evidence, row.key)).is_clean  # nothing was deleted yet
        await store.wipe("e1", ErasureSelection((SPACE,)))
        assert await store.purge_copies()
        [row] = await store.ledger()
        scan = await store.scan(row.evidence, row.key)
        assert not scan.is_clean
        assert all(word in scan.waits[0] for word in (place, "write-ahead log", "index folders", "recollect migrate"))
        await store.close()


def test_open_without_the_client_names_the_extra():
    code = (
        "import sys, asyncio; sys.modules['chromadb'] = None\n"
        "import recollect\n"
        "from recollect.stores.factory import open_stores\n"
        "from recollect.settings import Settings\n"
        "from recollect.clock import system_clock\n"
        "asyncio.run(open_stores({'default': 'memory://', 'semantic': 'chroma:./x'}, Settings(), system_clock))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "pip install 'recollect-memory[chroma]'" in process.stderr


def test_opening_a_directory_makes_no_network_calls(tmp_path: Path):
    trace = tmp_path / "trace"
    code = (
        "import asyncio, sys\n"
        "from recollect.stores.chroma import ChromaStore\n"
        "from recollect.testing.factories import make_put\n"
        "async def main():\n"
        "    store = await ChromaStore.open('chroma:' + sys.argv[1])\n"
        "    await store.write(make_put('a', [1, 0, 0, 0]))\n"
        "    await store.close()\n"
        "asyncio.run(main())"
    )
    watched = ["strace", "-f", "-qq", "-e", "trace=connect,sendto", "-o", str(trace)]
    process = subprocess.run(
        [*watched, sys.executable, "-c", code, str(tmp_path / "chroma")], capture_output=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    assert "AF_INET" not in trace.read_text()
