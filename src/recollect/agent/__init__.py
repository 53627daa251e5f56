"""An agent with memory: a model that recalls before it thinks, calls tools, and resumes after a crash."""

from recollect.agent.agent import AgentWithMemory
from recollect.agent.prompt import create_memory_aware_prompt
from recollect.agent.run import AgentEvent, AgentRun, AgentStep, ToolUse
from recollect.agent.tools import tool

__all__ = ["AgentEvent", "AgentRun", "AgentStep", "AgentWithMemory", "ToolUse", "create_memory_aware_prompt", "tool"]
