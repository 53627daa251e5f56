"""`recollect eval`: how good retrieval is on this machine, with this model."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from recollect.errors import BadInput
from recollect.interfaces.cli.grouping import Group
from recollect.interfaces.cli.opening import Caller, command
from recollect.interfaces.cli.output import console, print_json, progress_bar

Report = Callable[[str, int, int], None]

eval_app = typer.Typer(cls=Group, no_args_is_help=True, help="Measure retrieval on public data.")


@eval_app.callback()
def evaluations() -> None:
    """Measure retrieval on public data."""


@eval_app.command("locomo")
@command
def eval_locomo(path: Annotated[Path, typer.Argument(help="locomo10.json")], *, caller: Caller) -> None:
    """Recall of the evidence turns of LoCoMo's questions, categories 1 to 4.

    In a store made for the occasion and removed again; with --store it is a new file or a database without an
    evaluation, and what is written stays. Every conversation is a user of its own, so --user and --session change
    nothing.
    """
    from recollect.evals import locomo
    from recollect.memory import AgentMemory

    conversations = locomo.load(path)
    if caller.store is not None and Path(caller.store).exists():
        raise BadInput(f"{caller.store} exists already; name a new file for the evaluation")

    async def measured(report: locomo.Progress) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="recollect-eval-") as directory:
            async with AgentMemory.open(caller.store or Path(directory) / "locomo.db", tenant="locomo") as memory:
                if (await memory.scoped(user=conversations[0].id).stats()).items:
                    raise BadInput(f"{caller.store} holds an evaluation already; name a new file or another database")
                return await locomo.evaluate(memory, conversations, report)

    result = _with_a_bar(measured, caller)
    print_json(result) if caller.as_json else _show(result)


def _with_a_bar(measured: Callable[[Report], Coroutine[Any, Any, dict[str, Any]]], caller: Caller) -> dict[str, Any]:
    """What is measured, with a bar for each of its stages."""
    with progress_bar(caller.as_json) as bar:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done)

        return asyncio.run(measured(report))


@eval_app.command("redteam")
@command
def eval_redteam(*, caller: Caller) -> None:
    """Scripted injections against this memory and against a plain one, and ordinary texts that should pass.

    In a store made for the occasion and removed again. The rules were written with the first half before their eyes,
    and the second half was written after the rules.
    """
    from recollect.evals.redteam import run
    from recollect.inference.connect import connect_embedder
    from recollect.memory import AgentMemory
    from recollect.settings import Settings

    async def measured(report: run.Progress) -> dict[str, Any]:
        embedding = await connect_embedder(None, await asyncio.to_thread(Settings.load))
        try:
            with tempfile.TemporaryDirectory(prefix="recollect-eval-") as directory:
                async with AgentMemory.open(Path(directory) / "redteam.db", tenant="redteam") as memory:
                    return await run.evaluate(memory, embedding, report)
        finally:
            embedding.close()
            await embedding.release()

    result = _with_a_bar(measured, caller)
    print_json(result) if caller.as_json else _show_redteam(result)


def _show_redteam(result: dict[str, Any]) -> None:
    for half, told in result.items():
        table = Table(title=f"{half}: {told['attacks']['tried']} attacks")
        for column in ("kind", "tried", "came through", "of these quoted", "plain store"):
            table.add_column(column, justify="left" if column == "kind" else "right")
        rows = {**told["attacks"]["by_kind"], "all": told["attacks"]}
        for kind, row in rows.items():
            ours, plain = f"{row['succeeded']} ({row['rate']:.0%})", f"{row['plain']} ({row['plain_rate']:.0%})"
            table.add_row(kind, str(row["tried"]), ours, str(row["of_these_quoted"]), plain)
        console.print(table)
        held = told["ordinary"]
        console.print(f"{half}: {held['held_back']} of {held['texts']} ordinary texts held back ({held['rate']:.1%})")


def _show(result: dict[str, Any]) -> None:
    columns = ("recall@1", "recall@5", "recall@10", "recall@25", "ndcg@10")
    table = Table(title=f"LoCoMo, {result['questions']} questions")
    table.add_column("questions")
    for column in (*columns, "session@5", "session@10"):
        table.add_column(column, justify="right")
    rows = {"all": result, **result["by_category"], **result["by_conversation"]}
    for name, row in rows.items():
        cells = [f"{row['turn'][column]:.3f}" for column in columns]
        cells += [f"{row['session'][f'recall@{k}']:.3f}" for k in (5, 10)]
        table.add_row(name, *cells)
    console.print(table)
    console.print(f"search p50 {result['latency_ms']['p50']} ms, p95 {result['latency_ms']['p95']} ms")
