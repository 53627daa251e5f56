"""A secret that comes by any public method is treated as the settings say: the bytes of the store are the witness."""

from __future__ import annotations

import inspect
import json
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from recollect import AgentMemory, ResumableAgent
from recollect.errors import RecollectError, SecretRefused, StepFailed
from recollect.settings import Settings
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.safety import doors
from tests.safety.doors import CASES, IN_MIND, Pool

SECRET = "ghp_" + "aB3dE5gH7jK9mN1pQ2sT4vW6xY8zC0fR7uI5"
# A state comes back to the letter or not at all: there a secret is refused, or told of in the log.
TO_THE_LETTER = {"checkpoints.checkpoint", "checkpoints.skip", "checkpoints.encoded"}
# They take no text, and would take away from the file what another method has let in.
TAKE_AWAY = {
    *("forget", "forget_source", "erase", "semantic.forget", "quarantine.drop", "conversation.clear"),
    *("checkpoints.delete", "lifecycle.run_once"),
}


def stored(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


async def played(path: Path, policy: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Call the methods with a secret in every text, and some in between that keep what is in mind; how many refused."""
    told = [f"{text} The key is {SECRET}." for text in doors.TEXTS]
    monkeypatch.setattr(Pool, "text", lambda self, chance: chance.choice(told))
    clock, chance, refused = ManualClock(), Random(5), 0
    pool = Pool(path.parent, clock, ids=["x"], owners=["ada"], files=[path.parent / "given.jsonl"])
    options: Any = {"embedder": HashEmbedder(), "clock": clock, "settings": Settings(secrets=policy)}
    async with AgentMemory.open(path, user="ada", session="s", **options) as memory:
        await memory.procedural.save("deploy", "Push a tag.")
        await memory.start_task("plan a trip")
        for name in names * 2:
            try:
                given = {**CASES, **IN_MIND}[name](memory, chance, pool)
                answer = await given if inspect.isawaitable(given) else given
                pool.ids += [answer.id] if isinstance(getattr(answer, "id", None), str) else []
            except SecretRefused as error:
                refused += SECRET not in str(error)
            except RecollectError:
                pass
            # What is in mind is kept with the next step.
            if name.startswith("working.") or name == "import_from":
                try:
                    await memory.record_step("think", "act()", "done")
                except RecollectError:
                    await memory.start_task("plan another trip")
        await _ran(memory, policy)
    return refused


async def _ran(memory: AgentMemory, policy: str) -> None:
    """A run with a secret in mind, which is no part of its state; a result is, and is kept to the letter."""

    async def found(state: dict[str, Any]) -> str:
        return f"The key is {SECRET}." if policy == "refuse" else "a key"

    memory.working.set_task(f"Use the key {SECRET}.")
    with suppress(StepFailed):
        await ResumableAgent(memory, max_attempts=1).run("a run", [found])


async def given_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export of somebody who lets secrets in, with a summary and something in mind."""
    async with AgentMemory.open(
        "memory://", user="ada", session="t", embedder=HashEmbedder(), settings=Settings(secrets="allow")
    ) as loose:
        for n in range(45):
            await loose.conversation.add_message("user", f"Number {n}: the key is {SECRET}, and please remember it.")
        assert SECRET in str(await loose.conversation.summary())
        await loose.remember(f"The key is {SECRET}.")
        await loose.episodic.store(f"Used {SECRET}.")
        await loose.procedural.save("login", f"Log in with {SECRET}.")
        loose.working.set_task(f"use {SECRET}")
        await loose.working.add(f"in mind: {SECRET}")
        await loose.export(path)


@pytest.mark.parametrize("policy", ["redact", "refuse"])
async def test_no_method_lets_a_secret_into_the_file(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Mutants: any one door without its policy: a fact, a message, an episode, a procedure, a task under way, a state,
    the result of a step, what is in mind meanwhile; and what is imported as it is: a fact, a procedure, a summary."""
    await given_file(tmp_path / "given.jsonl", monkeypatch)
    names = [name for name in [*CASES, *IN_MIND] if name not in TAKE_AWAY]
    names = [name for name in names if name not in TO_THE_LETTER or policy == "refuse"]
    refused = await played(tmp_path / "a.db", policy, names, monkeypatch)
    raw = stored(tmp_path / "a.db")
    at = raw.find(SECRET.encode())
    assert at < 0, raw[max(0, at - 300) : at + 60]
    assert b"redacted: github token" in raw or policy == "refuse"
    assert (refused > 15) == (policy == "refuse")


@pytest.mark.parametrize("policy", ["allow", "flag"])
async def test_let_in_it_is_there(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """So that the test above is known to look where secrets would be."""
    await given_file(tmp_path / "given.jsonl", monkeypatch)
    await played(tmp_path / "a.db", policy, ["remember", "record_turn", "episodic.store"], monkeypatch)
    raw = stored(tmp_path / "a.db")
    assert SECRET.encode() in raw
    assert (json.dumps(["github token"], separators=(",", ":")).encode() in raw) == (policy == "flag")
