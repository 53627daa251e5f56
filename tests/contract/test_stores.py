"""Every promise of a store, on every backend that makes it."""

from __future__ import annotations

import pytest

from recollect.testing import (
    DurableContract,
    ErasingContract,
    ErasingFiles,
    ErasingItems,
    ErasingLedger,
    ErasingLogs,
    ExaminedContract,
    LogContract,
    RecordsContract,
    TasksContract,
)

SQLITE = ["sqlite", "sqlite_encrypted"]
EVERY = ["in_memory", *SQLITE, "postgres"]
REDIS = ["redis", "redis_cluster"]
CHROMA = ["chroma", "chroma_server"]


@pytest.mark.parametrize("store", [*EVERY, *CHROMA], indirect=True)
class TestRecords(RecordsContract):
    pass


@pytest.mark.parametrize("store", [*EVERY, *REDIS], indirect=True)
class TestLog(LogContract):
    pass


@pytest.mark.parametrize("store", [*EVERY, *REDIS], indirect=True)
class TestTasks(TasksContract):
    pass


@pytest.mark.parametrize("store", EVERY, indirect=True)
class TestErasing(ErasingContract):
    pass


@pytest.mark.parametrize("store", [*EVERY, *REDIS, *CHROMA], indirect=True)
class TestExamined(ExaminedContract):
    pass


@pytest.mark.parametrize("store", REDIS, indirect=True)
class TestErasingLogsAndTasks(ErasingLedger, ErasingLogs, ErasingFiles):
    """Of a backend that keeps no records."""


@pytest.mark.parametrize("store", CHROMA, indirect=True)
class TestErasingRecords(ErasingLedger, ErasingItems):
    """Of a backend that keeps nothing else."""


@pytest.mark.parametrize("store", ["chroma"], indirect=True)
class TestErasingDirectory(ErasingFiles):
    """Of a Chroma whose files are here."""


@pytest.mark.parametrize("store", [*SQLITE, "postgres"], indirect=True)
class TestDurable(DurableContract):
    pass


@pytest.mark.parametrize("store", REDIS, indirect=True)
class TestDurableLogsAndTasks:
    """Of a backend that keeps no records."""

    test_reopening_keeps_every_entry = DurableContract.test_reopening_keeps_every_entry
    test_reopening_keeps_leases_and_fences = DurableContract.test_reopening_keeps_leases_and_fences


@pytest.mark.parametrize("store", CHROMA, indirect=True)
class TestDurableRecords:
    """Of a backend that keeps nothing else."""

    test_reopening_keeps_every_item = DurableContract.test_reopening_keeps_every_item
    test_preparing_a_model_goes_on_after_reopening = DurableContract.test_preparing_a_model_goes_on_after_reopening
