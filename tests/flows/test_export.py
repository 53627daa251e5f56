"""`export` and `import_from`: everything of a scope as JSON lines, and back, without a loss and without a surprise."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect import AgentMemory, BadInput, NotFound, RecollectError, SchemaTooNew, StoreUnavailable
from recollect.stores.where import Where
from recollect.testing import ManualClock
from recollect.values import MemoryItem, Scope
from tests.embedders import HashEmbedder
from tests.flows.conftest import Opener

ROOT = Path(__file__).resolve().parents[2]
Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def rewrite(path: Path, change: Callable[[list[Line]], list[Line] | None]) -> None:
    lines = read(path)
    lines = change(lines) or lines
    if "end" in lines[-1]:
        lines[-1] = {"end": len(lines) - 2}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


async def items(memory: AgentMemory) -> list[MemoryItem]:
    return await memory._parts.stores.records("semantic").find(Where(memory.semantic.space), limit=10_000)


async def furnish(memory: AgentMemory, clock: ManualClock) -> None:
    """Something in every tier, with a past."""
    await memory.remember("Ada prefers metric units.", importance=0.8, metadata={"project": {"name": "apollo", "n": 7}})
    await memory.remember("The office is in Oslo.", key="office")
    clock.forward(timedelta(seconds=1))
    await memory.remember("The office is in Bergen.", key="office")
    clock.forward(timedelta(minutes=30))
    await memory.remember("The office is in Oslo.", key="office")
    clock.forward(timedelta(minutes=30))
    await memory.remember("The office is in Bergen.", key="office", source="web")
    await memory.remember("Said in passing.", session="s9", position=3, speaker="Mina")
    await memory.remember("True for a while.", valid_from=clock(), valid_to=clock() + timedelta(days=9), pinned=True)
    await memory.semantic.search("metric units", min_relevance=0.0)
    await memory.semantic.search("metric units", min_relevance=0.0)
    await memory.procedural.save("deploy", "Push a tag.", description="how to ship", tags=["release"])
    await memory.procedural.record_outcome("deploy", False, note="the pipeline was red", seconds=3.5)
    await memory.procedural.save("deploy", "Push a tag and wait.")
    await memory.procedural.record_outcome("deploy", True)
    await memory.procedural.save("old", "Do not.")
    await memory.procedural.retire("old")
    for session in ("s1", "s2"):
        there = memory.scoped(session=session)
        for n in range(40):
            calls = [{"name": "look", "arguments": {"n": n}, "result": "x" * 3000}] if n % 7 == 0 else []
            await there.record_turn(f"message {n} about tea", f"answer {n}", tool_calls=calls, metadata={"n": n})
        assert await there.conversation.summary()
    await memory.episodic.store("No session at all.", kind="decision", at=clock() - timedelta(days=1))
    memory.working.set_task("Write the report")
    memory.working.add_result("figures", [1, 2, 3])
    await memory.working.add({"role": "user", "content": "hello"})


@pytest.fixture
async def furnished(opener: Opener, clock: ManualClock) -> AgentMemory:
    memory = await opener(user="ada", tenant="acme")
    await furnish(memory, clock)
    return memory


async def test_what_comes_back_is_what_went_out(furnished: AgentMemory, opener: Opener, tmp_path: Path):
    report = await furnished.export(tmp_path / "a.jsonl")
    assert report.lines == {
        "semantic": 7,
        "procedural": 3,
        "episodic": 2 * 86 + 1,
        "conversation": 2 * 93,
        "working": 1,
    }
    for store in ("memory://", str(tmp_path / "fresh.db")):
        fresh = await opener(user="ada", tenant="acme", store=store)
        taken = await fresh.import_from(tmp_path / "a.jsonl")
        assert taken.added["semantic"] == 7
        assert sum(taken.present.values()) == 0
        again = tmp_path / f"again-{len(store)}.jsonl"
        await fresh.export(again)
        assert again.read_bytes() == (tmp_path / "a.jsonl").read_bytes()
        for before, after in zip(await items(furnished), await items(fresh), strict=True):
            assert (after.access_count, after.last_accessed) == (before.access_count, before.last_accessed)
            assert after == before or after.version != before.version
        assert max(item.access_count for item in await items(fresh)) == 2
        assert [one.content for one in await fresh.semantic.history("office")] == [
            "The office is in Bergen.",
            "The office is in Oslo.",
        ] * 2
        for key in ("deploy", "old"):
            assert await fresh.procedural.history(key) == await furnished.procedural.history(key)
        for session in ("s1", "s2"):
            here, there = furnished.scoped(session=session), fresh.scoped(session=session)
            assert await there.conversation.get_messages_for_llm() == await here.conversation.get_messages_for_llm()
            assert await there.episodic.get_recent(1000) == await here.episodic.get_recent(1000)
        assert fresh.working.snapshot() == furnished.working.snapshot()
        found = await fresh.semantic.search("which units does Ada prefer", min_relevance=0.0)
        assert found[0].item.content == "Ada prefers metric units."


async def test_twice_is_once_and_what_is_here_stays(furnished: AgentMemory, opener: Opener, tmp_path: Path):
    await furnished.export(tmp_path / "a.jsonl")
    same = await furnished.import_from(tmp_path / "a.jsonl")
    assert sum(same.added.values()) == 0
    await furnished.export(tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    [item] = [one for one in await items(furnished) if one.content == "Ada prefers metric units."]
    await furnished.semantic.update_importance(item.id, 0.1)
    await furnished.import_from(tmp_path / "a.jsonl")
    after = await furnished.semantic.get(item.id)
    assert after is not None
    assert (after.importance, after.access_count) == (0.1, 2)  # neither set back nor counted again


async def test_an_export_can_go_to_somebody_else(furnished: AgentMemory, opener: Opener, tmp_path: Path):
    """In another scope ids are derived anew, so that what is remembered again is still the same item."""
    await furnished.export(tmp_path / "a.jsonl")
    bob = furnished.scoped(user="bob", agent="other", tenant="umbrella")
    taken = await bob.import_from(tmp_path / "a.jsonl")
    assert taken.added["semantic"] == 7
    assert {one.scope.user for one in await items(bob)} == {"bob"}
    assert {one.scope.tenant for one in await items(bob)} == {"umbrella"}
    theirs = {one.id for one in await items(furnished)}
    assert theirs.isdisjoint(one.id for one in await items(bob))
    again = await bob.remember("Ada prefers metric units.")
    assert again.importance == 0.8  # the one that came, not a second one
    await bob.remember("Said in passing.", session="s9", position=3, speaker="Mina")
    assert len(await items(bob)) == 7
    values = await bob.semantic.history("office")
    ids = {one.id for one in values}
    assert [one.superseded_by in ids for one in values] == [False, True, True, True]
    saved = await bob.procedural.save("deploy", "Push a tag and wait longer.")
    assert saved.version == 3
    assert len(await items(furnished)) == 7


async def test_a_newer_value_wins_whichever_side_has_it(opener: Opener, clock: ManualClock, tmp_path: Path):
    ada = await opener(user="ada")
    await ada.remember("Oslo", key="office")
    clock.forward(timedelta(hours=2))
    await ada.remember("Bergen", key="office")
    await ada.export(tmp_path / "a.jsonl")
    bob = ada.scoped(user="bob")
    moments = [clock()]
    clock.now -= timedelta(hours=1)  # between the two
    await bob.remember("Tromsø", key="office")
    clock.now = moments[0] + timedelta(hours=1)
    cleo = ada.scoped(user="cleo")
    await cleo.remember("Bodø", key="office")
    for other, current in ((bob, "Bergen"), (cleo, "Bodø")):
        await other.import_from(tmp_path / "a.jsonl")
        values = await other.semantic.history("office")
        assert [one.content for one in values if one.superseded_by is None] == [current]
        # One history without a gap or an overlap.
        values.reverse()
        assert [one.valid_to for one in values[:-1]] == [one.created_at for one in values[1:]]
    found = await bob.semantic.search("Tromsø office", as_of=moments[0] - timedelta(minutes=30), min_relevance=0.0)
    assert [hit.item.content for hit in found] == ["Tromsø"]


async def test_a_session_with_other_messages_gets_those_it_lacks(furnished: AgentMemory, tmp_path: Path):
    await furnished.export(tmp_path / "a.jsonl")
    bob = furnished.scoped(user="bob", session="s1")
    await bob.conversation.add_message("user", "I was here first.")
    await bob.import_from(tmp_path / "a.jsonl")
    said = await bob.conversation.get_last_n(1000)
    assert len(said) == 93
    assert said[0].content == "I was here first."
    assert [one.content for one in await bob.conversation.search("here first")][:1] == ["I was here first."]
    await bob.import_from(tmp_path / "a.jsonl")
    assert len(await bob.conversation.get_last_n(1000)) == 93


async def test_a_procedure_with_a_history_here_keeps_to_it(furnished: AgentMemory, tmp_path: Path):
    await furnished.export(tmp_path / "a.jsonl")
    other = furnished.scoped(agent="other")
    await other.procedural.save("deploy", "Ask Bob.")
    taken = await other.import_from(tmp_path / "a.jsonl")
    assert (taken.added["procedural"], taken.present["procedural"]) == (1, 2)
    assert [one.body for one in await other.procedural.history("deploy")] == ["Ask Bob."]
    assert await other.procedural.get("old") is not None


async def test_what_has_expired_since_is_left_out(furnished: AgentMemory, clock: ManualClock, tmp_path: Path):
    await furnished.export(tmp_path / "a.jsonl")
    clock.forward(timedelta(days=2))
    bob = furnished.scoped(user="bob")
    taken = await bob.import_from(tmp_path / "a.jsonl")
    assert (taken.added.get("episodic", 0), taken.expired) == (0, 173)
    assert await bob.episodic.sessions() == []


@pytest.mark.parametrize("user", ["ada", "bob"])
async def test_what_was_forgotten_stays_forgotten_after_the_journey(
    memory: AgentMemory, opener: Opener, clock: ManualClock, tmp_path: Path, user: str
):
    """The words are still in the conversation, and the lifecycle reads it again: it must know what it made of it."""
    said = memory.scoped(session="s1")
    await said.record_turn("Please remember that my flat is in Lisbon.")
    await said.record_turn("Please remember that my dog is called Rex.")
    await memory.lifecycle.run_once()
    [flat] = [item for item in await items(memory) if "Lisbon" in item.content]
    if user == "ada":  # elsewhere nobody can tell what a fact was once that is gone
        await memory.forget(flat.id)
    await memory.export(tmp_path / "a.jsonl")
    fresh = await opener(user=user, store="memory://")
    await fresh.import_from(tmp_path / "a.jsonl")
    before = await items(fresh)
    assert before
    clock.forward(timedelta(hours=1))
    assert (await fresh.lifecycle.run_once()).counts["promoted"] == 0
    assert {item.id for item in await items(fresh)} == {item.id for item in before}


async def test_how_far_a_log_was_read_is_not_taken_along(memory: AgentMemory, opener: Opener, tmp_path: Path):
    """Places in a log are given anew: what is said after the journey must not count as read."""
    said = memory.scoped(session="s1")
    for n in range(10):
        await said.record_turn(f"message {n} about tea")
    await memory.lifecycle.run_once()
    await said.conversation.clear()
    await said.record_turn("Hello again.")
    await memory.export(tmp_path / "a.jsonl")
    fresh = await opener(user="ada", store="memory://", session="s1")
    await fresh.import_from(tmp_path / "a.jsonl")
    await fresh.conversation.add_message("user", "Please remember that my flat is in Lisbon.")
    assert (await fresh.lifecycle.run_once()).counts["promoted"] == 1


async def test_a_doubtful_file_is_trusted_no_more_than_asked(furnished: AgentMemory, tmp_path: Path):
    await furnished.export(tmp_path / "a.jsonl")
    bob = furnished.scoped(user="bob", agent="x")
    report = await bob.import_from(tmp_path / "a.jsonl", trust=0.3)
    assert max(one.trust for one in await items(bob)) == 0.3
    assert (report.added["semantic"], report.untrusted) == (7, 3)
    assert "procedural" not in report.added
    assert await bob.procedural.all(retired=True) == []
    assert (await bob.import_from(tmp_path / "a.jsonl", trust=0.5)).untrusted == 0
    assert {one.trust for one in await bob.procedural.all(retired=True)} == {0.5}
    for wrong in (-1, 2, True, "much"):
        with pytest.raises(BadInput, match="trust"):
            await bob.import_from(tmp_path / "a.jsonl", trust=wrong)  # type: ignore[arg-type]


async def test_progress_is_told_to_its_end(furnished: AgentMemory, tmp_path: Path):
    seen: list[tuple[int, int]] = []
    report = await furnished.export(tmp_path / "a.jsonl", progress=lambda *told: seen.append(told))
    total = sum(report.lines.values())
    assert seen[-1] == (total, total)
    seen.clear()
    await furnished.scoped(user="bob").import_from(tmp_path / "a.jsonl", progress=lambda *told: seen.append(told))
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


class TestForgery:
    """Whatever a file claims, it is written into the scope that imports it and nowhere else."""

    async def test_a_line_cannot_name_another_owner(self, furnished: AgentMemory, tmp_path: Path):
        victim = furnished.scoped(user="victim")
        known = await victim.remember("The victim's own fact.")
        before = [await items(victim), await items(furnished)]

        def forge(lines: list[Line]) -> None:
            lines[0]["scope"] = {"tenant": "acme", "user": "victim", "agent": "default"}
            for line in lines:
                if "by" in line:
                    line["by"] = {"user": "victim", "agent": "default", "session": "s1"}
                if line.get("tier") == "semantic" and line.get("content") == "Ada prefers metric units.":
                    line["id"] = known.id

        await furnished.export(tmp_path / "a.jsonl")
        rewrite(tmp_path / "a.jsonl", forge)
        rewrite(tmp_path / "a.jsonl", lambda lines: [line for line in lines if line.get("tier") != "procedural"])
        thief = furnished.scoped(user="thief", tenant="other")
        await thief.import_from(tmp_path / "a.jsonl")
        assert [await items(victim), await items(furnished)] == before
        assert {(one.scope.tenant, one.scope.user) for one in await items(thief)} == {("other", "thief")}

    @pytest.mark.parametrize(
        "extra", [{"tenant": "acme"}, {"scope": {"tenant": "acme"}}, {"by": {"tenant": "acme"}}, {"version": 7}]
    )
    async def test_a_line_says_nothing_of_tenants(self, furnished: AgentMemory, tmp_path: Path, extra: Line):
        await furnished.export(tmp_path / "a.jsonl")
        rewrite(tmp_path / "a.jsonl", lambda lines: lines[1].update(extra))
        with pytest.raises(BadInput, match="line 2"):
            await furnished.scoped(user="bob").import_from(tmp_path / "a.jsonl")

    async def test_nothing_there_is_overwritten(self, furnished: AgentMemory, tmp_path: Path):
        def forge(lines: list[Line]) -> None:
            for line in lines:
                if line.get("tier") == "semantic":
                    line["content"] = "forged"

        await furnished.export(tmp_path / "a.jsonl")
        before = {item.id: item for item in await items(furnished)}
        rewrite(tmp_path / "a.jsonl", forge)
        await furnished.import_from(tmp_path / "a.jsonl")
        after = {item.id: item for item in await items(furnished)}
        assert {id: after[id] for id in before if before[id].key is None} == {
            id: item for id, item in before.items() if item.key is None
        }
        assert {after[id].content for id in before} == {item.content for item in before.values()}

    @pytest.mark.parametrize("claimed", ["source", "target"])
    async def test_an_id_is_not_taken_before_its_time(self, opener: Opener, tmp_path: Path, claimed: str):
        """Who knows what somebody will say could put another text in its place: its id can be worked out by anybody."""
        target = await opener(user="target")
        said = await target.remember("Ada prefers metric units.")
        await target.forget(said.id)
        source = await opener(user="source")
        await source.remember("Ada prefers imperial units.")

        def forge(lines: list[Line]) -> None:
            lines[0]["scope"]["user"] = claimed
            lines[1]["id"] = said.id

        await source.export(tmp_path / "a.jsonl")
        rewrite(tmp_path / "a.jsonl", forge)
        for _ in range(2):
            await target.import_from(tmp_path / "a.jsonl")
        assert [item.content for item in await items(target)] == ["Ada prefers imperial units."]
        await target.remember("Ada prefers metric units.")
        assert {item.content for item in await items(target)} == {
            "Ada prefers imperial units.",
            "Ada prefers metric units.",
        }


def damaged(tier: str, /, **changes: Any) -> Callable[[list[Line]], None]:
    def change(lines: list[Line]) -> None:
        line = next(line for line in reversed(lines) if line.get("tier") == tier)
        for name, value in changes.items():
            if value is ...:
                line.pop(name, None)
            else:
                line[name] = value

    return change


NOON = "2026-01-01T12:00:00+00:00"


class TestDamage:
    """A bad line is named, and nothing is imported: not what comes after it, and not what came before."""

    @pytest.mark.parametrize(
        "change",
        [
            damaged("semantic", id=...),
            damaged("semantic", id=7),
            damaged("semantic", id=""),
            damaged("semantic", content=...),
            damaged("semantic", content=""),
            damaged("semantic", content=["x"]),
            damaged("semantic", content="half \ud800"),
            damaged("semantic", content="x" * 1_000_001),
            damaged("semantic", importance=2),
            damaged("semantic", importance="high"),
            damaged("semantic", trust=-1),
            damaged("semantic", trust=True),
            damaged("semantic", created_at="yesterday"),
            damaged("semantic", created_at="2026-01-01T00:00:00"),
            damaged("semantic", created_at=None),
            damaged("semantic", created_at=0),
            damaged("semantic", valid_from="2026-01-02T00:00:00+00:00", valid_to="2026-01-01T00:00:00+00:00"),
            damaged("semantic", metadata=[1]),
            damaged("semantic", metadata={"a": "half \ud800"}),
            damaged("semantic", access_count=-1),
            damaged("semantic", access_count=3, last_accessed=...),
            damaged("semantic", derived_from=[7]),
            damaged("semantic", derived_from="x"),
            damaged("semantic", turn={"session": "s"}),
            damaged("semantic", turn={"session": "s", "position": "x", "speaker": None}),
            damaged("semantic", pinned="yes"),
            damaged("semantic", key=7),
            damaged("semantic", surprise=1),
            damaged("semantic", by={"user": ""}),
            damaged("semantic", by={"user": "a\x00b"}),
            damaged("semantic", by="ada"),
            damaged("semantic", tier="checkpoints"),
            damaged("semantic", tier=...),
            damaged("procedural", metadata={}),
            damaged("procedural", metadata={"number": "x"}),
            damaged("procedural", id="another"),
            damaged("procedural", key="another"),
            damaged("procedural", key=...),
            damaged("procedural", trust=0.1),
            damaged("procedural", source="web", trust=0.3),
            damaged("episodic", kind="rumour"),
            damaged("episodic", content=""),
            damaged("episodic", at=...),
            damaged("episodic", id="a\nb"),
            damaged("episodic", importance=float(7)),
            damaged("episodic", session=7),
            damaged("episodic", session="a\x00b"),
            damaged("episodic", metadata={"whole": {"size": "big"}}),
            damaged("episodic", metadata={"ours": {}}),
            damaged("conversation", message={"role": "king", "content": "x", "id": "1", "timestamp": NOON}),
            damaged("conversation", message={"role": "user", "content": "", "id": "1", "timestamp": NOON}),
            damaged("conversation", message={"role": "user", "content": "x", "id": "1", "timestamp": "noon"}),
            damaged("conversation", message={"role": "user", "content": "x"}),
            damaged("conversation", message=...),
            damaged("working", snapshot={}),
            damaged("working", snapshot=[]),
        ],
    )  # fmt: skip
    async def test_a_bad_line_imports_nothing(
        self, opener: Opener, clock: ManualClock, tmp_path: Path, change: Callable[[list[Line]], None]
    ):
        memory = await opener(user="ada")
        await memory.remember("Ada prefers metric units.")
        await memory.semantic.search("units", min_relevance=0.0)
        await memory.procedural.save("deploy", "Push a tag.")
        await memory.scoped(session="s1").record_turn("Hello there.", "Hello.")
        memory.working.set_task("Write the report")
        await memory.export(tmp_path / "a.jsonl")
        rewrite(tmp_path / "a.jsonl", change)
        fresh = await opener(user="fresh", agent="fresh")
        with pytest.raises(BadInput, match=r"line \d"):
            await fresh.import_from(tmp_path / "a.jsonl")
        await fresh.export(tmp_path / "empty.jsonl")
        assert len(read(tmp_path / "empty.jsonl")) == 2

    async def test_not_even_what_fills_batches_before_it(self, memory: AgentMemory, tmp_path: Path):
        await memory.semantic.add_many([{"content": f"fact number {n}"} for n in range(700)])
        await memory.export(tmp_path / "a.jsonl")
        rewrite(tmp_path / "a.jsonl", lambda lines: lines[-2].update(importance=7))
        fresh = memory.scoped(user="fresh")
        with pytest.raises(BadInput, match="line 701"):
            await fresh.import_from(tmp_path / "a.jsonl")
        assert await items(fresh) == []

    @pytest.mark.parametrize(
        ("spoil", "error"),
        [
            (lambda raw: b"", BadInput),
            (lambda raw: b"\n", BadInput),
            (lambda raw: b"some notes\n", BadInput),
            (lambda raw: b"\xff\xfe\n" + raw, BadInput),
            (lambda raw: b"[1]\n", BadInput),
            (lambda raw: b'{"recollect-export":true}\n', BadInput),
            (lambda raw: b'{"recollect-export":1}\n', BadInput),
            (lambda raw: raw.replace(b'export":1', b'export":2', 1), SchemaTooNew),
            (lambda raw: raw[:-1], BadInput),
            (lambda raw: raw[: len(raw) // 2], BadInput),
            (lambda raw: raw[: raw.rindex(b'{"end"')], BadInput),
            (lambda raw: raw + b"\n", BadInput),
            (lambda raw: raw + raw, BadInput),
            (lambda raw: raw.replace(b'{"end":1}', b'{"end":2}'), BadInput),
            (lambda raw: raw.replace(b'"importance":0.8', b'"importance":NaN'), BadInput),
            (lambda raw: raw.replace(b'{"end"', b"[" * 100_000 + b'\n{"end"'), BadInput),
            (lambda raw: raw.replace(b'"importance":0.8', b'"importance":' + b"9" * 5000), BadInput),
        ],
    )
    async def test_a_damaged_file_imports_nothing(
        self, opener: Opener, tmp_path: Path, spoil: Callable[[bytes], bytes], error: type[RecollectError]
    ):
        memory = await opener(user="ada")
        await memory.remember("Ada prefers metric units.", importance=0.8)
        await memory.export(tmp_path / "a.jsonl")
        raw = (tmp_path / "a.jsonl").read_bytes()
        (tmp_path / "a.jsonl").write_bytes(spoil(raw))
        assert (tmp_path / "a.jsonl").read_bytes() != raw
        fresh = memory.scoped(user="fresh")
        with pytest.raises(error):
            await fresh.import_from(tmp_path / "a.jsonl")
        assert await items(fresh) == []


class TestFiles:
    async def test_the_file_is_its_owners_alone_and_leaves_nothing_beside_it(self, memory: AgentMemory, tmp_path: Path):
        old = os.umask(0)
        try:
            await memory.export(tmp_path / "a.jsonl")
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "a.jsonl").stat().st_mode) == 0o600
        assert [name for name in os.listdir(tmp_path) if "agent.db" not in name] == ["a.jsonl"]

    async def test_only_an_older_export_is_overwritten_and_only_when_asked(self, memory: AgentMemory, tmp_path: Path):
        path = tmp_path / "a.jsonl"
        await memory.export(path)
        await memory.remember("Something new.")
        with pytest.raises(BadInput, match="overwrite=True"):
            await memory.export(path)
        assert len(read(path)) == 2
        await memory.export(path, overwrite=True)
        assert len(read(path)) == 3
        path.write_text("a diary\n", "utf-8")
        with pytest.raises(BadInput, match="not an export"):
            await memory.export(path, overwrite=True)
        assert path.read_text("utf-8") == "a diary\n"

    async def test_links_devices_and_directories_are_refused(self, memory: AgentMemory, tmp_path: Path):
        await memory.export(tmp_path / "a.jsonl")
        (tmp_path / "link").symlink_to(tmp_path / "a.jsonl")
        (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere.jsonl")
        os.mkfifo(tmp_path / "pipe")
        for place in (tmp_path / "link", tmp_path / "dangling", tmp_path / "pipe", Path("/dev/null"), tmp_path):
            for overwrite in (False, True):
                with pytest.raises(BadInput):
                    await memory.export(place, overwrite=overwrite)
            async with asyncio.timeout(10):
                with pytest.raises(BadInput):
                    await memory.import_from(place)
        assert not (tmp_path / "elsewhere.jsonl").exists()

    @pytest.mark.parametrize("path", ["", " ", "a\x00b", 7, None, "..", "/"])
    async def test_a_path_names_a_file(self, memory: AgentMemory, path: Any):
        for use in (memory.export, memory.import_from):
            with pytest.raises(BadInput):
                await use(path)

    async def test_what_is_not_there_is_said(self, memory: AgentMemory, tmp_path: Path):
        with pytest.raises(NotFound, match="no file"):
            await memory.import_from(tmp_path / "none.jsonl")
        with pytest.raises(StoreUnavailable):
            await memory.export(tmp_path / "no" / "such" / "directory.jsonl")

    async def test_an_export_that_fails_leaves_no_file(self, memory: AgentMemory, tmp_path: Path):
        await memory.remember("Ada prefers metric units.")

        directory = tmp_path / "out"
        directory.mkdir()

        def stop(done: int, total: int) -> None:
            raise RuntimeError("somebody pulled the plug")

        with pytest.raises(RuntimeError):
            await memory.export(directory / "a.jsonl", progress=stop)
        assert list(directory.iterdir()) == []


KILLED = """
import asyncio, os, signal, sys
from recollect import AgentMemory
from tests.embedders import HashEmbedder

def progress(done, total):
    if done >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with AgentMemory.open(sys.argv[1], user="ada", embedder=HashEmbedder()) as memory:
        await memory.import_from(sys.argv[2], progress=progress)

asyncio.run(main())
"""


@pytest.mark.parametrize("after", [200, 600, 800])
async def test_an_import_that_was_killed_goes_on_when_it_is_run_again(tmp_path: Path, after: int):
    options: dict[str, Any] = {"user": "ada", "embedder": HashEmbedder()}
    async with AgentMemory.open("memory://", **options) as memory:
        await memory.semantic.add_many([{"content": f"fact number {n}"} for n in range(500)])
        for n in range(60):
            await memory.scoped(session="s1").record_turn(f"message {n} about tea", f"answer {n}")
            await memory.procedural.save(f"p.{n}", "Push a tag.")
        await memory.export(tmp_path / "a.jsonl")
    store, file = tmp_path / "fresh.db", tmp_path / "a.jsonl"
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", KILLED, str(store), str(file), str(after)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        timeout=120,
    )
    assert ended.returncode == -signal.SIGKILL
    async with AgentMemory.open(store, **options) as fresh:
        taken = await fresh.import_from(file)
        assert sum(taken.added.values()) > 0
        await fresh.export(tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_bytes() == file.read_bytes()


# ---------------------------------------------------------------------------------------------------------- at random

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=40).filter(
    str.strip
)
NAME = st.sampled_from(["s1", "s2", "ß 3"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c-d"]), inner, max_size=3),
    max_leaves=6,
)
METADATA = st.dictionaries(st.sampled_from(["a", "b", "other"]), JSON, max_size=3)
ACTION = st.one_of(
    st.tuples(st.just("fact"), TEXT, METADATA, st.none() | st.floats(0, 1)),
    st.tuples(st.just("keyed"), st.sampled_from(["Oslo", "Bergen"]), st.sampled_from(["k1", "k2"])),
    st.tuples(st.just("said"), TEXT, NAME, st.sampled_from(["Mina", None])),
    st.tuples(st.just("search"), TEXT),
    st.tuples(st.just("turn"), TEXT, TEXT, NAME, METADATA),
    st.tuples(st.just("talk"), TEXT, NAME, st.integers(20, 40)),
    st.tuples(st.just("episode"), TEXT, NAME, st.sampled_from(["turn", "tool_call", "decision", "error", "outcome"])),
    st.tuples(st.just("procedure"), TEXT, st.sampled_from(["p.1", "p.2"])),
    st.tuples(st.just("outcome"), st.sampled_from(["p.1", "p.2"]), st.booleans(), st.none() | TEXT),
    st.tuples(st.just("retire"), st.sampled_from(["p.1", "p.2"])),
    st.tuples(st.just("forget"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.integers(0, 10**11)),
    st.tuples(st.just("task"), TEXT),
    st.tuples(st.just("tidy"), NAME, TEXT),
)  # fmt: skip


async def act(memory: AgentMemory, clock: ManualClock, action: tuple[Any, ...]) -> None:  # noqa: C901 - a list of cases
    match action:
        case ("fact", text, metadata, importance):
            await memory.remember(text, metadata=metadata, importance=importance)
        case ("keyed", text, key):
            await memory.remember(text, key=key)
        case ("said", text, session, speaker):
            await memory.remember(text, session=session, speaker=speaker)
        case ("search", text):
            await memory.semantic.search(text, min_relevance=0.0)
        case ("turn", user, assistant, session, metadata):
            await memory.scoped(session=session).record_turn(user, assistant, metadata=metadata)
        case ("talk", text, session, times):
            for n in range(times):
                await memory.scoped(session=session).conversation.add_message("user", f"{text} {n}")
        case ("episode", text, session, kind):
            await memory.episodic.store(text, session=session, kind=kind)
        case ("procedure", text, key):
            await memory.procedural.save(key, text)
        case ("outcome", key, success, note):
            if await memory.procedural.get(key):
                await memory.procedural.record_outcome(key, success, note=note)
        case ("retire", key):
            await memory.procedural.retire(key)
        case ("forget", place):
            held = await items(memory)
            if place < len(held):
                await memory.forget(held[place].id)
        case ("wait", micros):
            clock.forward(timedelta(microseconds=micros))
        case ("tidy", session, text):
            await memory.scoped(session=session).record_turn(f"Please remember that {text} is in Lisbon.")
            await memory.lifecycle.run_once()
        case ("task", text):
            memory.working.set_task(text)


@settings(max_examples=60)
@given(actions=st.lists(ACTION, min_size=1, max_size=14))
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_any_history_survives_the_journey(
    kind: str, actions: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory
):
    directory = tmp_path_factory.mktemp("journey")

    async def journey() -> None:
        clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
        options: dict[str, Any] = {"user": "ada", "embedder": HashEmbedder(), "clock": clock}
        async with AgentMemory.open("memory://", **options) as memory:
            for action in actions:
                await act(memory, clock, action)
            await memory.export(directory / "a.jsonl")
        store = "memory://" if kind == "memory" else str(directory / "fresh.db")
        async with AgentMemory.open(store, **options) as fresh:
            await fresh.import_from(directory / "a.jsonl")
            await fresh.export(directory / "b.jsonl")
            assert (directory / "b.jsonl").read_bytes() == (directory / "a.jsonl").read_bytes()
            again = await fresh.import_from(directory / "a.jsonl")
            assert sum(again.added.values()) == 0
            await fresh.export(directory / "c.jsonl")
            assert (directory / "c.jsonl").read_bytes() == (directory / "a.jsonl").read_bytes()
            assert await fresh.check() == []

    asyncio.run(journey())


def test_a_scope_is_all_that_the_header_tells(tmp_path: Path):
    async def export() -> None:
        async with AgentMemory.open("memory://", user="ada", tenant="acme", embedder=HashEmbedder()) as memory:
            await memory.export(tmp_path / "a.jsonl")

    asyncio.run(export())
    assert read(tmp_path / "a.jsonl") == [
        {"recollect-export": 1, "scope": {"tenant": "acme", "user": "ada", "agent": Scope().agent}},
        {"end": 0},
    ]
