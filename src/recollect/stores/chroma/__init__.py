"""Records on Chroma, in a directory of this machine or on a server: the engine keeps, this client compares."""

from recollect.stores.chroma.store import ChromaStore

__all__ = ["ChromaStore"]
