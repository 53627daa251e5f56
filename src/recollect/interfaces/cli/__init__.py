"""The `recollect` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line: errors of ours are one line on stderr and exit code 3, never a traceback."""
    try:
        from recollect.interfaces.cli.app import run

        run()
    except KeyboardInterrupt:  # also while the imports are still under way
        raise SystemExit(130) from None


__all__ = ["main"]
