"""Every promise of a store, on every backend that makes it."""

from __future__ import annotations

import pytest

from recollect.testing import DurableContract, LogContract, RecordsContract, TasksContract


class TestRecords(RecordsContract):
    pass


class TestLog(LogContract):
    pass


class TestTasks(TasksContract):
    pass


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
class TestDurable(DurableContract):
    pass
