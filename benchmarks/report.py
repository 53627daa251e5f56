"""Output of a benchmark: progress bars while it runs, tables at the end, and the same figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# If the output is a file, 150 columns fit every table.
console = Console(width=None if Console().is_terminal else 150)


def create_progress() -> Progress:
    """Return progress bars on stderr, so that the tables on stdout can be piped."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> None:
    table = Table(title=title, title_justify="left", caption=note or None, caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()


def save_json(figures: dict[str, Any], path: Path | None) -> None:
    """Write the figures to a file; None writes nothing."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")


def summarize(seconds: Sequence[float]) -> dict[str, float]:
    """Return the percentiles 50, 95 and 99 in milliseconds; zeros if there is no value."""
    if not seconds:
        return {"p50": 0.0, "p95": 0.0, "p99": 0.0}
    p50, p95, p99 = np.percentile(np.asarray(seconds) * 1000.0, (50, 95, 99))
    return {"p50": round(float(p50), 4), "p95": round(float(p95), 4), "p99": round(float(p99), 4)}


def format_ms(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def format_ratio(value: float) -> str:
    return f"{value:.2f}×" if value < 10 else f"{value:.0f}×"
