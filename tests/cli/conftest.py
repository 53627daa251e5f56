"""Import of typer, before pytest turns its deprecation warnings into errors."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # typer still imports deprecated names of click.
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer  # noqa: F401
