"""Logs and tasks on a Redis or Valkey server, or on a cluster of them."""

from recollect.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
