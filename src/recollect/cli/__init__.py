"""The `recollect` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line; errors are one line on stderr and an exit code, never a traceback."""
    try:
        from recollect.cli.app import run_app

        run_app()
    except KeyboardInterrupt:  # also during the imports
        raise SystemExit(130) from None
