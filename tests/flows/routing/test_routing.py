"""A place for each tier, by a mapping, by the environment or by `recollect.toml`; and everything works over it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory, BadSettings, Settings, Unsupported
from recollect.clock import system_clock
from recollect.settings import effective, shown
from recollect.stores.connect import NEEDS, open_one, routed, tiers_kept_at
from tests.embedders import HashEmbedder
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

REDIS = "redis://:secret@cache:6379/0"


def places(directory: Path, **environ: str) -> dict[str, str]:
    options = Settings.load(environ=environ, directory=directory)
    return {tier: url.removeprefix(f"{Path.cwd()}/") for tier, url in routed(None, options).items()}


class TestWhereATierLives:
    def test_the_environment_comes_before_the_file_and_the_file_before_the_default(self, tmp_path: Path):
        # Mutant: a `store_of` that looks at `store` alone.
        assert set(places(tmp_path).values()) == {"recollect.db"}
        (tmp_path / "recollect.toml").write_text(f'store = "all.db"\n[stores]\nepisodic = "{REDIS}"\n')
        assert places(tmp_path) == {
            **dict.fromkeys(("semantic", "procedural", "conversation", "checkpoints"), "all.db"),
            "episodic": REDIS,
        }
        given = places(tmp_path, RECOLLECT_STORES="checkpoints=redis://b default=rest.db", RECOLLECT_STORE="env.db")
        assert (given["checkpoints"], given["episodic"], given["semantic"]) == ("redis://b", "rest.db", "rest.db")

    def test_a_row_of_the_tiers_says_it_too(self, tmp_path: Path):
        (tmp_path / "recollect.toml").write_text(f'[tiers.episodic]\nstore = "{REDIS}"\n')
        assert places(tmp_path)["episodic"] == REDIS
        assert places(tmp_path, RECOLLECT_STORES="episodic=e.db")["episodic"] == "e.db"

    def test_a_place_that_is_given_is_the_place_of_all(self, tmp_path: Path):
        options = Settings.load(environ={"RECOLLECT_STORES": f"episodic={REDIS}"}, directory=tmp_path)
        assert set(routed("memory://", options).values()) == {"memory://"}

    def test_one_file_is_one_store_however_it_is_spelled(self, tmp_path: Path, monkeypatch):
        # Mutant: places compared as they are spelled.
        monkeypatch.chdir(tmp_path)
        spelled = {"default": "a.db", "episodic": "./a.db", "semantic": f"sqlite:///{tmp_path}/x/../a.db"}
        assert set(routed(spelled, Settings()).values()) == {str(tmp_path / "a.db")}

    def test_a_list_that_is_run_together_by_commas_is_told_how_it_is_parted(self, tmp_path: Path):
        for text in ("episodic=redis://x,checkpoints=redis://y", "episodic=e.db;default=d.db"):
            with pytest.raises(BadSettings, match="parted by blanks"):
                Settings.load(environ={"RECOLLECT_STORES": text}, directory=tmp_path)
        hosts = "postgresql://a,b/d?options=-c,x"  # which may have commas of their own
        assert places(tmp_path, RECOLLECT_STORES=f"episodic={hosts}")["episodic"] == hosts

    @pytest.mark.parametrize("text", ["episodic", "episodik=redis://x", "working=redis://x"])
    def test_what_cannot_be_meant_is_refused(self, tmp_path: Path, text: str):
        with pytest.raises(BadSettings, match="RECOLLECT_STORES"):
            Settings.load(environ={"RECOLLECT_STORES": text}, directory=tmp_path)
        (tmp_path / "recollect.toml").write_text('[stores]\nepisodik = "redis://x"\n')
        with pytest.raises(BadSettings, match=r"recollect\.toml"):
            Settings.load(environ={}, directory=tmp_path)

    def test_no_password_is_ever_shown(self, tmp_path: Path):
        environ = {"RECOLLECT_STORES": f"episodic={REDIS}", "RECOLLECT_STORE": "postgresql://u:pa/ss@h/d"}
        told = effective(environ, tmp_path)
        assert "secret" not in json.dumps([str(value) for value in told.values()])
        assert "pa/ss" not in str(told["store"])
        assert "secret" not in repr(Settings.load(environ=environ, directory=tmp_path).stores)
        assert shown("postgresql://h/d?user=u&password=p&x=1") == "postgresql://h/d?user=u&password=***&x=1"


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "rediss+cluster"])
def test_a_tier_on_a_server_that_cannot_keep_it_names_what_can(scheme: str):
    """Before anything is opened: whether the server runs has nothing to do with it."""
    from recollect.sync import AgentMemory as Memory

    with pytest.raises(Unsupported, match="keeps conversation, episodic, checkpoints and cannot keep semantic") as told:
        Memory.open({"default": "memory://", "semantic": f"{scheme}://127.0.0.1:1"}, embedder=HashEmbedder())
    assert "PostgreSQL" in str(told.value)
    assert f"RECOLLECT_STORES='default=agent.db conversation={scheme}://127.0.0.1:1'" in str(told.value)


async def test_what_is_known_of_engines_beforehand_is_so(
    tmp_path: Path, redis: RedisServer, database: Callable[[], str]
):
    # Mutant: Chroma is said to keep logs.
    for url in ("memory://", str(tmp_path / "a.db"), f"chroma:{tmp_path / 'chroma'}", redis.url, database()):
        store = await open_one(url, Settings(), system_clock)
        assert tiers_kept_at(url) == [tier for tier, protocol in NEEDS.items() if isinstance(store, protocol)], url
        await store.close()


async def test_everything_works_over_a_memory_of_three_stores(
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
        assert [one.tier for one in report.actions["promoted"]] == ["semantic"]
        found = await memory.recall("Which units does Ada prefer? What is the sister called?", 10, min_relevance=0.0)
        assert {hit.tier for hit in found} >= {"semantic", "conversation", "episodic"}
        assert found.warnings == ()
        stats = await memory.stats()
        held = {name: tier.items for name, tier in stats.tiers.items() if name != "working"}
        assert held == {"conversation": 4, "episodic": 5, "semantic": 3, "procedural": 1, "checkpoints": 1}
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


async def test_a_tier_whose_server_is_down_is_left_out_and_the_rest_is_served(tmp_path: Path, redis: RedisServer):
    # Mutant: an `across` that fails with the first source that does.
    place = {"default": str(tmp_path / "facts.db"), **dict.fromkeys(("conversation", "episodic"), redis.url)}
    async with AgentMemory.open(place, user="ada", session="s", embedder=HashEmbedder()) as memory:
        await memory.remember("Ada prefers metric units.")
        await memory.record_turn("I prefer metric units.", "Noted.")
        redis.stop()
        served = await memory.recall("Which units does Ada prefer?")
        assert {hit.tier for hit in served} == {"semantic"}
        assert len(served.warnings) == 2
        assert all("conversation" in one or "episodic" in one for one in served.warnings)
        redis.start()
        again = await memory.recall("Which units does Ada prefer?")
        assert again.warnings == ()
        assert {hit.tier for hit in again} == {"semantic", "episodic"}


async def test_while_the_facts_are_down_what_was_said_is_told_from_its_log(redis: RedisServer, own_postgres: Server):
    # Mutants: an index that fails the whole tier when it is asked how far it is; facts that are needed to tell a turn.
    place = {"default": own_postgres.create("facts"), **dict.fromkeys(("conversation", "episodic"), redis.url)}
    async with AgentMemory.open(place, user="ada", session="s", embedder=HashEmbedder()) as memory:
        await memory.remember("Ada prefers metric units.")
        await memory.record_turn("I moved to Lisbon and I prefer metric units.", "Noted.")
        own_postgres.crash()
        asked: dict[str, Any] = {"tiers": ("conversation", "semantic"), "min_relevance": 0.0}
        served = await memory.recall("Which metric units does Ada prefer?", **asked)
        assert {hit.tier for hit in served} == {"conversation"}
        told = " ".join(served.warnings)
        assert "semantic memory could not be read" in told
        assert "what was said longer ago could not be searched" in told
        assert "whether all that was said is still so could not be looked up" in told
        assert "conversation memory" not in told
        own_postgres.start()
        again = await memory.recall("Which metric units does Ada prefer?", **asked)
        assert again.warnings == ()
        assert "semantic" in {hit.tier for hit in again}
