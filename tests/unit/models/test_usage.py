"""Usage of models: tokens, cost, and the budget."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from recollect.errors import ModelFailed, SpendLimitReached
from recollect.models.chat import Usage
from recollect.models.usage import FREE_PRICE, ModelUsage, TokenPrice, UsageLedger, find_price

HAIKU = "anthropic:claude-haiku-4-5"


@pytest.mark.parametrize(
    ("name", "usage", "dollars"),
    [
        (HAIKU, Usage(read=1_000_000), 1.0),
        (HAIKU, Usage(written=1_000_000), 5.0),
        (HAIKU, Usage(read=1_000_000, cached=1_000_000), 0.1),
        (HAIKU, Usage(read=1_000_000, kept=1_000_000), 1.25),
        (HAIKU, Usage(read=1_000_000, cached=500_000, kept=250_000, written=100_000), 0.25 + 0.05 + 0.3125 + 0.5),
        ("openai:gpt-5-mini", Usage(read=1_000_000, cached=1_000_000, written=1_000_000), 2.025),
        ("voyage:voyage-3.5", Usage(read=1_000_000), 0.06),
    ],
)
def test_cost_follows_the_price_list(name: str, usage: Usage, dollars: float):
    price = find_price(name)
    assert price is not None
    assert price.calculate_cost(usage.read, usage.written, usage.cached, usage.kept) == pytest.approx(dollars)


@pytest.mark.parametrize("suffix", ["-20251001", "-2025-10-01", "-latest"])
def test_dated_versions_cost_the_same(suffix: str):
    assert find_price(HAIKU + suffix) == find_price(HAIKU)


@pytest.mark.parametrize("name", ["openai:gpt-99", "openai:gpt-5-mini-turbo", "ollama:llama3", "", "openai:"])
def test_unknown_model_has_no_price(name: str):
    assert find_price(name) is None


def test_usage_is_summed_per_model():
    ledger = UsageLedger()
    price = TokenPrice(2.0, 10.0, cached=1.0)
    ledger.record_chat("a", Usage(read=100, written=10, cached=50), price)
    ledger.record_chat("a", Usage(read=1, written=2), price)
    ledger.record_embedding("b", 500, TokenPrice(1.0))
    ledger.record_chat("c", Usage(read=7), None)
    dollars = (50 * 2 + 50 * 1 + 10 * 10 + 1 * 2 + 2 * 10) / 1e6
    assert [replace(usage, usd=None) for usage in ledger.by_model] == [
        ModelUsage("a", calls=2, read=101, cached=50, written=12, usd=None),
        ModelUsage("b", calls=1, embedded=500, usd=None),
        ModelUsage("c", calls=1, read=7, usd=None),
    ]
    assert [usage.usd for usage in ledger.by_model] == [pytest.approx(dollars), pytest.approx(0.0005), None]


def test_without_a_limit_nothing_is_refused():
    ledger = UsageLedger()
    ledger.record_chat(HAIKU, Usage(read=10**12), find_price(HAIKU))
    ledger.check_budget(HAIKU)


@pytest.mark.parametrize(
    ("ledger", "spent"),
    [
        (UsageLedger(usd=0.001), r"\$0\.0010 of llm_budget_usd=0\.001"),
        (UsageLedger(tokens=1000), "1,000 of llm_budget_tokens=1,000"),
    ],
    ids=["dollars", "tokens"],
)
def test_reached_limit_refuses_calls_and_warns_once(ledger: UsageLedger, spent: str, caplog: pytest.LogCaptureFixture):
    ledger.record_chat(HAIKU, Usage(read=999), find_price(HAIKU))
    ledger.check_budget(HAIKU)
    ledger.record_chat("another", Usage(read=1), find_price(HAIKU))
    with caplog.at_level(logging.WARNING, "recollect"):
        for _ in range(3):
            with pytest.raises(SpendLimitReached, match=f"was not called: {spent} is spent; raise the limit"):
                ledger.check_budget(HAIKU)
    assert len(caplog.records) == 1
    assert issubclass(SpendLimitReached, ModelFailed)


def test_embedding_ignores_the_limit():
    # A memory cannot store items without its embedder; there is no fallback.
    ledger = UsageLedger(usd=0.01, tokens=10)
    ledger.record_embedding("voyage:voyage-3.5", 10**9, find_price("voyage:voyage-3.5"))
    ledger.check_budget(HAIKU)


def test_local_model_is_free_but_counts_tokens():
    ledger = UsageLedger(usd=0.001, tokens=100)
    ledger.record_chat("local", Usage(read=99), FREE_PRICE)
    ledger.check_budget("local")
    ledger.record_chat("local", Usage(read=1), FREE_PRICE)
    with pytest.raises(SpendLimitReached, match="llm_budget_tokens"):
        ledger.check_budget("local")


def test_concurrent_threads_lose_no_usage():
    ledger = UsageLedger()

    def work() -> None:
        for _ in range(500):
            ledger.record_chat("a", Usage(read=1), FREE_PRICE)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.by_model[0].read == 2000
