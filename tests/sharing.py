"""Distribution of the tests over worker processes."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

_CRASHES = "tests/crash/"
# One or two processes at a time: any worker may take them.
_SINGLE_TESTS = ("tests/crash/test_eras", "tests/crash/test_encrypted")
# Crash tests that mostly wait for a server.
_SERVER_CRASHES = tuple(f"{_CRASHES}test_{x}" for x in ("agent_servers", "between", "chroma", "postgres", "redis"))
# Tests that share a fixture that is slow to create.
_TOGETHER = (
    "tests/crash/test_chroma.py",
    "tests/cli/test_demo.py::TestDemoOutput",
    "tests/unit/models/test_minilm_model.py",
    "tests/test_layout.py",
    "tests/test_promises.py",
)


class Sharing(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """A scheduler that sends single tests to the next free worker, and the crash tests to two workers.

    A crash test starts many processes that mostly wait for each other; more than two at a time would miss deadlines.
    """

    def _split_scope(self, nodeid: str) -> str:
        for group in _TOGETHER:
            if nodeid.startswith(group):
                return group
        if not nodeid.startswith(_CRASHES) or nodeid.startswith(_SINGLE_TESTS):
            return nodeid
        return f"{_CRASHES}servers" if nodeid.startswith(_SERVER_CRASHES) else _CRASHES
