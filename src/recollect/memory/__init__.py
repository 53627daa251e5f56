"""AgentMemory: the one object an application holds; it wires the parts together and holds no policy."""

from recollect.memory.agent_memory import AgentMemory
from recollect.memory.examining import Around, examine_store
from recollect.memory.exporting import ExportReport
from recollect.memory.importing import ImportReport
from recollect.memory.migration import MigrationReport, migrate_store
from recollect.memory.opening import Opening
from recollect.memory.reembedding import reembed_store
from recollect.memory.restoring import Restored, finish_erasures, restore_store
from recollect.memory.stats import Stats
from recollect.memory.task_life import StepRecord, TaskOutcome
from recollect.memory.turn_record import TurnRecord

__all__ = [
    "AgentMemory",
    "Around",
    "ExportReport",
    "ImportReport",
    "MigrationReport",
    "Opening",
    "Restored",
    "Stats",
    "StepRecord",
    "TaskOutcome",
    "TurnRecord",
    "examine_store",
    "finish_erasures",
    "migrate_store",
    "reembed_store",
    "restore_store",
]
