"""The default store: one SQLite file."""

from recollect.stores.sqlite.backup import change_key
from recollect.stores.sqlite.connection import EncryptionKey, create_key_file, load_key, read_key_file
from recollect.stores.sqlite.store import SqliteStore

__all__ = ["EncryptionKey", "SqliteStore", "change_key", "create_key_file", "load_key", "read_key_file"]
