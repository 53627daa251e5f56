"""What a benchmark prints: progress while it runs, tables at the end, and the same figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# Wide enough for every table when the output goes to a file.
console = Console(width=None if Console().is_terminal else 150)


def progress() -> Progress:
    """Goes to stderr: the tables on stdout can be piped."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> None:
    table = Table(title=title, title_justify="left", caption=note or None, caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()


def save(figures: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds that half, 95 and 99 of a hundred calls stayed below."""
    if not seconds:
        return {"p50": 0.0, "p95": 0.0, "p99": 0.0}
    p50, p95, p99 = np.percentile(np.asarray(seconds) * 1000.0, (50, 95, 99))
    return {"p50": round(float(p50), 4), "p95": round(float(p95), 4), "p99": round(float(p99), 4)}


def ms(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def times(value: float) -> str:
    return f"{value:.2f}×" if value < 10 else f"{value:.0f}×"
