"""Stores per tier, set by a mapping, the environment or `recollect.toml`, and memories over several stores."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory, Settings
from recollect.clock import system_clock
from recollect.errors import BadSettings, Unsupported
from recollect.settings import load_effective, mask_password
from recollect.stores.factory import TIER_PROTOCOLS, list_supported_tiers, open_store, resolve_locations
from tests.embedders import HashEmbedder
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

REDIS = "redis://:secret@cache:6379/0"


def places(directory: Path, **environ: str) -> dict[str, str]:
    options = Settings.load(environ=environ, directory=directory)
    return {tier: url.removeprefix(f"{Path.cwd()}/") for tier, url in resolve_locations(None, options).items()}


class TestTierLocation:
    def test_environment_overrides_file_and_file_overrides_default(self, tmp_path: Path):
        # Mutant: `resolve_locations` reads only `store`.
        assert set(places(tmp_path).values()) == {"recollect.db"}
        (tmp_path / "recollect.toml").write_text(f'store = "all.db"\n[stores]\nepisodic = "{REDIS}"\n')
        assert places(tmp_path) == {
            **dict.fromkeys(("semantic", "procedural", "conversation", "checkpoints"), "all.db"),
            "episodic": REDIS,
        }
        given = places(tmp_path, RECOLLECT_STORES="checkpoints=redis://b default=rest.db", RECOLLECT_STORE="env.db")
        assert (given["checkpoints"], given["episodic"], given["semantic"]) == ("redis://b", "rest.db", "rest.db")

    def test_tier_table_sets_its_store(self, tmp_path: Path):
        (tmp_path / "recollect.toml").write_text(f'[tiers.episodic]\nstore = "{REDIS}"\n')
        assert places(tmp_path)["episodic"] == REDIS
        assert places(tmp_path, RECOLLECT_STORES="episodic=e.db")["episodic"] == "e.db"

    def test_explicit_location_applies_to_every_tier(self, tmp_path: Path):
        options = Settings.load(environ={"RECOLLECT_STORES": f"episodic={REDIS}"}, directory=tmp_path)
        assert set(resolve_locations("memory://", options).values()) == {"memory://"}

    def test_different_spellings_of_a_path_are_one_store(self, tmp_path: Path, monkeypatch):
        # Mutant: locations are compared as written.
        monkeypatch.chdir(tmp_path)
        spelled = {"default": "a.db", "episodic": "./a.db", "semantic": f"sqlite:///{tmp_path}/x/../a.db"}
        assert set(resolve_locations(spelled, Settings()).values()) == {str(tmp_path / "a.db")}

    def test_list_separated_by_commas_names_the_separator(self, tmp_path: Path):
        for text in ("episodic=redis://x,checkpoints=redis://y", "episodic=e.db;default=d.db"):
            with pytest.raises(BadSettings, match="separated by spaces"):
                Settings.load(environ={"RECOLLECT_STORES": text}, directory=tmp_path)
        hosts = "postgresql://a,b/d?options=-c,x"  # a URL may contain commas
        assert places(tmp_path, RECOLLECT_STORES=f"episodic={hosts}")["episodic"] == hosts

    @pytest.mark.parametrize("text", ["episodic", "episodik=redis://x", "working=redis://x"])
    def test_invalid_location_raises_bad_settings(self, tmp_path: Path, text: str):
        with pytest.raises(BadSettings, match="RECOLLECT_STORES"):
            Settings.load(environ={"RECOLLECT_STORES": text}, directory=tmp_path)
        (tmp_path / "recollect.toml").write_text('[stores]\nepisodik = "redis://x"\n')
        with pytest.raises(BadSettings, match=r"recollect\.toml"):
            Settings.load(environ={}, directory=tmp_path)

    def test_passwords_are_masked(self, tmp_path: Path):
        environ = {"RECOLLECT_STORES": f"episodic={REDIS}", "RECOLLECT_STORE": "postgresql://u:pa/ss@h/d"}
        shown = load_effective(environ, tmp_path)
        assert "secret" not in json.dumps([str(value) for value in shown.values()])
        assert "pa/ss" not in str(shown["store"])
        assert "secret" not in repr(Settings.load(environ=environ, directory=tmp_path).stores)
        assert mask_password("postgresql://h/d?user=u&password=p&x=1") == "postgresql://h/d?user=u&password=***&x=1"


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "rediss+cluster"])
def test_unsupported_tier_error_names_supported_backends(scheme: str):
    """The error is raised before anything is opened, whether or not the server runs."""
    from recollect.sync import AgentMemory as Memory

    with pytest.raises(
        Unsupported, match="keeps conversation, episodic, checkpoints and cannot keep semantic"
    ) as shown:
        Memory.open({"default": "memory://", "semantic": f"{scheme}://127.0.0.1:1"}, embedder=HashEmbedder())
    assert "PostgreSQL" in str(shown.value)
    assert f"RECOLLECT_STORES='default=agent.db conversation={scheme}://127.0.0.1:1'" in str(shown.value)


async def test_supported_tiers_match_store_protocols(tmp_path: Path, redis: RedisServer, database: Callable[[], str]):
    # Mutant: Chroma is listed as supporting logs.
    for url in ("memory://", str(tmp_path / "a.db"), f"chroma:{tmp_path / 'chroma'}", redis.url, database()):
        store = await open_store(url, Settings(), system_clock)
        assert list_supported_tiers(url) == [
            tier for tier, protocol in TIER_PROTOCOLS.items() if isinstance(store, protocol)
        ], url
        await store.close()


async def test_memory_over_three_stores_supports_every_operation(
    tmp_path: Path, redis: RedisServer, database: Callable[[], str]
):
    place = {"default": str(tmp_path / "rest.db"), "semantic": database(), "procedural": str(tmp_path / "how.db")}
    place |= dict.fromkeys(("conversation", "episodic", "checkpoints"), redis.url)
    async with AgentMemory.open(place, user="ada", session="s", embedder=HashEmbedder()) as memory:
        await memory.record_turn("Remember that my sister is called Wilhelmina.", "I will.")
        await memory.procedural.save("deploy", "Push a tag.")
        kept = await memory.remember("Ada prefers metric units.", key="user.units")
        await memory.start_task("Write the report")
        await memory.record_step("Begin.", "deploy", "pushed")
        await memory.end_task(True, "It is written.")
        await memory.checkpoints.checkpoint("job", {"n": 1})
        report = await memory.lifecycle.run_once()
        assert [action.tier for action in report.actions["promoted"]] == ["semantic"]
        found = await memory.recall("Which units does Ada prefer? What is the sister called?", 10, min_relevance=0.0)
        assert {hit.tier for hit in found} >= {"semantic", "conversation", "episodic"}
        assert found.warnings == ()
        stats = await memory.stats()
        stored = {name: tier.items for name, tier in stats.tiers.items() if name != "working"}
        assert stored == {"conversation": 4, "episodic": 5, "semantic": 3, "procedural": 1, "checkpoints": 1}
        assert await memory.check() == []
        exported = await memory.export(tmp_path / "all.jsonl")
        assert await memory.forget(kept.id)
        with pytest.raises(Unsupported, match=r"pg_dump|BGSAVE"):
            await memory.backup(tmp_path / "copy")
        assert [name for name in os.listdir(tmp_path) if name.startswith("copy")] == []
    async with AgentMemory.open(tmp_path / "new.db", user="ada", session="s", embedder=HashEmbedder()) as fresh:
        report_in = await fresh.import_from(tmp_path / "all.jsonl")
        assert sum(report_in.added.values()) >= sum(exported.lines.values()) - 2
        assert (await fresh.stats()).tiers["semantic"].items == 3


async def test_recall_skips_tiers_of_an_unavailable_server(tmp_path: Path, redis: RedisServer):
    # Mutant: `query_sources` fails if one source fails.
    place = {"default": str(tmp_path / "facts.db"), **dict.fromkeys(("conversation", "episodic"), redis.url)}
    async with AgentMemory.open(place, user="ada", session="s", embedder=HashEmbedder()) as memory:
        await memory.remember("Ada prefers metric units.")
        await memory.record_turn("I prefer metric units.", "Noted.")
        redis.stop()
        served = await memory.recall("Which units does Ada prefer?")
        assert {hit.tier for hit in served} == {"semantic"}
        assert len(served.warnings) == 2
        assert all("conversation" in warning or "episodic" in warning for warning in served.warnings)
        redis.start()
        again = await memory.recall("Which units does Ada prefer?")
        assert again.warnings == ()
        assert {hit.tier for hit in again} == {"semantic", "episodic"}


async def test_recall_reads_conversation_while_facts_are_unavailable(redis: RedisServer, own_postgres: Server):
    # Mutants: an unavailable turn index fails the whole tier; conversation recall requires the facts.
    place = {"default": own_postgres.create("facts"), **dict.fromkeys(("conversation", "episodic"), redis.url)}
    async with AgentMemory.open(place, user="ada", session="s", embedder=HashEmbedder()) as memory:
        await memory.remember("Ada prefers metric units.")
        await memory.record_turn("I moved to Lisbon and I prefer metric units.", "Noted.")
        own_postgres.crash()
        asked: dict[str, Any] = {"tiers": ("conversation", "semantic"), "min_relevance": 0.0}
        served = await memory.recall("Which metric units does Ada prefer?", **asked)
        assert {hit.tier for hit in served} == {"conversation"}
        shown = " ".join(served.warnings)
        assert "semantic memory could not be read" in shown
        assert "older turns could not be searched" in shown
        assert "statements could not be checked for updates" in shown
        assert "conversation memory" not in shown
        own_postgres.start()
        again = await memory.recall("Which metric units does Ada prefer?", **asked)
        assert again.warnings == ()
        assert "semantic" in {hit.tier for hit in again}
