"""A store in a PostgreSQL database with pgvector."""

from recollect.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
