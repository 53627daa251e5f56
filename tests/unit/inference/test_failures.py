"""What a provider's error means: whether to ask again, how long to wait, and words that quote nobody."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from recollect.inference.failures import Trouble, of_status

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


def trouble(status: int, body: Any = None, **headers: str) -> Trouble:
    return of_status(status, {name.replace("_", "-"): value for name, value in headers.items()}, body, lambda: NOW)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 520, 529])
def test_what_passes(status: int):
    assert trouble(status).again


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 413, 422])
def test_what_does_not(status: int):
    assert not trouble(status).again


@pytest.mark.parametrize("kind", ["insufficient_quota", "billing_error"])
def test_money_does_not_come_back_by_waiting(kind: str):
    found = trouble(429, {"error": {"type": kind}})
    assert not found.again
    assert "no money left" in str(found)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": " 0.5 "}, 0.5),
        ({"retry_after_ms": "250", "retry_after": "7"}, 0.25),
        ({"retry_after": "Sun, 15 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry_after": "Sun, 15 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "-5"}, None),
        ({"retry_after": "nan"}, None),
        ({"retry_after": "1e9"}, None),
        ({"retry_after": "9" * 40}, None),
        ({"retry_after": ""}, None),
    ],
)
def test_how_long_it_asks_us_to_wait(headers: dict[str, str], seconds: float | None):
    assert trouble(429, **headers).wait == seconds


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"type": "rate_limit_error", "message": "secret"}}, "(429 rate_limit_error)"),
        ({"error": {"code": "rate_limit_exceeded", "type": "tokens"}}, "(429 rate_limit_exceeded)"),
        ({"type": "odd"}, "(429 odd)"),
        ({"error": {"type": "You, secret, are too fast"}}, "(429)"),
        ({"error": {"type": 5, "code": None}}, "(429)"),
        ({"error": "secret"}, "(429)"),
        ("secret", "(429)"),
        (["secret"], "(429)"),
        (None, "(429)"),
    ],
)
def test_only_the_errors_name_is_repeated(body: Any, said: str):
    found = trouble(429, body)
    assert said in str(found)
    assert "secret" not in str(found)


@pytest.mark.parametrize(("kind", "status"), [("overloaded_error", 529), ("rate_limit_error", 429), ("whatever", 500)])
def test_an_error_in_a_stream_that_began_well_counts_as_what_it_says(kind: str, status: int):
    found = trouble(200, {"type": "error", "error": {"type": kind}})
    assert found.again
    assert f"({status} {kind})" in str(found)
