"""A store on a PostgreSQL server with pgvector."""

from recollect.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
