"""The Chroma store: items in a Chroma directory or on a server."""

from recollect.stores.chroma.store import ChromaStore

__all__ = ["ChromaStore"]
