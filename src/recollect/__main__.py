"""Command line as `python -m recollect`."""

from __future__ import annotations

from recollect.cli import main

if __name__ == "__main__":
    main()
