"""The public names, and nothing else."""

from recollect.errors import (
    BadInput,
    BadQuery,
    BadSettings,
    BadVector,
    Conflict,
    EmbedderFailed,
    EmbeddingModelMismatch,
    InferenceError,
    ModelDamaged,
    ModelFailed,
    ModelNotInstalled,
    NotFound,
    RecollectError,
    SchemaTooNew,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
    Unsupported,
)
from recollect.memory import AgentMemory
from recollect.settings import TIERS, MemoryTier, Settings
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.episodic import EpisodicMemory
from recollect.tiers.procedural import ProceduralMemory
from recollect.tiers.semantic import SemanticMemory
from recollect.tiers.working import WorkingMemory
from recollect.values import Context, Hit, MemoryItem, Scope

__version__ = "0.1.0"

__all__ = [
    "TIERS",
    "AgentMemory",
    "BadInput",
    "BadQuery",
    "BadSettings",
    "BadVector",
    "Conflict",
    "Context",
    "ConversationMemory",
    "EmbedderFailed",
    "EmbeddingModelMismatch",
    "EpisodicMemory",
    "Hit",
    "InferenceError",
    "MemoryItem",
    "MemoryTier",
    "ModelDamaged",
    "ModelFailed",
    "ModelNotInstalled",
    "NotFound",
    "ProceduralMemory",
    "RecollectError",
    "SchemaTooNew",
    "Scope",
    "SemanticMemory",
    "Settings",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Unsupported",
    "WorkingMemory",
]
