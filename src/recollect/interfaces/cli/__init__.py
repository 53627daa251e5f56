"""The `recollect` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line: errors of ours are one line on stderr and exit code 3, never a traceback."""
    from recollect.interfaces.cli.app import run

    run()


__all__ = ["main"]
