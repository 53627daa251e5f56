"""Contract tests for store backends.

Subclass the contracts of the protocols that your backend implements, and provide these fixtures:

- `clock`: a `ManualClock`, the clock of the store under test;
- `store`: an open, empty store;
- `reopen`: for `DurableContract`, an async function that closes the store and opens it again.

Tests are coroutines: install pytest-asyncio.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"recollect.testing.{name}" for name in ("items", "log", "search", "tasks", "whole_store"))
)

# ruff: noqa: E402
# Imported after the registration, so that pytest rewrites their assertions.
from recollect.testing.factories import ManualClock
from recollect.testing.items import ItemsContract, ModelsContract
from recollect.testing.log import LogContract
from recollect.testing.search import FiltersContract, SearchContract
from recollect.testing.tasks import ExpiryContract, TaskWorkContract
from recollect.testing.whole_store import (
    DurableContract,
    ErasureContract,
    ErasureFilesContract,
    ErasureItemsContract,
    ErasureLedgerContract,
    ErasureLogsContract,
    HealthContract,
)


class RecordsContract(ItemsContract, FiltersContract, SearchContract, ModelsContract):
    """Contract of `Records`."""


class TasksContract(TaskWorkContract, ExpiryContract):
    """Contract of `Tasks`."""


__all__ = [
    "DurableContract",
    "ErasureContract",
    "ErasureFilesContract",
    "ErasureItemsContract",
    "ErasureLedgerContract",
    "ErasureLogsContract",
    "HealthContract",
    "LogContract",
    "ManualClock",
    "RecordsContract",
    "TasksContract",
]
