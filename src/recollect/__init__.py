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
from recollect.tiers.semantic import SemanticMemory
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
    "EmbedderFailed",
    "EmbeddingModelMismatch",
    "Hit",
    "InferenceError",
    "MemoryItem",
    "MemoryTier",
    "ModelDamaged",
    "ModelNotInstalled",
    "NotFound",
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
]
