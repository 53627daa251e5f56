"""Commands that look at the work of an agent: `recollect procedures` and `recollect tasks`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.cli.context import CliContext, SubcommandApp
from recollect.cli.output import format_age, print_json, print_text, to_json_value
from recollect.clock import system_clock
from recollect.errors import NotFound
from recollect.validation import format_count

if TYPE_CHECKING:
    from recollect.memory import AgentMemory
    from recollect.stores.writes import Step, Task
    from recollect.tiers.procedural import Procedure

procedures_app = SubcommandApp("Look at the procedures of an agent.")
tasks_app = SubcommandApp("Look at the long-running tasks of an agent.")

_PAGE_SIZE = 100
_MAX_STATE_LINES, _MAX_LINE_CHARS = 40, 160
_STATUSES = ("ready", "running", "done", "failed", "poisoned", "compensating")
_IdArgument = Annotated[str, typer.Argument(help="The task's id.")]


@procedures_app.add("list")
def list_procedures(
    *,
    tag: Annotated[str | None, typer.Option(help="Only those with this tag.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Only those whose key begins like this.")] = None,
    retired: Annotated[bool, typer.Option("--retired", help="Also retired ones.")] = False,
    caller: CliContext,
) -> None:
    """List the newest version of each, by key, with its success rate."""
    procedures = caller.use_existing_memory(lambda m: m.procedural.all(tag=tag, prefix=prefix, retired=retired))

    def format_procedure(procedure: Procedure) -> str:
        description = f"  {procedure.description}" if procedure.description else ""
        return f"{procedure.key}  {_format_outcomes(procedure)}{description}"

    empty = f"no {'such ' if tag or prefix else ''}procedures here for agent {caller.agent!r}"
    caller.print_page(procedures, format_procedure, encode=_procedure_to_json, empty=empty)


@procedures_app.add("show")
def show_procedure(
    key: Annotated[str, typer.Argument(help="Its key.")],
    *,
    version: Annotated[int | None, typer.Option(help="An older version; default: the newest.")] = None,
    caller: CliContext,
) -> None:
    """Show one with its text, its outcomes and its versions. Exit code 1 when there is none."""

    async def load(memory: AgentMemory) -> tuple[Procedure | None, list[Procedure]]:
        return await memory.procedural.get(key, version), await memory.procedural.history(key)

    procedure, versions = caller.use_existing_memory(load)
    if procedure is None:
        raise NotFound(f"there is no procedure {key!r}" + (f" in version {version}" if versions else ""))
    if caller.as_json:
        history = [_procedure_to_json(old) for old in versions]
        print_json({**_procedure_to_json(procedure), "versions": history})
        return
    print_text(f"{procedure.key}  {_format_outcomes(procedure)}")
    if procedure.description:
        print_text(procedure.description)
    print_text(f"\n{procedure.body}\n")
    for note in procedure.outcomes.notes:
        print_text(f"{note.at:%Y-%m-%d}  {'worked' if note.success else 'failed'}: {note.text}")
    if len(versions) > 1:
        trials = (f"{old.version} ({format_count(old.success_rate.trials, 'trial')})" for old in versions)
        print_text("versions: " + ", ".join(trials))


def _format_outcomes(procedure: Procedure) -> str:
    rate = procedure.success_rate
    outcomes = f"worked {procedure.outcomes.successes} of {rate.trials} times" if rate.trials else "not tried yet"
    demoted = ", demoted" if procedure.demoted else ""
    standing = "" if procedure.current else f", {procedure.standing}"
    return f"version {procedure.version}, {outcomes}{demoted}{standing}"


def _procedure_to_json(procedure: Procedure) -> dict[str, Any]:
    names = ("key", "version", "standing", "description", "tags", "body", "source", "trust", "created_at", "demoted")
    return {
        **{name: getattr(procedure, name) for name in names},
        "success_rate": procedure.success_rate,
        "mean_seconds": procedure.outcomes.mean_seconds,
        "notes": [{"at": note.at, "success": note.success, "text": note.text} for note in procedure.outcomes.notes],
    }


@tasks_app.add("list")
def list_tasks(
    *,
    status: Annotated[
        str | None, typer.Option(help=f"Only those: {', '.join(_STATUSES)}.", autocompletion=lambda: list(_STATUSES))
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The number of tasks per page.")] = _PAGE_SIZE,
    after: Annotated[str | None, typer.Option(help="The last id of the previous page.")] = None,
    caller: CliContext,
) -> None:
    """List the tasks by id, with their status."""
    tasks = caller.use_existing_memory(lambda m: m.checkpoints.tasks(status, limit=limit, after=after))  # type: ignore[arg-type]
    with_status = f"{status} " if status else ""
    empty = f"no {'more ' if after else ''}{with_status}tasks here for agent {caller.agent!r}"
    caller.print_page(tasks, _format_task, limit=limit, empty=empty)


@tasks_app.add("show")
def show_task(id: _IdArgument, *, caller: CliContext) -> None:
    """Show one with its steps and its newest state. Exit code 1 when there is none."""

    async def load(memory: AgentMemory) -> tuple[Task, list[Step], Any]:
        task = await memory.checkpoints.task(id)
        if task is None:
            raise NotFound(f"there is no task {id!r}")
        return task, await memory.checkpoints.steps(id), await memory.checkpoints.restore(id)

    task, steps, state = caller.use_existing_memory(load)
    if caller.as_json:
        print_json({**to_json_value(task), "steps": steps, "state": state})
        return
    print_text(_format_task(task))
    for step in steps:
        error = f": {step.error}" if step.error else ""
        print_text(f"  {step.key}  {step.status}, {format_count(step.attempts, 'attempt')}{error}")
    print_text("no state was saved yet" if state is None else "\n".join(["state:", *_format_state(state)]))


@tasks_app.add("retry")
def retry_task(id: _IdArgument, *, caller: CliContext) -> None:
    """Allow a poisoned, canceled or undecided task to run again. Exit code 1 when there is none."""
    if not caller.use_existing_memory(lambda m: m.checkpoints.retry(id)):
        raise NotFound(f"there is no task {id!r}")
    caller.print_result({"id": id, "retried": True}, f"{id} may be run again")


@tasks_app.add("cancel")
def cancel_task(id: _IdArgument, *, caller: CliContext) -> None:
    """Cancel a task; its completed steps stay done. Exit code 1 when there is none, or when it has ended."""
    if not caller.use_existing_memory(lambda m: m.checkpoints.cancel(id)):
        raise NotFound(f"there is no task {id!r} to cancel")
    caller.print_result({"id": id, "cancelled": True}, f"cancelled {id}")


def _format_state(state: Any) -> list[str]:
    """Return the state as indented JSON, cut to one screen; --json shows all of it."""
    lines = json.dumps(state, indent=2, ensure_ascii=False, default=to_json_value).splitlines()
    shown = [
        f"  {line}" if len(line) <= _MAX_LINE_CHARS else f"  {line[:_MAX_LINE_CHARS]} …"
        for line in lines[:_MAX_STATE_LINES]
    ]
    hidden = len(lines) - len(shown)
    return [*shown, f"  … {format_count(hidden, 'more line')}; --json shows them"] if hidden else shown


def _format_task(task: Task) -> str:
    from recollect.stores.leases import is_leased

    now = system_clock()
    line = f"{task.id}  {task.status}, version {task.version}, {task.updated_at:%Y-%m-%d %H:%M}"
    if task.owner is None or task.renewed_at is None or task.lease_ttl is None:
        return line
    if is_leased(task, now):
        return f"{line}, held by {task.owner}"
    ago = format_age(abs((now - task.renewed_at - task.lease_ttl).total_seconds()))
    return f"{line}, was held by {task.owner}, whose lease expired {ago} ago; free to claim"
