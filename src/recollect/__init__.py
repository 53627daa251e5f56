"""Memory for AI agents. Errors are in `recollect.errors`, and the results of calls in `recollect.types`."""

import importlib
import typing
from typing import TYPE_CHECKING

from recollect.errors import RecollectError
from recollect.settings import TIERS, MemoryTier, Settings
from recollect.types import Context, Hit, MemoryItem, Scope

if TYPE_CHECKING:
    from recollect.agent.agent import AgentWithMemory
    from recollect.agent.prompt import create_memory_aware_prompt
    from recollect.durable.steps import StepContext as _StepContext
    from recollect.durable.steps import step
    from recollect.durable.task_runner import ResumableAgent
    from recollect.lifecycle.report import LifecycleReport
    from recollect.memory import AgentMemory
    from recollect.tiers.consolidation import ConsolidationReport
    from recollect.tiers.conversation import ConversationMemory
    from recollect.tiers.episodic import EpisodicMemory
    from recollect.tiers.procedural import ProceduralMemory
    from recollect.tiers.semantic import SemanticMemory
    from recollect.tiers.working import WorkingMemory

    StepContext: typing.TypeAlias = _StepContext[AgentMemory]

__version__ = "0.1.0"

# Imported on first use, so that `import recollect` does not load numpy.
_LAZY_NAMES = {
    "AgentMemory": "recollect.memory",
    "AgentWithMemory": "recollect.agent.agent",
    "ConsolidationReport": "recollect.tiers.consolidation",
    "ConversationMemory": "recollect.tiers.conversation",
    "EpisodicMemory": "recollect.tiers.episodic",
    "LifecycleReport": "recollect.lifecycle.report",
    "ProceduralMemory": "recollect.tiers.procedural",
    "ResumableAgent": "recollect.durable.task_runner",
    "SemanticMemory": "recollect.tiers.semantic",
    "StepContext": "recollect.durable.steps",
    "WorkingMemory": "recollect.tiers.working",
    "create_memory_aware_prompt": "recollect.agent.prompt",
    "step": "recollect.durable.steps",
}


def __getattr__(name: str) -> typing.Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module 'recollect' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "TIERS",
    "AgentMemory",
    "AgentWithMemory",
    "ConsolidationReport",
    "Context",
    "ConversationMemory",
    "EpisodicMemory",
    "Hit",
    "LifecycleReport",
    "MemoryItem",
    "MemoryTier",
    "ProceduralMemory",
    "RecollectError",
    "ResumableAgent",
    "Scope",
    "SemanticMemory",
    "Settings",
    "StepContext",
    "WorkingMemory",
    "create_memory_aware_prompt",
    "step",
]
