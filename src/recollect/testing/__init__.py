"""The promises of a store as tests that anybody can run against a backend of their own.

Subclass the contracts that your backend keeps, and give them the fixtures they ask for:

- `clock`: a `ManualClock`, which the store under test takes its time from;
- `store`: an open, empty store;
- `reopen`: for `DurableContract`, an async function that closes the store and opens what it left behind.

Tests are coroutines: install pytest-asyncio.
"""

import pytest

pytest.register_assert_rewrite(
    "recollect.testing.durable",
    "recollect.testing.erasing",
    "recollect.testing.expiry",
    "recollect.testing.filters",
    "recollect.testing.gathering",
    "recollect.testing.health",
    "recollect.testing.items",
    "recollect.testing.log",
    "recollect.testing.models",
    "recollect.testing.moving",
    "recollect.testing.search",
    "recollect.testing.tasks",
)

# Imported only now, so that their assertions explain themselves when they fail.
from recollect.testing.clock import ManualClock  # noqa: E402
from recollect.testing.durable import DurableContract  # noqa: E402
from recollect.testing.erasing import (  # noqa: E402
    ErasingContract,
    ErasingFiles,
    ErasingItems,
    ErasingLedger,
    ErasingLogs,
)
from recollect.testing.expiry import ExpiryContract  # noqa: E402
from recollect.testing.filters import FiltersContract  # noqa: E402
from recollect.testing.gathering import GatheringContract  # noqa: E402
from recollect.testing.health import ExaminedContract  # noqa: E402
from recollect.testing.items import ItemsContract  # noqa: E402
from recollect.testing.log import EntriesContract  # noqa: E402
from recollect.testing.models import ModelsContract  # noqa: E402
from recollect.testing.moving import MovingItems, MovingLogs, MovingTasks  # noqa: E402
from recollect.testing.search import SearchContract  # noqa: E402
from recollect.testing.tasks import WorkContract  # noqa: E402


class RecordsContract(ItemsContract, FiltersContract, SearchContract, GatheringContract, ModelsContract, MovingItems):
    """Everything that `Records` promises."""


class LogContract(EntriesContract, MovingLogs):
    """Everything that `Log` promises."""


class TasksContract(WorkContract, ExpiryContract, MovingTasks):
    """Everything that `Tasks` promises."""


__all__ = [
    "DurableContract",
    "ErasingContract",
    "ErasingFiles",
    "ErasingItems",
    "ErasingLedger",
    "ErasingLogs",
    "ExaminedContract",
    "LogContract",
    "ManualClock",
    "RecordsContract",
    "TasksContract",
]
