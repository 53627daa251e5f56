"""The in-memory store: plain dictionaries, exact answers, no durability."""

from recollect.stores.in_memory.store import InMemoryStore

__all__ = ["InMemoryStore"]
