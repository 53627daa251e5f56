"""The public names, and nothing else."""

import importlib
import typing
from typing import TYPE_CHECKING

from recollect.errors import (
    BadInput,
    BadQuery,
    BadSettings,
    BadVector,
    Conflict,
    EmbedderFailed,
    EmbeddingModelMismatch,
    InferenceError,
    LeaseHeld,
    ModelDamaged,
    ModelFailed,
    ModelNotInstalled,
    NotFound,
    PlanChanged,
    RecollectError,
    SchemaTooNew,
    SecretRefused,
    StepFailed,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TaskError,
    TaskPoisoned,
    UnknownOutcome,
    Unsupported,
)
from recollect.settings import TIERS, MemoryTier, Settings
from recollect.values import Context, Hit, MemoryItem, Scope

if TYPE_CHECKING:
    from recollect.agent.agent import AgentWithMemory
    from recollect.agent.prompt import create_memory_aware_prompt
    from recollect.lifecycle.report import LifecycleReport
    from recollect.memory import AgentMemory
    from recollect.runtime.resume import ResumableAgent
    from recollect.runtime.step import StepContext, step
    from recollect.tiers.consolidate import ConsolidationReport
    from recollect.tiers.conversation import ConversationMemory
    from recollect.tiers.episodic import EpisodicMemory
    from recollect.tiers.procedural import ProceduralMemory
    from recollect.tiers.semantic import SemanticMemory
    from recollect.tiers.working import WorkingMemory

__version__ = "0.1.0"

# Loaded when they are first asked for: a program that imports us for an error's name does not wait for numpy.
_AT_FIRST_USE = {
    "AgentMemory": "recollect.memory",
    "AgentWithMemory": "recollect.agent.agent",
    "ConsolidationReport": "recollect.tiers.consolidate",
    "ConversationMemory": "recollect.tiers.conversation",
    "EpisodicMemory": "recollect.tiers.episodic",
    "LifecycleReport": "recollect.lifecycle.report",
    "ProceduralMemory": "recollect.tiers.procedural",
    "ResumableAgent": "recollect.runtime.resume",
    "SemanticMemory": "recollect.tiers.semantic",
    "StepContext": "recollect.runtime.step",
    "WorkingMemory": "recollect.tiers.working",
    "create_memory_aware_prompt": "recollect.agent.prompt",
    "step": "recollect.runtime.step",
}


def __getattr__(name: str) -> typing.Any:
    if name not in _AT_FIRST_USE:
        raise AttributeError(f"module 'recollect' has no attribute {name!r}")
    value = getattr(importlib.import_module(_AT_FIRST_USE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "TIERS",
    "AgentMemory",
    "AgentWithMemory",
    "BadInput",
    "BadQuery",
    "BadSettings",
    "BadVector",
    "Conflict",
    "ConsolidationReport",
    "Context",
    "ConversationMemory",
    "EmbedderFailed",
    "EmbeddingModelMismatch",
    "EpisodicMemory",
    "Hit",
    "InferenceError",
    "LeaseHeld",
    "LifecycleReport",
    "MemoryItem",
    "MemoryTier",
    "ModelDamaged",
    "ModelFailed",
    "ModelNotInstalled",
    "NotFound",
    "PlanChanged",
    "ProceduralMemory",
    "RecollectError",
    "ResumableAgent",
    "SchemaTooNew",
    "Scope",
    "SecretRefused",
    "SemanticMemory",
    "Settings",
    "StepContext",
    "StepFailed",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "TaskError",
    "TaskPoisoned",
    "UnknownOutcome",
    "Unsupported",
    "WorkingMemory",
    "create_memory_aware_prompt",
    "step",
]
