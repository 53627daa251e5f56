"""O1: a kill between two stores that an act writes to leaves no data without its source, and a retry completes it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.durable.failpoints import FAILPOINTS_VARIABLE
from tests.crash.forkserver import ForkServer
from tests.crash.result_table import Table
from tests.embedders import HashEmbedder
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

Places = dict[str, str]

# The acts and the placements of the tiers in which they write to more than one store.
PLACEMENTS = [
    ("episodes apart", "turn"),
    ("logs and tasks apart", "task"),
    ("logs and tasks apart", "step"),
    ("episodes apart", "step"),
]


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    opened = ForkServer()
    yield opened
    opened.close()


def place_tiers(kind: str, facts: str, other: str) -> Places:
    """Return the store URL of each tier; facts and procedures are in `facts`."""
    if kind == "logs and tasks apart":
        return {"default": facts, "conversation": other, "episodic": other, "checkpoints": other}
    return {"default": facts, "episodic": other}


@dataclass(frozen=True)
class ActRunner:
    """Starts child processes that write, and may be killed between two stores."""

    fork_server: ForkServer
    places: Places
    done_file: Path

    def run(self, user: str, act: str, visit: int | None = None, mutant: str = "") -> bool:
        """Run an act and return whether it finished; with `visit`, kill it at that visit between two stores."""
        self.done_file.unlink(missing_ok=True)
        rules = {} if visit is None else {FAILPOINTS_VARIABLE: f"stores.between=kill9@{visit}"}
        child = self.fork_server.start_child(
            "multi_store_writer", json.dumps(self.places), user, act, self.done_file, mutant, environ=rules
        )
        self.fork_server.wait(child)
        return self.done_file.exists()


@dataclass(frozen=True)
class Contents:
    """The content of the stores, and the part of it that has no source."""

    orphans: list[str]
    messages: int
    episodes: Counter[str]
    facts: int
    trials: int


async def load_contents(places: Places, user: str) -> Contents:
    async with AgentMemory.open(places, user=user, agent=user, session="s", embedder=HashEmbedder()) as memory:
        messages = await memory.conversation.get_last_n(50)
        episodes = await memory.episodic.get_recent(50)
        facts = await memory.semantic.page(50)
        known = await memory.procedural.get("deploy")
        message_ids, episode_ids = {message.id for message in messages}, {episode.id for episode in episodes}
        orphans = [
            f"{fact.content!r} without {id}"
            for fact in facts
            for id in fact.derived_from
            if id not in message_ids | episode_ids
        ]
        turns = [entry.id for entry in episodes if "turn" in entry.metadata]
        orphans += [f"episode {id} of a turn without messages" for id in turns if id not in message_ids]
        trials = 0 if known is None else known.outcomes.trials
        followed = sum(entry.metadata.get("procedure") == "deploy" for entry in episodes)
        failed = sum(entry.kind == "outcome" and entry.metadata.get("success") is False for entry in episodes)
        if trials > followed + failed:
            orphans.append(f"{trials} trials of a procedure, but {followed} steps that used it")
        assert await memory.check() == []
        return Contents(orphans, len(messages), Counter(entry.kind for entry in episodes), len(facts), trials)


# The least number of points between two stores in each act.
LEAST = {"turn": 1, "task": 3, "step": 3}
EXPECTED = {
    "turn": Contents([], 2, Counter(turn=2), 0, 0),
    "task": Contents([], 2, Counter(decision=1, tool_call=1, outcome=1), 1, 2),
    "step": Contents([], 4, Counter(turn=3, decision=1, tool_call=2, outcome=1), 2, 1),
}


async def kill_and_retry(runner: ActRunner, act: str, *, new_user: bool = False) -> int:
    """Kill an act once between any two stores that it writes to, retry it, and return the number of kills.

    With `new_user`, each kill has a new user and a retry of its own. Otherwise one user retries until it finishes.
    """
    user = "ada"
    for visit in count(1):
        user = f"ada{visit}" if new_user else user
        if runner.run(user, act, visit):
            break
        assert (await load_contents(runner.places, user)).orphans == []
        if new_user:
            assert runner.run(user, act)
            assert await load_contents(runner.places, user) == EXPECTED[act]
    assert await load_contents(runner.places, user) == EXPECTED[act]
    if act != "task":  # a second run would be another task
        assert runner.run(user, act)
        assert await load_contents(runner.places, user) == EXPECTED[act]
    return visit - 1


@pytest.mark.promise("O1")
@pytest.mark.parametrize(("kind", "act"), PLACEMENTS)
async def test_kill_between_two_files_leaves_no_orphan_and_retry_completes(
    tmp_path: Path, fork_server: ForkServer, table: Table, kind: str, act: str
):
    # Mutants: `backwards`, below; no `acts` recorded with a step; a trial without its id; an attempt without its name.
    places = place_tiers(kind, str(tmp_path / "one.db"), str(tmp_path / "other.db"))
    kills = await kill_and_retry(ActRunner(fork_server, places, tmp_path / "done"), act, new_user=act == "task")
    table.add_result("O1", f"a {act} killed {kills} times between two files", 0)
    assert kills >= LEAST[act]


@pytest.mark.promise("O1")
@pytest.mark.parametrize(("kind", "act"), PLACEMENTS[:3])
async def test_kill_between_postgres_and_redis_leaves_no_orphan(
    tmp_path: Path, fork_server: ForkServer, table: Table, postgres: Server, kind: str, act: str
):
    name = f"between_{PLACEMENTS.index((kind, act))}"
    redis = RedisServer(tmp_path / "redis").start()
    try:
        places = place_tiers(kind, postgres.create(name), redis.url)
        kills = await kill_and_retry(ActRunner(fork_server, places, tmp_path / "done"), act)
    finally:
        redis.kill()
        postgres.drop(name)
    table.add_result("O1", f"a {act} killed {kills} times between PostgreSQL and Redis", 0)
    assert kills >= LEAST[act]


@pytest.mark.mutant("O1")
@pytest.mark.parametrize("act", ["turn", "task"])
async def test_reversed_write_order_leaves_orphans(tmp_path: Path, fork_server: ForkServer, table: Table, act: str):
    places = place_tiers("episodes apart", str(tmp_path / "one.db"), str(tmp_path / "other.db"))
    runner = ActRunner(fork_server, places, tmp_path / "done")
    found: list[str] = []
    for visit in (1, 2, 3, 4):
        runner.run("ada", act, visit, mutant="backwards")
        found += (await load_contents(places, "ada")).orphans
    table.add_mutant("O1", f"a {act} whose source is written last", len(found))
    assert found
