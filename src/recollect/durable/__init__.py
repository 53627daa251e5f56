"""Tasks that survive a crash: checkpoints, leases with fences, and steps that are not repeated."""

from recollect.durable.checkpoints import Checkpoints, CheckpointVersion
from recollect.durable.events import TaskEvent
from recollect.durable.steps import StepContext, Timing, step
from recollect.durable.task_runner import ResumableAgent

__all__ = ["CheckpointVersion", "Checkpoints", "ResumableAgent", "StepContext", "TaskEvent", "Timing", "step"]
