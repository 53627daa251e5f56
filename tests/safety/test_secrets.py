"""The secret policy applies to every public method, as the bytes of the store file show."""

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
from tests.safety import method_cases
from tests.safety.method_cases import CASES, WORKING_CASES, Pool

SECRET = "ghp_" + "aB3dE5gH7jK9mN1pQ2sT4vW6xY8zC0fR7uI5"
# States are stored unchanged or not at all: a secret is refused or logged as a warning.
STORED_UNCHANGED = {
    "checkpoints.checkpoint",
    "checkpoints.skip",
}
# Methods without text arguments that would delete what other methods stored.
DELETING = {
    *("forget", "forget_source", "erase", "semantic.forget", "quarantine.drop", "conversation.clear"),
    *("checkpoints.delete", "lifecycle.run_once"),
}


def stored(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


async def call_methods(path: Path, policy: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Call the methods with a secret in every text, record steps in between, and return the number of refusals."""
    texts = [f"{text} The key is {SECRET}." for text in method_cases.TEXTS]
    monkeypatch.setattr(Pool, "text", lambda self, chance: chance.choice(texts))
    clock, chance, refused = ManualClock(), Random(5), 0
    pool = Pool(path.parent, clock, ids=["x"], owners=["ada"], files=[path.parent / "given.jsonl"])
    options: Any = {"embedder": HashEmbedder(), "clock": clock, "settings": Settings(secrets=policy)}
    async with AgentMemory.open(path, user="ada", session="s", **options) as memory:
        await memory.procedural.save("deploy", "Push a tag.")
        await memory.start_task("plan a trip")
        for name in names * 2:
            try:
                given = {**CASES, **WORKING_CASES}[name](memory, chance, pool)
                answer = await given if inspect.isawaitable(given) else given
                pool.ids += [answer.id] if isinstance(getattr(answer, "id", None), str) else []
            except SecretRefused as error:
                refused += SECRET not in str(error)
            except RecollectError:
                pass
            # Working memory is stored with the next step.
            if name.startswith("working.") or name == "import_from":
                try:
                    await memory.record_step("think", "act()", "done")
                except RecollectError:
                    await memory.start_task("plan another trip")
        await _run_task(memory, policy)
    return refused


async def _run_task(memory: AgentMemory, policy: str) -> None:
    """Run a task with a secret in working memory, and with `refuse` also in the result, which is stored unchanged."""

    async def found(state: dict[str, Any]) -> str:
        return f"The key is {SECRET}." if policy == "refuse" else "a key"

    memory.working.set_task(f"Use the key {SECRET}.")
    with suppress(StepFailed):
        await ResumableAgent(memory, max_attempts=1).run("a run", [found])


async def export_secrets(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write an export with secrets in every tier, including a summary and working memory."""
    async with AgentMemory.open(
        "memory://", user="ada", session="t", embedder=HashEmbedder(), settings=Settings(secrets="allow")
    ) as allowing:
        for n in range(45):
            await allowing.conversation.add_message("user", f"Number {n}: the key is {SECRET}, and please remember it.")
        assert SECRET in str(await allowing.conversation.summary())
        await allowing.remember(f"The key is {SECRET}.")
        await allowing.episodic.store(f"Used {SECRET}.")
        await allowing.procedural.save("login", f"Log in with {SECRET}.")
        allowing.working.set_task(f"use {SECRET}")
        await allowing.working.add(f"in mind: {SECRET}")
        await allowing.export(path)


@pytest.mark.promise("S6")
@pytest.mark.parametrize("policy", ["redact", "refuse"])
async def test_no_method_writes_a_secret_to_the_store(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Mutants: one entry point does not apply the policy: a fact, message, episode, procedure, task, state, step result
    or working memory item; an imported fact, procedure or summary is stored unchanged."""
    await export_secrets(tmp_path / "given.jsonl", monkeypatch)
    names = [name for name in [*CASES, *WORKING_CASES] if name not in DELETING]
    names = [name for name in names if name not in STORED_UNCHANGED or policy == "refuse"]
    refused = await call_methods(tmp_path / "a.db", policy, names, monkeypatch)
    raw = stored(tmp_path / "a.db")
    at = raw.find(SECRET.encode())
    assert at < 0, raw[max(0, at - 300) : at + 60]
    assert b"redacted: github token" in raw or policy == "refuse"
    assert (refused > 15) == (policy == "refuse")


@pytest.mark.parametrize("policy", ["allow", "flag"])
async def test_allowed_secret_is_in_the_store(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The test above would find a secret in the file."""
    await export_secrets(tmp_path / "given.jsonl", monkeypatch)
    await call_methods(tmp_path / "a.db", policy, ["remember", "record_turn", "episodic.store"], monkeypatch)
    raw = stored(tmp_path / "a.db")
    assert SECRET.encode() in raw
    assert (json.dumps(["github token"], separators=(",", ":")).encode() in raw) == (policy == "flag")
