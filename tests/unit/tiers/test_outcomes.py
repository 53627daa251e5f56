"""Rates say how much is known, and a procedure that falls is demoted while one that merely wavers is not."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.tiers.outcomes import (
    NOTES_KEPT,
    RECENT,
    UNTRIED,
    Outcomes,
    as_json,
    from_json,
    promise,
    rank,
    wilson,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def played(results: str, start: Outcomes = Outcomes()) -> Outcomes:
    """`+` worked, `-` failed."""
    for result in results:
        start = start.after(result == "+", NOW)
    return start


class TestWilson:
    @pytest.mark.parametrize(
        ("successes", "trials", "lower", "upper"),
        [
            (0, 10, 0.0, 0.2775),
            (1, 1, 0.2065, 1.0),
            (5, 10, 0.2366, 0.7634),
            (8, 10, 0.4902, 0.9433),
            (10, 10, 0.7225, 1.0),
            (81, 263, 0.2553, 0.3662),  # the worked example of Newcombe 1998, table I, method 3
        ],
    )
    def test_it_agrees_with_published_values(self, successes: int, trials: int, lower: float, upper: float):
        found = wilson(successes, trials)
        assert found.lower == pytest.approx(lower, abs=5e-5)
        assert found.upper == pytest.approx(upper, abs=5e-5)
        assert (found.rate, found.trials) == (successes / trials, trials)

    def test_of_nothing_nothing_is_known(self):
        found = wilson(0, 0)
        assert (found.rate, found.lower, found.upper, found.trials) == (0.0, 0.0, 1.0, 0)

    @given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
    def test_the_rate_lies_between_its_bounds(self, counts: tuple[int, int]):
        found = wilson(*counts)
        assert 0.0 <= found.lower <= found.rate <= found.upper <= 1.0
        assert found.lower < found.upper

    @given(st.integers(0, 200), st.integers(1, 200))
    def test_a_success_raises_the_lower_bound_and_a_failure_lowers_it(self, successes: int, failures: int):
        here = wilson(successes, successes + failures).lower
        assert wilson(successes + 1, successes + failures + 1).lower > here
        assert wilson(successes, successes + failures + 1).lower <= here

    @pytest.mark.parametrize("trials", [3, 5, 10, 30])
    def test_it_covers_what_it_claims_with_few_trials_too(self, trials: int):
        shares = [(step + 0.5) / 200 for step in range(200)]
        covered = [
            sum(
                math.comb(trials, k) * p**k * (1 - p) ** (trials - k)
                for k in range(trials + 1)
                if wilson(k, trials).lower <= p <= wilson(k, trials).upper
            )
            for p in shares
        ]
        assert sum(covered) / len(covered) >= 0.945


class TestRank:
    def test_much_evidence_beats_a_lucky_first_try(self):
        assert rank(played("+++++++++-")) > rank(played("+"))

    @pytest.mark.parametrize("better", ["+", "++-", "+++--", "++++++-----"])
    def test_what_worked_more_often_than_not_goes_before_the_untried(self, better: str):
        assert rank(played(better)) > rank(Outcomes())

    @pytest.mark.parametrize("worse", ["-", "--", "-+-", "+---------", "-" * 50])
    def test_what_mostly_failed_goes_after_the_untried(self, worse: str):
        assert rank(played(worse)) < rank(Outcomes())

    def test_the_untried_count_as_one_success_in_two(self):
        assert wilson(1, 2).lower == UNTRIED

    def test_the_demoted_go_last(self):
        fallen = played("+" * 100 + "-" * 8)
        assert fallen.demoted
        assert fallen.success_rate.lower > 0.8
        assert rank(fallen) < rank(played("-" * 20))

    def test_promise_is_even_when_nothing_is_known_and_follows_recent_trials_after_a_fall(self):
        assert promise(Outcomes()) == 0.5
        assert promise(played("+" * 10)) > 0.8
        assert promise(played("+" * 100 + "-" * 10)) < 0.2


class TestDemotion:
    def test_a_run_of_failures_after_a_good_history_demotes(self):
        one_less = played("+" * 20 + "-" * 6)
        assert not one_less.demoted
        assert one_less.after(False, NOW).demoted

    def test_a_good_one_that_fails_now_and_then_is_not_demoted(self):
        assert not played("+" * 20 + "---" + "+" * 5 + "--").demoted

    @pytest.mark.parametrize("results", ["-" * 40, "+-" * 20, "--------+-" * 4, "+++" + "-" * 3])
    def test_one_that_was_never_better_has_not_fallen(self, results: str):
        assert not played(results).demoted

    def test_without_a_history_older_than_the_window_nothing_is_said(self):
        assert not played("-" * RECENT).demoted
        assert not played("+++++-----").demoted

    def test_it_stays_demoted_while_it_fails_however_long(self):
        # Mutant: comparing with the history only, which after enough failures is a history of failures.
        state = played("+" * 30 + "-" * 9)
        for _ in range(300):
            assert state.demoted
            state = state.after(False, NOW)

    def test_it_is_restored_when_its_recent_trials_are_back_at_the_old_level(self):
        state = played("+" * 20 + "-" * 10)
        assert state.bar is not None
        needed = math.ceil(state.bar * RECENT)
        assert needed == 8
        state = played("+" * (needed - 1), state)
        assert state.demoted
        assert not state.after(True, NOW).demoted

    @pytest.mark.parametrize("share", [0.95, 0.8, 0.5])
    def test_of_steady_procedures_hardly_any_is_ever_demoted(self, share: float):
        chance = random.Random(7)
        demoted = 0
        for _ in range(200):
            state = Outcomes()
            for _ in range(200):
                state = state.after(chance.random() < share, NOW)
                if state.demoted:
                    demoted += 1
                    break
        assert demoted / 200 < 0.12

    def test_a_clear_fall_is_noticed_soon(self):
        chance = random.Random(7)
        took = []
        for _ in range(200):
            state = Outcomes()
            for _ in range(40):
                state = state.after(chance.random() < 0.9, NOW)
            trials = 0
            while not state.demoted and trials < 60:
                state = state.after(chance.random() < 0.3, NOW)
                trials += 1
            took.append(trials)
        assert sorted(took)[100] <= 12
        assert sum(one < 60 for one in took) / 200 > 0.9


class TestKeeping:
    def test_the_mean_is_over_the_trials_that_were_timed(self):
        state = Outcomes().after(True, NOW, seconds=2.0).after(True, NOW).after(False, NOW, seconds=4.0)
        assert (state.trials, state.timed, state.mean_seconds) == (3, 2, 3.0)
        assert Outcomes().mean_seconds is None

    def test_the_last_notes_are_kept_and_the_window_is_bounded(self):
        state = Outcomes()
        for number in range(50):
            state = state.after(number % 2 == 0, NOW + timedelta(seconds=number), note=f"note {number}")
        assert [note.text for note in state.notes] == [f"note {number}" for number in range(50 - NOTES_KEPT, 50)]
        assert (state.notes[-1].at, state.notes[-1].success) == (NOW + timedelta(seconds=49), False)
        assert len(state.recent) == RECENT

    def test_an_outcome_without_a_note_pushes_none_out(self):
        state = Outcomes().after(False, NOW, note="the disk was full")
        assert [note.text for note in played("+" * 100, state).notes] == ["the disk was full"]

    @given(
        st.lists(st.tuples(st.booleans(), st.none() | st.text(max_size=8), st.none() | st.floats(0, 1e9)), max_size=60)
    )
    def test_what_is_kept_as_json_comes_back_the_same(self, trials: list[tuple[bool, str | None, float | None]]):
        state = Outcomes()
        for success, note, seconds in trials:
            state = state.after(success, NOW, note=note, seconds=seconds)
        assert from_json(json.loads(json.dumps(as_json(state)))) == state
        assert state.trials == len(trials)
        assert state.successes == sum(success for success, _, _ in trials)
        assert state.recent == tuple(success for success, _, _ in trials)[-RECENT:]
