"""The third scene: a task of 25 steps is killed within the 18th, and another process goes on from there."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

from recollect.interfaces.cli.demo.process import Place, begun, tell
from recollect.interfaces.cli.demo.stage import Stage

STEPS = 25
DEADLY = 18
_TASK = "invoices-of-march"
# A worker that was killed cannot give its lease back; the next one has to wait for it to run out.
_LEASE = 2.0
_NARROW = 70
_LONGER_THAN_ANYBODY_WAITS = 60.0


def act(place: Place, deadly: bool) -> dict[str, Any]:
    from recollect.sync import AgentMemory, ResumableAgent

    effects = Path(place.directory) / "effects.txt"
    executed: list[int] = []

    def made(number: int) -> Any:
        def work(state: dict[str, Any], ctx: Any) -> str:
            executed.append(number)
            _effect(effects, ctx.idempotency_key, number)
            tell(step=number, at=time.perf_counter())
            if deadly and number == DEADLY:
                # The effect has happened, and nobody has noted it yet: the worst moment there is.
                threading.Event().wait(_LONGER_THAN_ANYBODY_WAITS)
            return f"result {number}"

        return work

    with AgentMemory.open(place.store, tenant=place.tenant, user=place.user, agent=place.agent) as memory:
        agent = ResumableAgent(memory, lease_ttl=_LEASE, on_conflict="wait")
        state = agent.run(_TASK, [made(number) for number in range(1, STEPS + 1)])
    return {"executed": executed, "completed": len(state["completed"])}


def show(stage: Stage, place: Place) -> dict[str, float]:
    stage.opens(
        "Killed, and gone on",
        f"A task of {STEPS} steps, each with an effect outside, is killed within step {DEADLY}.",
    )
    before, code = _killed(place)
    died = time.perf_counter()
    first = [line["step"] for line in before]
    _bar(stage, "first process", first, "then SIGKILL")
    after = _resumed(place)
    second = after["executed"]
    _bar(stage, "second process", second, f"steps {second[0]} to {second[-1]}" if second else "nothing to do")
    effects = (Path(place.directory) / "effects.txt").read_text("utf-8").splitlines()
    stage.keep(first=first, exit_code=code, second=second, effects=len(effects))
    by_signal = code == -getattr(signal, "SIGKILL", -1)
    stage.check(by_signal and first == list(range(1, DEADLY + 1)), f"the first one was killed (exit code {code})")
    stage.check(
        second == list(range(DEADLY, STEPS + 1)) and after["completed"] == STEPS,
        f"the second one did steps {DEADLY} to {STEPS}, and none of the {DEADLY - 1} that were done",
    )
    distinct = {line.split()[1] for line in effects}
    stage.check(len(effects) == len(distinct) == STEPS, f"{len(effects)} effects, {len(distinct)} of them distinct")
    if not before:
        return {}
    return {
        "a step, committed to disk": (before[-1]["at"] - before[0]["at"]) / max(len(before) - 1, 1),
        f"from the kill to step {DEADLY} again (the lease is {_LEASE:g} s)": after["began"] - died,
    }


def _killed(place: Place) -> tuple[list[dict[str, Any]], int | None]:
    """The steps that were begun before the process was killed, and how it ended."""
    steps: list[dict[str, Any]] = []
    with begun("killing", place, deadly=True) as child:
        for line in child:
            if "step" in line:
                steps.append(line)
            if line.get("step") == DEADLY:
                return steps, child.kill()
    return steps, None


def _resumed(place: Place) -> dict[str, Any]:
    """What the second process did, and when it began."""
    told: dict[str, Any] = {}
    with begun("killing", place, deadly=False) as child:
        for line in child:
            told.setdefault("began", time.perf_counter())
            told |= line
        child.ended()
    return told


def _bar(stage: Stage, who: str, steps: list[int], what: str) -> None:
    squares = "".join(stage.marks.done if number in steps else " " for number in range(1, STEPS + 1))
    if stage.console.width < _NARROW:
        stage.line(" ", f"{who}, {what}:")
        stage.line(" ", squares)
    else:
        stage.line(" ", f"{who:<15}{squares}  {what}")


def _effect(effects: Path, key: str, number: int) -> None:
    """The world outside: what it has seen under a key it does not do again, as a payment service would."""
    seen = effects.read_text("utf-8") if effects.exists() else ""
    if key not in seen:
        with effects.open("a", encoding="utf-8") as file:
            file.write(f"{key} step-{number}\n")
