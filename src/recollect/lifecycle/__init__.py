"""What keeps memory small and true: promote, expire, merge, age, forget, erase."""

from recollect.lifecycle import beside
from recollect.lifecycle.erase import Erasures, Verification
from recollect.lifecycle.lifecycle import Lifecycle
from recollect.lifecycle.report import Action, LifecycleReport
from recollect.lifecycle.run import Means, Progress
from recollect.lifecycle.subject import Subject
from recollect.stores.receipts import ErasureReceipt, Scan

__all__ = [
    "Action",
    "ErasureReceipt",
    "Erasures",
    "Lifecycle",
    "LifecycleReport",
    "Means",
    "Progress",
    "Scan",
    "Subject",
    "Verification",
    "beside",
]
