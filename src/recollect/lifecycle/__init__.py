"""Maintenance of memory: promote, expire, merge, decay and forget."""

from recollect.lifecycle.context import LifecycleContext
from recollect.lifecycle.report import LifecycleAction, LifecycleReport
from recollect.lifecycle.runner import Lifecycle

__all__ = ["Lifecycle", "LifecycleAction", "LifecycleContext", "LifecycleReport"]
