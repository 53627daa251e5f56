"""`recollect tasks`: where each long-running task stands, and what a person can do about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.clock import system_clock
from recollect.errors import BadInput, NotFound
from recollect.interfaces.cli.counting import age, told
from recollect.interfaces.cli.grouping import Group
from recollect.interfaces.cli.opening import Caller, command
from recollect.interfaces.cli.output import aside, plain_value, print_json, say

if TYPE_CHECKING:
    from recollect.memory import AgentMemory
    from recollect.stores.base import Step, Task

tasks_app = typer.Typer(cls=Group, no_args_is_help=True, help="Look at the long-running tasks of an agent.")

_PAGE = 100
_LINES, _LONGEST = 40, 160
_STATUS = ("ready", "running", "done", "failed", "poisoned", "compensating")


def list_tasks(
    *,
    status: Annotated[
        str | None, typer.Option(help=f"Only those: {', '.join(_STATUS)}.", autocompletion=lambda: list(_STATUS))
    ] = None,
    limit: Annotated[int, typer.Option(help="How many to a page.")] = _PAGE,
    after: Annotated[str | None, typer.Option(help="The id of the last one of the page before.")] = None,
    caller: Caller,
) -> None:
    """List the tasks by id, with their status."""
    if limit < 1:
        raise BadInput(f"--limit is a whole number from 1, not {limit}")
    found = caller.known(lambda m: m.checkpoints.tasks(status, limit=limit, after=after))  # type: ignore[arg-type]
    if caller.as_json:
        print_json([_json(one) for one in found])
        return
    for one in found:
        say(_line(one))
    if len(found) == limit:
        aside(f"for the next page: --after {found[-1].id}")
    if not found:
        narrowed = f"{status} " if status else ""
        aside(f"no {'more ' if after else ''}{narrowed}tasks here for agent {caller.agent!r}")


def show_task(id: Annotated[str, typer.Argument(help="The task's id.")], *, caller: Caller) -> None:
    """Show one with its steps and its newest state. Exit code 1 when there is none."""

    async def look(memory: AgentMemory) -> tuple[Task, list[Step], Any]:
        task = await memory.checkpoints.task(id)
        if task is None:
            raise NotFound(f"there is no task {id!r}")
        return task, await memory.checkpoints.steps(id), await memory.checkpoints.restore(id)

    task, steps, state = caller.known(look)
    if caller.as_json:
        print_json({**_json(task), "steps": [asdict(step) for step in steps], "state": state})
        return
    say(_line(task))
    for step in steps:
        say(f"  {step.key}  {step.status}, {told(step.attempts, 'attempt')}{f': {step.error}' if step.error else ''}")
    say("\n".join(["state:", *_shortened(state)]) if state is not None else "no state was saved yet")


def retry_task(id: Annotated[str, typer.Argument(help="The task's id.")], *, caller: Caller) -> None:
    """Let a poisoned, cancelled or asking task be run again. Exit code 1 when there is none."""
    if not caller.known(lambda m: m.checkpoints.retry(id)):
        raise NotFound(f"there is no task {id!r}")
    print_json({"id": id, "retried": True}) if caller.as_json else say(f"{id} may be run again")


def cancel_task(id: Annotated[str, typer.Argument(help="The task's id.")], *, caller: Caller) -> None:
    """Give a task up; what it did stays done. Exit code 1 when there is none, or when it has ended already."""
    if not caller.known(lambda m: m.checkpoints.cancel(id)):
        raise NotFound(f"there is no task {id!r} that could be given up")
    print_json({"id": id, "cancelled": True}) if caller.as_json else say(f"gave {id} up")


for _name, _function in (("list", list_tasks), ("show", show_task), ("retry", retry_task), ("cancel", cancel_task)):
    tasks_app.command(_name)(command(_function))


def _shortened(state: Any) -> list[str]:
    """The state as indented JSON, no longer than a screen; --json has all of it."""
    lines = json.dumps(state, indent=2, ensure_ascii=False, default=plain_value).splitlines()
    shown = [f"  {line if len(line) <= _LONGEST else f'{line[:_LONGEST]} …'}" for line in lines[:_LINES]]
    return [*shown, *([f"  … {told(len(lines) - _LINES, 'more line')}; --json shows them"] * (len(lines) > _LINES))]


def _line(one: Task) -> str:
    return f"{one.id}  {one.status}, version {one.version}, {one.updated_at:%Y-%m-%d %H:%M}{_held(one)}"


def _held(one: Task) -> str:
    """Who works on it; of a worker that died, since when the task is anybody's."""
    from recollect.stores.leases import leased

    now = system_clock()
    if one.owner is None or one.renewed_at is None or one.lease_ttl is None:
        return ""
    if leased(one, now):
        return f", held by {one.owner}"
    ago = age(abs((now - one.renewed_at - one.lease_ttl).total_seconds()))
    return f", was held by {one.owner}, whose lease ran out {ago} ago; free to be taken"


def _json(one: Task) -> dict[str, Any]:
    return {
        name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in asdict(one).items()
    }
