"""Export, import, migration, restoring of backups, and change of the embedding model."""

from recollect.portability.migration import migrate_store
from recollect.portability.reembed import reembed_store
from recollect.portability.restore import restore_store

__all__ = ["migrate_store", "reembed_store", "restore_store"]
