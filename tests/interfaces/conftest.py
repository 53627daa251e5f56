"""Loads the parser of the command line once, before the tests that would take its warnings for errors of ours."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # typer still imports names that click means to drop; neither is ours.
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer  # noqa: F401
