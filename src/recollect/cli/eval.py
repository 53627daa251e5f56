"""`recollect eval`: retrieval quality on this machine, with this model."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from recollect.cli.context import CliContext, SubcommandApp
from recollect.cli.output import console, print_json, show_progress
from recollect.errors import BadInput

eval_app = SubcommandApp("Measure retrieval on public data.")


@eval_app.add("locomo")
def evaluate_locomo(path: Annotated[Path, typer.Argument(help="locomo10.json")], *, caller: CliContext) -> None:
    """Measure recall of the evidence turns of LoCoMo's questions, categories 1 to 4.

    Uses a temporary store. With --store it is a new file, or a database without an evaluation, and the data stays.
    Every conversation is a separate user, so --user and --session have no effect.
    """
    from recollect.evals import locomo
    from recollect.memory import AgentMemory

    conversations = locomo.load_conversations(path)
    if caller.store is not None and Path(caller.store).exists():
        raise BadInput(f"{caller.store} exists already; use a new file for the evaluation")

    async def measure() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="recollect-eval-") as directory:
            async with AgentMemory.open(caller.store or Path(directory) / "locomo.db", tenant="locomo") as memory:
                if (await memory.scoped(user=conversations[0].id).stats()).items:
                    raise BadInput(f"{caller.store} has an evaluation already; use a new file or another database")
                return await locomo.evaluate(memory, conversations, progress)

    with show_progress(caller.as_json) as progress:
        result = asyncio.run(measure())
    print_json(result) if caller.as_json else _show_locomo(result)


def _show_locomo(result: dict[str, Any]) -> None:
    """Print a row for all questions, for each category and for each conversation."""
    turn_columns = ("recall@1", "recall@5", "recall@10", "recall@25", "ndcg@10")
    session_columns = ("recall@5", "recall@10")
    table = Table(title=f"LoCoMo, {result['questions']} questions")
    table.add_column("questions")
    for column in (*turn_columns, *(column.replace("recall", "session") for column in session_columns)):
        table.add_column(column, justify="right")
    rows = {"all": result, **result["by_category"], **result["by_conversation"]}
    for name, row in rows.items():
        cells = [row["turn"][column] for column in turn_columns]
        cells += [row["session"][column] for column in session_columns]
        table.add_row(name, *(f"{cell:.3f}" for cell in cells))
    console.print(table)
    console.print(f"search p50 {result['latency_ms']['p50']} ms, p95 {result['latency_ms']['p95']} ms")
