"""Texts that this process knows again without asking: all of them are dropped when something was erased."""

from __future__ import annotations

from recollect.lifecycle import known
from recollect.lifecycle.claims import clauses_of
from recollect.recall import plan
from recollect.words.stem import stem


def forget_texts() -> None:
    known.forget()
    plan.forget()
    clauses_of.cache_clear()
    stem.cache_clear()
