"""Contract tests on all backends."""

from __future__ import annotations

import pytest

from recollect.testing import (
    DurableContract,
    ErasureContract,
    ErasureFilesContract,
    ErasureItemsContract,
    ErasureLedgerContract,
    ErasureLogsContract,
    HealthContract,
    LogContract,
    RecordsContract,
    TasksContract,
)

# An encrypted file, a cluster and a Chroma server run the code of the plain file, the single server and the directory.
# They run the parts of the contract that depend on the files and on the connection.
SQLITE = ["sqlite", "sqlite_encrypted"]
EVERY = ["in_memory", *SQLITE, "postgres"]
PLAIN = ["in_memory", "sqlite", "postgres"]
REDIS = ["redis", "redis_cluster"]
CHROMA = ["chroma", "chroma_server"]


@pytest.mark.parametrize("store", [*PLAIN, "chroma"], indirect=True)
class TestRecords(RecordsContract):
    pass


@pytest.mark.parametrize("store", [*PLAIN, "redis"], indirect=True)
class TestLog(LogContract):
    pass


@pytest.mark.promise("R3")
@pytest.mark.parametrize("store", [*PLAIN, "redis"], indirect=True)
class TestTasks(TasksContract):
    pass


@pytest.mark.parametrize("store", ["redis_cluster"], indirect=True)
class TestCluster:
    """Operations that touch several keys, which must share a slot."""

    test_read_returns_every_field = LogContract.test_read_returns_every_field
    test_same_id_is_appended_once = LogContract.test_same_id_is_appended_once
    test_concurrent_appends_after_a_seq_have_one_winner = (
        LogContract.test_concurrent_appends_after_a_seq_have_one_winner
    )
    test_unexpected_last_seq_rejects_the_batch = LogContract.test_unexpected_last_seq_rejects_the_batch
    test_read_selects_a_range_of_times = LogContract.test_read_selects_a_range_of_times
    test_cap_keeps_the_newest_entries = LogContract.test_cap_keeps_the_newest_entries
    test_hidden_entries_are_readable_until_dropped = LogContract.test_hidden_entries_are_readable_until_dropped
    test_logs_are_isolated = LogContract.test_logs_are_isolated
    test_refused_batch_appends_nothing = LogContract.test_refused_batch_appends_nothing
    test_tails_are_limited_to_owner_and_tier = LogContract.test_tails_are_limited_to_owner_and_tier
    test_checkpoint_returns_the_saved_state = TasksContract.test_checkpoint_returns_the_saved_state
    test_stale_version_raises_conflict = TasksContract.test_stale_version_raises_conflict
    test_concurrent_claims_have_one_winner = TasksContract.test_concurrent_claims_have_one_winner
    test_stale_fence_cannot_write = TasksContract.test_stale_fence_cannot_write
    test_fence_is_never_reused = TasksContract.test_fence_is_never_reused
    test_step_and_checkpoint_are_atomic = TasksContract.test_step_and_checkpoint_are_atomic
    test_every_version_is_kept_without_a_limit = TasksContract.test_every_version_is_kept_without_a_limit
    test_tasks_are_listed_by_id_and_status = TasksContract.test_tasks_are_listed_by_id_and_status
    test_tasks_are_listed_by_prefix = TasksContract.test_tasks_are_listed_by_prefix
    test_tasks_are_isolated = TasksContract.test_tasks_are_isolated
    test_expired_task_is_hidden = TasksContract.test_expired_task_is_hidden
    test_dropped_task_leaves_nothing = TasksContract.test_dropped_task_leaves_nothing


@pytest.mark.parametrize("store", ["chroma_server", "sqlite_encrypted"], indirect=True)
class TestRecordsElsewhere:
    """One operation of each kind."""

    test_get_returns_every_field = RecordsContract.test_get_returns_every_field
    test_batch_is_atomic = RecordsContract.test_batch_is_atomic
    test_stale_version_raises_conflict = RecordsContract.test_stale_version_raises_conflict
    test_deleted_item_is_not_found = RecordsContract.test_deleted_item_is_not_found
    test_spaces_are_isolated = RecordsContract.test_spaces_are_isolated
    test_pages_cover_all_items_once = RecordsContract.test_pages_cover_all_items_once
    test_nearest_is_exact = RecordsContract.test_nearest_is_exact
    test_term_weights_follow_bm25 = RecordsContract.test_term_weights_follow_bm25
    test_candidates_have_cosines_and_term_parts = RecordsContract.test_candidates_have_cosines_and_term_parts
    test_known_at_excludes_later_items = RecordsContract.test_known_at_excludes_later_items
    test_check_of_a_valid_store_is_empty = RecordsContract.test_check_of_a_valid_store_is_empty


@pytest.mark.parametrize("store", EVERY, indirect=True)
class TestErasure(ErasureContract):
    pass


@pytest.mark.parametrize("store", [*EVERY, *REDIS, *CHROMA], indirect=True)
class TestHealth(HealthContract):
    pass


@pytest.mark.parametrize("store", REDIS, indirect=True)
class TestErasureOfLogsAndTasks(ErasureLedgerContract, ErasureLogsContract, ErasureFilesContract):
    """Backends without records."""


@pytest.mark.parametrize("store", CHROMA, indirect=True)
class TestErasureOfRecords(ErasureLedgerContract, ErasureItemsContract):
    """Chroma, which deletes records and keeps bytes of them."""


@pytest.mark.parametrize("store", [*SQLITE, "postgres"], indirect=True)
class TestDurable(DurableContract):
    pass


@pytest.mark.parametrize("store", REDIS, indirect=True)
class TestDurableLogsAndTasks:
    """Backends without records."""

    test_reopen_keeps_entries = DurableContract.test_reopen_keeps_entries
    test_reopen_keeps_leases_and_fences = DurableContract.test_reopen_keeps_leases_and_fences


@pytest.mark.parametrize("store", CHROMA, indirect=True)
class TestDurableRecords:
    """Backends with records only."""

    test_reopen_keeps_items = DurableContract.test_reopen_keeps_items
    test_reopen_keeps_the_model_in_preparation = DurableContract.test_reopen_keeps_the_model_in_preparation
