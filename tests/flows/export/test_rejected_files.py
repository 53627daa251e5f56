"""Forged and damaged export files: they are rejected as a whole, and the error names the line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory, RecollectError
from recollect.errors import BadInput, SchemaTooNew
from tests.cases import Case
from tests.flows.conftest import Opener
from tests.flows.export.export_file import Line, list_facts, read, rewrite


class TestForgery:
    """Imported lines are written only into the importing scope, whatever the file claims."""

    async def test_import_ignores_owner_claimed_by_a_line(self, filled: AgentMemory, tmp_path: Path):
        victim = filled.scoped(user="victim")
        known = await victim.remember("The victim's own fact.")
        before = [await list_facts(victim), await list_facts(filled)]

        def forge(lines: list[Line]) -> None:
            lines[0]["scope"] = {"tenant": "acme", "user": "victim", "agent": "default"}
            for line in lines:
                if "by" in line:
                    line["by"] = {"user": "victim", "agent": "default", "session": "s1"}
                if line.get("tier") == "semantic" and line.get("content") == "Ada prefers metric units.":
                    line["id"] = known.id

        await filled.export(tmp_path / "a.jsonl")
        rewrite(tmp_path / "a.jsonl", forge)
        rewrite(tmp_path / "a.jsonl", lambda lines: [line for line in lines if line.get("tier") != "procedural"])
        thief = filled.scoped(user="thief", tenant="other")
        await thief.import_from(tmp_path / "a.jsonl")
        assert [await list_facts(victim), await list_facts(filled)] == before
        assert {(item.scope.tenant, item.scope.user) for item in await list_facts(thief)} == {("other", "thief")}

    async def test_line_with_tenant_or_scope_is_rejected(self, filled: AgentMemory, tmp_path: Path):
        extras: list[Line] = [{"tenant": "acme"}, {"scope": {"tenant": "acme"}}, {"by": {"tenant": "acme"}}]
        extras.append({"version": 7})
        await filled.export(tmp_path / "a.jsonl")
        exported = (tmp_path / "a.jsonl").read_bytes()
        failures: list[str] = []
        for extra in extras:
            (tmp_path / "a.jsonl").write_bytes(exported)
            rewrite(tmp_path / "a.jsonl", partial(add_to_line_2, extra=extra))
            with Case(failures, extra), pytest.raises(BadInput, match="line 2"):
                await filled.scoped(user="bob").import_from(tmp_path / "a.jsonl")
        assert not failures, "\n".join(failures)

    async def test_import_does_not_overwrite_existing_items(self, filled: AgentMemory, tmp_path: Path):
        def forge(lines: list[Line]) -> None:
            for line in lines:
                if line.get("tier") == "semantic":
                    line["content"] = "forged"

        await filled.export(tmp_path / "a.jsonl")
        before = {item.id: item for item in await list_facts(filled)}
        rewrite(tmp_path / "a.jsonl", forge)
        await filled.import_from(tmp_path / "a.jsonl")
        after = {item.id: item for item in await list_facts(filled)}
        assert {id: after[id] for id in before if before[id].key is None} == {
            id: item for id, item in before.items() if item.key is None
        }
        assert {after[id].content for id in before} == {item.content for item in before.values()}

    @pytest.mark.parametrize("claimed", ["source", "target"])
    async def test_forged_id_does_not_displace_a_later_fact(self, opener: Opener, tmp_path: Path, claimed: str):
        """Ids are derived from content, so a forger can compute the id of a text that a user will store later."""
        target = await opener(user="target")
        forgotten = await target.remember("Ada prefers metric units.")
        await target.forget(forgotten.id)
        source = await opener(user="source")
        await source.remember("Ada prefers imperial units.")

        def forge(lines: list[Line]) -> None:
            lines[0]["scope"]["user"] = claimed
            lines[1]["id"] = forgotten.id

        await source.export(tmp_path / "a.jsonl")
        rewrite(tmp_path / "a.jsonl", forge)
        for _ in range(2):
            await target.import_from(tmp_path / "a.jsonl")
        assert [item.content for item in await list_facts(target)] == ["Ada prefers imperial units."]
        await target.remember("Ada prefers metric units.")
        assert {item.content for item in await list_facts(target)} == {
            "Ada prefers imperial units.",
            "Ada prefers metric units.",
        }


def add_to_line_2(lines: list[Line], extra: Line) -> None:
    lines[1].update(extra)


def damaged(tier: str, /, **changes: Any) -> tuple[str, Line]:
    """Return a damage to the last line of a tier: the new values of the line, and `...` for a missing one."""
    return tier, changes


def damage(lines: list[Line], tier: str, changes: Line) -> None:
    line = next(line for line in reversed(lines) if line.get("tier") == tier)
    for name, value in changes.items():
        if value is ...:
            line.pop(name, None)
        else:
            line[name] = value


NOON = "2026-01-01T12:00:00+00:00"
BAD_LINES = [
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
]  # fmt: skip
SPOILT_FILES: dict[str, tuple[Callable[[bytes], bytes], type[RecollectError]]] = {
    "empty": (lambda raw: b"", BadInput),
    "empty line": (lambda raw: b"\n", BadInput),
    "notes": (lambda raw: b"some notes\n", BadInput),
    "not UTF-8": (lambda raw: b"\xff\xfe\n" + raw, BadInput),
    "list": (lambda raw: b"[1]\n", BadInput),
    "version true": (lambda raw: b'{"recollect-export":true}\n', BadInput),
    "header only": (lambda raw: b'{"recollect-export":1}\n', BadInput),
    "newer version": (lambda raw: raw.replace(b'export":1', b'export":2', 1), SchemaTooNew),
    "last byte missing": (lambda raw: raw[:-1], BadInput),
    "second half missing": (lambda raw: raw[: len(raw) // 2], BadInput),
    "end missing": (lambda raw: raw[: raw.rindex(b'{"end"')], BadInput),
    "line after the end": (lambda raw: raw + b"\n", BadInput),
    "twice": (lambda raw: raw + raw, BadInput),
    "wrong count": (lambda raw: raw.replace(b'{"end":1}', b'{"end":2}'), BadInput),
    "NaN": (lambda raw: raw.replace(b'"importance":0.8', b'"importance":NaN'), BadInput),
    "deep nesting": (lambda raw: raw.replace(b'{"end"', b"[" * 100_000 + b'\n{"end"'), BadInput),
    "huge number": (lambda raw: raw.replace(b'"importance":0.8', b'"importance":' + b"9" * 5000), BadInput),
}


class TestDamage:
    """The error names the bad line, and no line is imported, neither before nor after it."""

    async def test_bad_line_imports_nothing(self, opener: Opener, tmp_path: Path):
        memory = await opener(user="ada")
        await memory.remember("Ada prefers metric units.")
        await memory.semantic.search("units", min_relevance=0.0)
        await memory.procedural.save("deploy", "Push a tag.")
        await memory.scoped(session="s1").record_turn("Hello there.", "Hello.")
        memory.working.set_task("Write the report")
        await memory.export(tmp_path / "a.jsonl")
        exported = (tmp_path / "a.jsonl").read_bytes()
        other = await opener(user="fresh")
        failures: list[str] = []
        for number, (tier, changes) in enumerate(BAD_LINES):
            (tmp_path / "a.jsonl").write_bytes(exported)
            rewrite(tmp_path / "a.jsonl", partial(damage, tier=tier, changes=changes))
            fresh = other.scoped(user=f"fresh {number}", agent=f"fresh {number}")
            with Case(failures, tier, changes), pytest.raises(BadInput, match=r"line \d"):
                await fresh.import_from(tmp_path / "a.jsonl")
            with Case(failures, tier, changes):
                await fresh.export(tmp_path / "empty.jsonl", overwrite=True)
                assert len(read(tmp_path / "empty.jsonl")) == 2
        assert not failures, "\n".join(failures)

    async def test_bad_last_line_imports_no_earlier_batches(self, memory: AgentMemory, tmp_path: Path):
        await memory.semantic.add_many([{"content": f"fact number {n}"} for n in range(700)])
        await memory.export(tmp_path / "a.jsonl")
        rewrite(tmp_path / "a.jsonl", lambda lines: lines[-2].update(importance=7))
        fresh = memory.scoped(user="fresh")
        with pytest.raises(BadInput, match="line 701"):
            await fresh.import_from(tmp_path / "a.jsonl")
        assert await list_facts(fresh) == []

    async def test_damaged_file_imports_nothing(self, opener: Opener, tmp_path: Path):
        memory = await opener(user="ada")
        await memory.remember("Ada prefers metric units.", importance=0.8)
        await memory.export(tmp_path / "a.jsonl")
        raw = (tmp_path / "a.jsonl").read_bytes()
        failures: list[str] = []
        for name, (spoil, error) in SPOILT_FILES.items():
            (tmp_path / "a.jsonl").write_bytes(spoil(raw))
            fresh = memory.scoped(user=name)
            with Case(failures, name):
                assert (tmp_path / "a.jsonl").read_bytes() != raw
                with pytest.raises(error):
                    await fresh.import_from(tmp_path / "a.jsonl")
            with Case(failures, name):
                assert await list_facts(fresh) == []
        assert not failures, "\n".join(failures)
