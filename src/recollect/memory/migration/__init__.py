"""Everything that a store holds, moved into another: copied, resumed after a crash, and compared at the end."""

from recollect.memory.migration.migrate import migrate_store
from recollect.memory.migration.report import MigrationReport, Moved

__all__ = ["MigrationReport", "Moved", "migrate_store"]
