"""The Redis store: logs and tasks on a Redis or Valkey server or cluster."""

from recollect.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
