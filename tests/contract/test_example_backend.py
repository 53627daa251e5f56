"""The example backend of docs/howto/backend.md passes the shipped contract, and the page lists the whole contract."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import fields
from pathlib import Path

import pytest

from examples.json_store import JsonStore
from recollect.errors import Conflict, StoreCorrupt, StoreFull, StoreUnavailable
from recollect.stores.base import Capabilities, Log, Records, Store, Tasks, get_capabilities
from recollect.stores.erasure import ErasureStore
from recollect.stores.writes import Put
from recollect.testing import DurableContract, HealthContract, RecordsContract
from recollect.testing.factories import SPACE, make_put

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[JsonStore]:
    opened = JsonStore(tmp_path / "facts.json")
    yield opened
    await opened.close()


@pytest.fixture
async def reopen(store: JsonStore) -> AsyncIterator[Callable[[], Awaitable[JsonStore]]]:
    opened = [store]

    async def close_and_open() -> JsonStore:
        await opened[-1].close()
        opened.append(JsonStore(store.path))
        return opened[-1]

    yield close_and_open
    await opened[-1].close()


class TestJsonRecords(RecordsContract):
    pass


class TestJsonHealth(HealthContract):
    pass


class TestJsonReopen:
    """The durable contract of a backend with records only."""

    test_reopen_keeps_items = DurableContract.test_reopen_keeps_items
    test_reopen_keeps_the_model_in_preparation = DurableContract.test_reopen_keeps_the_model_in_preparation


async def test_write_is_complete_in_the_file_before_it_returns(store: JsonStore):
    # Mutant: the file is not written.
    await store.write(make_put("a", [1, 0, 0, 0], "word"))
    other = JsonStore(store.path)
    assert [item.id for item in await other.get(SPACE, "a")] == ["a"]
    await other.close()
    assert [path.name for path in store.path.parent.iterdir()] == ["facts.json"]
    assert store.path.stat().st_mode & 0o777 == 0o600


async def test_damaged_file_raises_store_corrupt_and_quotes_no_content(store: JsonStore):
    await store.write(make_put("a", [1, 0, 0, 0], content="secret"))
    whole = store.path.read_text("utf-8")
    for damaged in (whole[:-9], whole.replace('"importance": 0.5', '"importance": "secret"'), "[]", ""):
        store.path.write_text(damaged, "utf-8")
        with pytest.raises(StoreCorrupt, match=r"facts\.json is corrupt") as caught:
            await store.get(SPACE, "a")
        assert "secret" not in str(caught.value)
        assert len(await store.check()) == 1


async def test_missing_directory_raises_store_unavailable(tmp_path: Path):
    store = JsonStore(tmp_path / "missing" / "facts.json")
    with pytest.raises(StoreUnavailable, match="No such file"):
        await store.write(make_put("a"))
    await store.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full, which fails as a full disk does")
async def test_full_disk_keeps_the_old_file(store: JsonStore):
    await store.write(make_put("a"))
    os.symlink("/dev/full", f"{store.path}.new")
    with pytest.raises(StoreFull):
        await store.write(make_put("b"))
    assert [item.id for item in await store.get(SPACE, "a", "b")] == ["a"]


async def test_processes_that_share_the_file_detect_each_others_writes(store: JsonStore):
    other = JsonStore(store.path)
    await asyncio.gather(*(each.write(make_put(f"i{n}")) for n in range(10) for each in (store, other)))
    assert [item.version for item in await store.get(SPACE, *(f"i{n}" for n in range(10)))] == [2] * 10
    [before] = await store.get(SPACE, "i0")
    await other.write(Put(item=before, expect=2))
    with pytest.raises(Conflict, match="at version 3"):
        await store.write(Put(item=before, expect=2))
    await other.close()


def test_example_has_fewer_than_300_lines():
    assert len((ROOT / "examples" / "json_store.py").read_text("utf-8").splitlines()) < 300


def test_example_implements_records_only_and_declares_what_it_lacks():
    store = JsonStore("unused.json")
    kinds: list[type] = [Records, Log, Tasks, ErasureStore]
    assert [isinstance(store, kind) for kind in kinds] == [True, False, False, False]
    assert get_capabilities(store) == Capabilities(erasure="delete")


def list_abstract_methods() -> set[tuple[str, str]]:
    """Return protocol and name of each abstract method; an inherited one counts for the protocol that declares it."""
    declared = {("Store", name) for name in Store.__abstractmethods__}
    for protocol in (Records, Log, Tasks, ErasureStore):
        declared |= {(protocol.__name__, name) for name in protocol.__abstractmethods__ - Store.__abstractmethods__}
    return declared


def test_contract_has_at_most_36_abstract_methods():
    assert len(list_abstract_methods()) <= 36


def test_page_lists_every_abstract_method_by_protocol():
    page = (ROOT / "docs" / "howto" / "backend.md").read_text("utf-8")
    listed = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == list_abstract_methods()


def test_page_lists_every_capability():
    page = (ROOT / "docs" / "howto" / "backend.md").read_text("utf-8")
    section = page.partition("## Declare")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [field.name for field in fields(Capabilities)]
