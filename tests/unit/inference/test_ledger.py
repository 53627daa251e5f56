"""What models have cost: by model, in tokens and dollars, and up to a limit."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from recollect.errors import ModelFailed, SpendLimitReached
from recollect.inference.chat import Usage
from recollect.inference.ledger import Ledger, Spent
from recollect.inference.prices import FREE, Price, price_of

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
def test_a_price_is_what_its_maker_asks(name: str, usage: Usage, dollars: float):
    price = price_of(name)
    assert price is not None
    assert price.of(usage.read, usage.written, usage.cached, usage.kept) == pytest.approx(dollars)


@pytest.mark.parametrize("suffix", ["-20251001", "-2025-10-01", "-latest"])
def test_dated_versions_cost_the_same(suffix: str):
    assert price_of(HAIKU + suffix) == price_of(HAIKU)


@pytest.mark.parametrize("name", ["openai:gpt-99", "openai:gpt-5-mini-turbo", "ollama:llama3", "", "openai:"])
def test_what_the_table_does_not_know_has_no_price(name: str):
    assert price_of(name) is None


def test_every_model_is_added_up_by_itself():
    ledger = Ledger()
    price = Price(2.0, 10.0, cached=1.0)
    ledger.talked("a", Usage(read=100, written=10, cached=50), price)
    ledger.talked("a", Usage(read=1, written=2), price)
    ledger.embedded("b", 500, Price(1.0))
    ledger.talked("c", Usage(read=7), None)
    dollars = (50 * 2 + 50 * 1 + 10 * 10 + 1 * 2 + 2 * 10) / 1e6
    assert [replace(one, usd=None) for one in ledger.spent] == [
        Spent("a", calls=2, read=101, cached=50, written=12, usd=None),
        Spent("b", calls=1, embedded=500, usd=None),
        Spent("c", calls=1, read=7, usd=None),
    ]
    assert [one.usd for one in ledger.spent] == [pytest.approx(dollars), pytest.approx(0.0005), None]


def test_without_a_limit_nothing_is_refused():
    ledger = Ledger()
    ledger.talked(HAIKU, Usage(read=10**12), price_of(HAIKU))
    ledger.check(HAIKU)


@pytest.mark.parametrize(
    ("ledger", "said"),
    [
        (Ledger(usd=0.001), r"\$0\.0010 of llm_budget_usd=0\.001"),
        (Ledger(tokens=1000), "1,000 of llm_budget_tokens=1,000"),
    ],
    ids=["dollars", "tokens"],
)
def test_at_the_limit_it_is_not_asked_and_that_is_said_once(
    ledger: Ledger, said: str, caplog: pytest.LogCaptureFixture
):
    ledger.talked(HAIKU, Usage(read=999), price_of(HAIKU))
    ledger.check(HAIKU)
    ledger.talked("another", Usage(read=1), price_of(HAIKU))
    with caplog.at_level(logging.WARNING, "recollect"):
        for _ in range(3):
            with pytest.raises(SpendLimitReached, match=f"was not asked, {said} being spent; raise the limit"):
                ledger.check(HAIKU)
    assert len(caplog.records) == 1
    assert issubclass(SpendLimitReached, ModelFailed)


def test_embedding_goes_on_at_the_limit_and_does_not_count_towards_it():
    """Without its embedder a memory could store nothing; there is no offline way to go."""
    ledger = Ledger(usd=0.01, tokens=10)
    ledger.embedded("voyage:voyage-3.5", 10**9, price_of("voyage:voyage-3.5"))
    ledger.check(HAIKU)


def test_a_model_on_ones_own_machine_costs_nothing_in_dollars_and_counts_in_tokens():
    ledger = Ledger(usd=0.001, tokens=100)
    ledger.talked("local", Usage(read=99), FREE)
    ledger.check("local")
    ledger.talked("local", Usage(read=1), FREE)
    with pytest.raises(SpendLimitReached, match="llm_budget_tokens"):
        ledger.check("local")


def test_threads_lose_nothing():
    ledger = Ledger()

    def work() -> None:
        for _ in range(500):
            ledger.talked("a", Usage(read=1), FREE)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.spent[0].read == 2000
