"""The JSON form of receipts, and their digest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recollect.errors import BadInput
from recollect.stores.erasure import ByteScan, ErasureReceipt

# Written before receipts had `writers_waited`.
OLD_RECEIPT: dict[str, Any] = {
    "recollect_erasure": 1,
    "id": "e1",
    "subject": "ab" * 32,
    "parts": ["tenant", "user"],
    "status": "complete",
    "requested_at": "2026-01-01T00:00:00+00:00",
    "deleted_at": "2026-01-01T00:00:00+00:00",
    "completed_at": "2026-01-02T00:00:00+00:00",
    "erased": {"semantic": 2},
    "rederived": 0,
    "scan": {"files": 2, "bytes": 81920, "pieces": 9, "of": 9, "shared": 0, "found": 0, "words": 0},
    "previous": None,
    "sha256": "574bc064cef08d70fbc4bc4a2c7dcdfa59648dbb16d2a3a2bb8fa10016355f70",
}


def test_receipt_without_writers_waited_keeps_its_digest():
    # Mutant: the field is in the JSON object even if it is 0.
    receipt = ErasureReceipt.from_json(OLD_RECEIPT)
    assert (receipt.scan.writers_waited, receipt.as_json()) == (0.0, OLD_RECEIPT)
    assert receipt.digest == OLD_RECEIPT["sha256"]
    assert "waited" not in str(receipt)


def test_writers_waited_is_decoded_merged_and_part_of_the_digest():
    # Mutants: the field is not decoded; it is decoded as a count; `merge` drops it.
    old = ErasureReceipt.from_json(OLD_RECEIPT)
    receipt = replace(old, scan=old.scan.merge(ByteScan(writers_waited=0.25)).merge(ByteScan(writers_waited=1.5)))
    assert ErasureReceipt.from_json(receipt.as_json()) == receipt
    assert receipt.scan.writers_waited == 1.75
    assert receipt.digest != old.digest
    assert "writers    waited 1.750 s" in str(receipt)


@pytest.mark.parametrize("value", ["1.5", None, True])
def test_writers_waited_that_is_not_a_number_raises_bad_input(value: object):
    scan = {**OLD_RECEIPT["scan"], "writers_waited": value}
    with pytest.raises(BadInput, match="writers_waited is not a number"):
        ErasureReceipt.from_json({**OLD_RECEIPT, "scan": scan})
