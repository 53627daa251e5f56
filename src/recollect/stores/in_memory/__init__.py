"""The reference store: plain dictionaries in this process, exact answers, gone when it closes."""

from recollect.stores.in_memory.store import InMemoryStore

__all__ = ["InMemoryStore"]
