"""Messages of provider errors: they give advice and quote no content."""

from __future__ import annotations

from typing import Any

import pytest

from recollect.models.endpoint import ProviderError, error_from_status


def make_error(status: int, body: Any = None) -> ProviderError:
    return error_from_status(status, body)


@pytest.mark.parametrize("kind", ["insufficient_quota", "billing_error"])
def test_billing_errors_name_the_billing_page(kind: str):
    assert "no money left" in str(make_error(429, {"error": {"type": kind}}))


@pytest.mark.parametrize(
    ("body", "message"),
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
def test_only_the_error_type_is_quoted(body: Any, message: str):
    found = make_error(429, body)
    assert message in str(found)
    assert "secret" not in str(found)


@pytest.mark.parametrize(("kind", "status"), [("overloaded_error", 529), ("rate_limit_error", 429), ("whatever", 500)])
def test_error_in_a_stream_gets_the_status_of_its_type(kind: str, status: int):
    found = make_error(200, {"type": "error", "error": {"type": kind}})
    assert f"({status} {kind})" in str(found)
