"""An agent with memory around it: a model that recalls before it thinks, calls tools, and goes on after a crash."""

from recollect.agent.agent import AgentWithMemory
from recollect.agent.events import AgentEvent
from recollect.agent.prompt import create_memory_aware_prompt
from recollect.agent.run import Run, Step, ToolUse
from recollect.agent.tools import tool

__all__ = ["AgentEvent", "AgentWithMemory", "Run", "Step", "ToolUse", "create_memory_aware_prompt", "tool"]
