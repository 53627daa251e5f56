"""Fixtures shared with the flows: memories on every embedded backend, and a clock."""

from __future__ import annotations

from tests.flows.conftest import clock, memory, opener, place

__all__ = ["clock", "memory", "opener", "place"]
