"""The checklist: 35 points, in the order in which a person on call would go through them."""

from __future__ import annotations

from recollect.doctor import access, capacity, configuration, disk, foundation, index, tasks, upkeep
from recollect.doctor.check import Check

CHECKLIST: tuple[Check, ...] = (
    *foundation.CHECKS,
    *configuration.CHECKS,
    *access.CHECKS,
    *index.CHECKS,
    *disk.CHECKS,
    *capacity.CHECKS,
    *upkeep.CHECKS,
    *tasks.CHECKS,
)
