"""The default store: one SQLite file."""

from recollect.stores.sqlite.key import Key, key_in, key_of, new_key_file
from recollect.stores.sqlite.rekeying import change_key
from recollect.stores.sqlite.store import SqliteStore

__all__ = ["Key", "SqliteStore", "change_key", "key_in", "key_of", "new_key_file"]
