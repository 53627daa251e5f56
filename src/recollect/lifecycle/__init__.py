"""What keeps memory small and true: promote, expire, merge, age, forget."""

from recollect.lifecycle.lifecycle import Lifecycle
from recollect.lifecycle.report import Action, LifecycleReport
from recollect.lifecycle.run import Means, Progress

__all__ = ["Action", "Lifecycle", "LifecycleReport", "Means", "Progress"]
