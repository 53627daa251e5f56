"""Who runs what when several processes share the tests."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

_CRASHES = "tests/crash/"
# These are a process or two, one after the other: whoever is free may take them.
_ALONE = ("tests/crash/test_eras", "tests/crash/test_encrypted")
# These share something that takes long to make.
_TOGETHER = ("tests/crash/test_chroma.py", "tests/interfaces/test_demo.py::TestWhatIsSeen")


class Sharing(LoadScopeScheduling):  # type: ignore[misc]  # the package is not typed
    """One test at a time to whoever is free; but all those of crashes, begun with, to one of them.

    Each of those is many processes already, which mostly wait for each other. Two at a time would only be late, and
    taking turns at them would keep everybody from the rest.
    """

    def _split_scope(self, nodeid: str) -> str:
        for group in _TOGETHER:
            if nodeid.startswith(group):
                return group
        return _CRASHES if nodeid.startswith(_CRASHES) and not nodeid.startswith(_ALONE) else nodeid
