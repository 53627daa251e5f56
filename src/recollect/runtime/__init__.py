"""What survives a crash: checkpoints of a task, leases with fences, and steps that resume where they stopped."""

from recollect.runtime.checkpoints import Checkpoints, Version
from recollect.runtime.events import Event
from recollect.runtime.resume import ResumableAgent
from recollect.runtime.step import Pace, StepContext, step

__all__ = ["Checkpoints", "Event", "Pace", "ResumableAgent", "StepContext", "Version", "step"]
