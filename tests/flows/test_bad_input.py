"""Whatever comes in: an answer or one of our errors, and nothing lost."""

from __future__ import annotations

import asyncio
import math
import os
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import apsw
import pytest
import pytest_asyncio

from recollect import (
    AgentMemory,
    BadInput,
    BadQuery,
    BadSettings,
    RecollectError,
    SchemaTooNew,
    StoreCorrupt,
    StoreUnavailable,
)
from tests.embedders import HashEmbedder

SYNTAX = (
    *('"', '""', "'", "''", "`", "*", "^", "(", ")", "((", "{", "}", "[", "]", ":", "-", "+", "|", "&", "~", ";", "--"),
    *("AND", "OR", "NOT", "NEAR", "NEAR(", "NEAR/2", "AND AND", "col:", "terms:", "rank", "rowid:", "/*", "*/", "\\"),
    *("' or 1=1 --", '"; drop table records; --', "union select", "${jndi}", "%00", "%s", "{0}", "\\x00", "<|im_end|>"),
    *("\x00", "\x01", "\x1b[31m", "\x7f", "\x85", "\u200b", "\u202e", "\ufeff", "\ufffd", "\uffff", "\U0010ffff"),
    *(
        "é",
        "e\u0301",
        "ß",
        "İ",
        "ſ",
        "№",
        "漢字",
        "ひらがな",
        "한국어",
        "ไทย",
        "हिन्दी",
        "العربية",
        "👩‍👩‍👧",
        "🏳️‍🌈",
        "𝔘𝔫𝔦",
    ),
    *("\ud800", "\udfff", "\udc80", "cello", "attic", "o'clock", "a_b", "x" * 500, "ab" * 3000, "1e999", "nan"),
)

EAST, WEST = timezone(timedelta(hours=5)), timezone(timedelta(hours=-5))
WORDS = [text for text in SYNTAX if text.isprintable()]

# One memory for all tests of a backend: what is refused leaves no trace in it, and each test looks.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["memory", "sqlite"])
async def furnished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AgentMemory]:
    store = "memory://" if request.param == "memory" else tmp_path_factory.mktemp("bad") / "agent.db"
    async with AgentMemory.open(store, user="ada", embedder=HashEmbedder()) as memory:
        await memory.semantic.add_many(
            [
                {"content": "The cello is in the attic.", "metadata": {"room": {"floor": 3}}, "key": "cello"},
                {"content": "Bread is baked on Tuesdays.", "session": "s", "speaker": "Ada (the baker)"},
                {"content": 'She said "NOT AND OR" and left: col:umn*', "session": "s", "speaker": "user"},
            ]
        )
        yield memory


class TestQueries:
    @pytest.mark.parametrize("query", ["", "   ", "\n\t", None, 5, b"bytes", ["list"]])
    async def test_no_question_is_refused(self, furnished: AgentMemory, query: Any):
        with pytest.raises(BadQuery):
            await furnished.recall(query)

    async def test_a_hundred_thousand_words_are_refused_kindly(self, furnished: AgentMemory):
        with pytest.raises(BadQuery, match="characters"):
            await furnished.recall("cello " * 100_000)

    async def test_a_page_of_text_is_answered(self, furnished: AgentMemory):
        hits = await furnished.semantic.search("cello attic " + "unrelated words follow here " * 600, min_relevance=0.0)
        assert hits

    @pytest.mark.parametrize("query", SYNTAX)
    async def test_syntax_is_only_text(self, furnished: AgentMemory, query: str):
        for mode in ("hybrid", "text"):
            for text in (query, f"cello {query}", f'{query}cello"{query}'):
                await answered(furnished, text, mode=mode)
        assert (await furnished.stats()).items == 3

    async def test_half_a_character_is_no_question(self, furnished: AgentMemory):
        for mode in ("hybrid", "dense", "text"):
            with pytest.raises(BadInput, match="surrogate"):
                await furnished.semantic.search("cello \ud800", mode=mode)

    async def test_quoted_words_are_found_as_words(self, furnished: AgentMemory):
        hits = await furnished.semantic.search('"cello" AND NOT (attic*)', mode="text", min_relevance=0.0)
        assert hits[0].item.content == "The cello is in the attic."

    async def test_stop_words_alone_are_no_error(self, furnished: AgentMemory):
        assert await furnished.semantic.search("who are you", mode="text", min_relevance=0.0) == []

    @pytest.mark.parametrize("n", [-1, "5", 2.0, None, True, float("inf")])
    async def test_n_is_a_whole_number(self, furnished: AgentMemory, n: Any):
        with pytest.raises(BadQuery, match="n is how many"):
            await furnished.recall("cello", n)

    async def test_no_hits_wanted_and_all_hits_wanted(self, furnished: AgentMemory):
        assert await furnished.semantic.search("cello", 0) == []
        assert not await furnished.recall("cello", 0)
        assert len(await furnished.semantic.search("cello", 10**6, min_relevance=0.0)) == 3
        assert len(await furnished.semantic.search("cello", 10**30, min_relevance=0.0)) == 3

    @pytest.mark.parametrize(
        "options",
        [
            {"min_relevance": 2},
            {"min_relevance": -0.1},
            {"min_relevance": float("nan")},
            {"min_relevance": "0.5"},
            {"budget": 0},
            {"budget": -1},
            {"budget": "100"},
            {"budget": 1.5},
            {"budget": True},
            {"tiers": "semantic"},
            {"tiers": ["sematnic"]},
            {"tiers": [["semantic"]]},
            {"tiers": 5},
            {"as_of": "2020-01-01"},
            {"as_of": 2020},
            {"as_of": datetime.min.replace(tzinfo=EAST)},
            {"where": "room = 3"},
            {"where": [("room", 3)]},
        ],
        ids=str,
    )
    async def test_options_are_checked(self, furnished: AgentMemory, options: dict[str, Any]):
        with pytest.raises(BadInput):
            await furnished.recall("cello", **options)

    @pytest.mark.parametrize("mode", ["fuzzy", "", None, 3])
    async def test_modes_are_checked(self, furnished: AgentMemory, mode: Any):
        with pytest.raises(BadQuery, match="mode"):
            await furnished.semantic.search("cello", mode=mode)

    @pytest.mark.parametrize("id", [None, 5, b"x", ["x"]])
    async def test_ids_are_texts(self, furnished: AgentMemory, id: Any):
        for use in (furnished.semantic.get, furnished.forget, furnished.semantic.history):
            with pytest.raises(BadInput):
                await use(id)

    @pytest.mark.parametrize("id", ["", "no such id", "' or 1=1 --", "\x00", "x" * 10_000])
    async def test_an_unknown_id_is_nothing(self, furnished: AgentMemory, id: str):
        assert await furnished.semantic.get(id) is None
        assert not await furnished.forget(id)
        assert await furnished.semantic.history(id) == []
        assert (await furnished.stats()).items == 3


class TestFilters:
    async def test_an_unknown_path_is_named_with_the_known_ones(self, furnished: AgentMemory):
        with pytest.raises(BadQuery, match=r"'rooom'.*room"):
            await furnished.recall("cello", where={"rooom": 3})

    async def test_in_an_empty_memory_no_path_is_wrong(self, furnished: AgentMemory):
        assert not await furnished.scoped(user="nobody").recall("cello", where={"room": 3})

    @pytest.mark.parametrize(
        "key",
        [
            *("room') or 1=1 --", "room'; drop table records; --", 'room"', "$.room", "room[0]", "room.", ".room", ""),
            *(" room", "room\n", "room\x00", "r\ud800m", "a" * 65, ".".join("a" * 9), "räum", "room floor", "*", "%"),
            *(None, 3, ("room",), b"room"),
        ],
        ids=repr,
    )
    async def test_hostile_keys_are_refused(self, furnished: AgentMemory, key: Any):
        with pytest.raises(BadQuery, match="path"):
            await furnished.recall("cello", where={key: 3})
        assert (await furnished.stats()).items == 3

    @pytest.mark.parametrize(
        "value",
        [
            float("nan"),
            2**63, -(2**63) - 1, b"bytes", object(), {"like": "%"}, {"gte": None}, {"gt": True}, {"in": 3},
            {"in": "abc"}, {"eq": {"eq": 1}}, {"in": list(range(2000))}, {5: 3}, {"eq": [1]},
        ],
        ids=lambda value: "object" if type(value) is object else repr(value)[:30],
    )  # fmt: skip
    async def test_hostile_values_are_refused(self, furnished: AgentMemory, value: Any):
        with pytest.raises(BadQuery):
            await furnished.recall("cello", where={"room.floor": value})

    @pytest.mark.parametrize(
        "value", ["' or 1=1 --", "%", "\x00", math.inf, -math.inf, 2**63 - 1, None, True, [], "", "x" * 100_000]
    )
    async def test_odd_values_match_nothing(self, furnished: AgentMemory, value: Any):
        assert await furnished.semantic.search("cello", where={"room.floor": value}, min_relevance=0.0) == []

    async def test_half_a_character_is_refused_or_matches_nothing(self, furnished: AgentMemory):
        for where in ({"room.floor": "\ud800"}, {"source": "\ud800"}, {"room.floor": ["\ud800"]}):
            await answered(furnished, "cello", where=where)

    async def test_too_many_conditions_are_refused(self, furnished: AgentMemory):
        with pytest.raises(BadQuery, match="at most"):
            await furnished.recall("cello", where={f"a{n}": n for n in range(100)})


class TestFacts:
    @pytest.mark.parametrize(
        ("metadata", "path"),
        [
            ({"a": object()}, "metadata.a"),
            ({"a": {"b": [1, {"c": {1, 2}}]}}, r"metadata\.a\.b\[1\]\.c"),
            ({"a": b"bytes"}, "metadata.a"),
            ({"a": float("nan")}, "metadata.a"),
            ({"a": [1.0, float("-inf")]}, r"metadata\.a\[1\]"),
            ({("tuple",): 1}, "metadata"),
            ({"a": 10**5000}, "metadata.a"),
        ],
        ids=["object", "set", "bytes", "nan", "infinity", "tuple key", "huge number"],
    )
    async def test_metadata_that_is_no_json_is_refused_by_path(self, furnished: AgentMemory, metadata: Any, path: str):
        with pytest.raises(BadInput, match=path):
            await furnished.remember("x", metadata=metadata)
        assert (await furnished.stats()).items == 3

    async def test_metadata_that_contains_itself_is_refused(self, furnished: AgentMemory):
        endless: dict[str, Any] = {}
        endless["again"] = endless
        deep: Any = 1
        for _ in range(5000):
            deep = {"a": deep}
        for metadata in (endless, {"deep": deep}):
            with pytest.raises(BadInput, match="metadata"):
                await furnished.remember("x", metadata=metadata)

    @pytest.mark.parametrize(("depth", "kept"), [(20, True), (64, True), (100, False), (900, False)])
    async def test_deep_metadata_is_kept_or_refused(self, furnished: AgentMemory, depth: int, kept: bool):
        another = furnished.scoped(user="another")
        deep: Any = 1
        for _ in range(depth):
            deep = {"a": deep}
        if kept:
            assert dict((await another.remember("deep", metadata=deep)).metadata) == deep
        else:
            with pytest.raises(BadInput, match="deep"):
                await another.remember("deep", metadata=deep)

    @pytest.mark.parametrize(
        "options",
        [
            {"content": ""}, {"content": " \n"}, {"content": None}, {"content": 5}, {"content": b"x"}, {},
            {"importance": 2}, {"importance": -1}, {"importance": float("nan")}, {"importance": "high"},
            {"importance": True}, {"trust": 1.5}, {"trust": "much"}, {"key": 5}, {"key": ""}, {"key": " "},
            {"source": 5}, {"at": "2020-01-01"}, {"at": 2020}, {"valid_from": "now"}, {"valid_to": 5},
            {"at": datetime.min.replace(tzinfo=EAST)}, {"valid_to": datetime.max.replace(tzinfo=WEST)},
            {"metadata": "x"}, {"metadata": [("a", 1)]}, {"speaker": 5}, {"session": []}, {"no_such_option": 1},
            {"content": "half \ud800"}, {"key": "half \ud800"}, {"source": "\ud800"}, {"session": "\ud800"},
            {"metadata": {"a": "\ud800"}}, {"metadata": {"\ud800": 1}}, {"speaker": "\udfff", "session": "s"},
        ],
        ids=str,
    )  # fmt: skip
    async def test_options_are_checked_and_nothing_is_stored(self, furnished: AgentMemory, options: dict[str, Any]):
        fact = {"content": "x", **options} if options else {}
        with pytest.raises(BadInput):
            await furnished.semantic.add_many([{"content": "good"}, fact])
        assert (await furnished.stats()).items == 3

    @pytest.mark.parametrize("facts", [None, 5, "text", ["text"], [None], [["content", "x"]], {"content": "x"}])
    async def test_add_many_takes_dicts(self, furnished: AgentMemory, facts: Any):
        with pytest.raises(BadInput):
            await furnished.semantic.add_many(facts)

    async def test_the_end_lies_not_before_the_beginning(self, furnished: AgentMemory):
        day = datetime(2026, 1, 1, tzinfo=UTC)
        with pytest.raises(BadInput, match="before"):
            await furnished.remember("x", valid_from=day, valid_to=day - timedelta(days=1))

    async def test_a_text_that_is_too_long_is_refused_not_cut(self, furnished: AgentMemory):
        with pytest.raises(BadInput, match="max_content"):
            await furnished.remember("x" * 1_000_001)

    @pytest.mark.parametrize("name", ["", " ", "x" * 257, "a\x00b", None, 5])
    async def test_names_of_scopes_are_checked(self, name: Any):
        with pytest.raises(BadInput):
            AgentMemory.open("memory://", user=name)


class TestPlaces:
    async def test_a_missing_directory(self, tmp_path: Path):
        with pytest.raises(StoreUnavailable, match="does not exist"):
            await opened(tmp_path / "no" / "agent.db")

    async def test_a_directory_as_a_file(self, tmp_path: Path):
        with pytest.raises(StoreUnavailable):
            await opened(tmp_path)

    async def test_a_read_only_directory(self):
        with public_directory() as directory:
            directory.chmod(0o555)
            with as_somebody_else(), pytest.raises(StoreUnavailable):
                await opened(directory / "agent.db")

    async def test_a_read_only_file(self):
        with public_directory() as directory:
            await (await opened(directory / "agent.db")).close()
            (directory / "agent.db").chmod(0o444)
            directory.chmod(0o555)
            with as_somebody_else(), pytest.raises(StoreUnavailable, match="writable"):
                await (await opened(directory / "agent.db")).remember("x")

    @pytest.mark.parametrize(
        "content", [b"just some text, and quite a bit of it\n" * 100, b"\x00" * 4096, b"SQLite format 3"]
    )
    async def test_a_file_that_is_no_database_is_left_alone(self, tmp_path: Path, content: bytes):
        file = tmp_path / "notes.txt"
        file.write_bytes(content)
        with pytest.raises(StoreCorrupt):
            await opened(file)
        assert file.read_bytes() == content

    async def test_another_programs_database_is_left_alone(self, tmp_path: Path):
        file = tmp_path / "theirs.db"
        with apsw.Connection(str(file)) as theirs:
            theirs.execute("create table theirs (x); insert into theirs values (1)")
        theirs.close()
        before = file.read_bytes()
        with pytest.raises(StoreCorrupt, match="another program"):
            await opened(file)
        assert file.read_bytes() == before

    async def test_a_newer_store_is_not_touched(self, tmp_path: Path):
        file = tmp_path / "agent.db"
        memory = await opened(file)
        await memory.remember("The cello is in the attic.")
        await memory.close()
        set_version(file, +1000)
        with pytest.raises(SchemaTooNew, match="upgrade"):
            await opened(file)
        set_version(file, -1000)
        async with await opened(file) as again:
            assert (await again.stats()).items == 1

    @pytest.mark.parametrize(
        "place", ["mysql://x", "redis://x", "://", {"semantik": "memory://"}, {"semantic": "nope://"}]
    )
    async def test_an_unknown_place(self, place: Any):
        with pytest.raises(BadSettings):
            await opened(place)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_twenty_thousand_fuzzed_queries_raise_nothing_but_our_errors(tmp_path: Path, backend: str):
    """Words only, so that it is the word index that is tried and not the patience of an embedder."""
    chance = random.Random(f"{backend} 20 000")
    store = "memory://" if backend == "memory" else tmp_path / "fuzz.db"
    async with AgentMemory.open(store, embedder=HashEmbedder(dim=8)) as memory:
        await memory.semantic.add_many(
            {"content": f"{chance.choice(WORDS)} cello {n}", "session": "s", "speaker": f"({n % 3}"} for n in range(6)
        )
        queries = [fuzzed(chance) for _ in range(10_000)]

        async def ask(some: list[str]) -> int:
            return sum([await answered(memory, query, mode="text", min_relevance=0.9) for query in some])

        asked = await asyncio.gather(*(ask(queries[start::4]) for start in range(4)))
        assert sum(asked) > 5_000  # most of them are questions, and are answered
        assert (await memory.stats()).items == 6
        assert await memory.check() == []


def fuzzed(chance: random.Random) -> str:
    parts = chance.choices(SYNTAX, k=chance.randrange(1, 6))
    parts += ["".join(map(chr, chance.choices(range(0x2FF), k=chance.randrange(0, 8))))]
    return chance.choice(("", " ", '" "')).join(chance.sample(parts, len(parts)))[: chance.choice((50, 500, 30_000))]


async def answered(memory: AgentMemory, query: str, **options: Any) -> bool:
    options.setdefault("min_relevance", 0.0)
    try:
        await memory.semantic.search(query, 5, **options)
    except RecollectError:
        return False
    return True


async def opened(place: Any) -> AgentMemory:
    return await AgentMemory.open(place, embedder=HashEmbedder())


def set_version(file: Path, change: int) -> None:
    connection = apsw.Connection(str(file))
    connection.pragma("user_version", connection.pragma("user_version") + change)
    connection.close()


@contextmanager
def public_directory() -> Iterator[Path]:
    """Where somebody else may look: pytest's own directories are closed to others."""
    directory = Path(tempfile.mkdtemp(prefix="recollect-test-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        directory.chmod(0o755)
        shutil.rmtree(directory)


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Without root's right to write everywhere, where the tests are run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("store", ["", "  ", ":memory:", "file:x.db?mode=ro", 5, b"x.db", {"semantic": ""}])
async def test_a_store_that_can_only_be_a_mistake_is_refused(store: Any, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSettings, match="path"):
        await AgentMemory.open(store, embedder=HashEmbedder())
    assert os.listdir(tmp_path) == []


async def test_a_little_that_unfolds_into_very_much_is_refused_at_once():
    unfolding: list[Any] = ["ha"]
    for _ in range(40):
        unfolding = [unfolding, unfolding]
    endless: list[Any] = []
    endless += [endless, endless]
    async with AgentMemory.open("memory://", embedder=HashEmbedder()) as memory:
        for metadata in ({"x": unfolding}, {"x": endless}):
            with pytest.raises(BadInput, match="nested"):
                await memory.remember("text", metadata=metadata)
