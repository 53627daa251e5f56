"""Collection of failures, for tests that check many cases."""

from __future__ import annotations

import reprlib
from types import TracebackType

import pytest

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


class Case:
    """A context that adds the failure of its body to `failures`, with the values of the case, instead of raising it.

    After the last case, the test asserts that there are no failures.
    """

    def __init__(self, failures: list[str], *values: object) -> None:
        self._failures = failures
        self._values = values

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, pytest.fail.Exception):
            if str(error).startswith("Timeout"):
                return False  # pytest-timeout ends the test, not only the case
        elif not isinstance(error, Exception):
            return False
        case = ", ".join(map(_SHORT.repr, self._values))
        line = trace.tb_lineno if trace else 0
        failure = f"case {case}, line {line}: {type(error).__name__}: {error}"
        # A worker process cannot send lone surrogates.
        self._failures.append(failure.encode("utf-8", "backslashreplace").decode())
        return True
