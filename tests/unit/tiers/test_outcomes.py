"""Success rates of procedures: intervals, ranks and demotion."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.tiers.procedural import (
    MAX_NOTES,
    RECENT_TRIALS,
    UNTRIED_RANK,
    TrialOutcomes,
    estimate_success,
    outcomes_from_json,
    outcomes_to_json,
    rank_outcomes,
    wilson_interval,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def add_trials(results: str, start: TrialOutcomes = TrialOutcomes()) -> TrialOutcomes:
    """Add trials to outcomes: `+` succeeded, `-` failed."""
    for result in results:
        start = start.add_trial(result == "+", NOW)
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
    def test_interval_matches_published_values(self, successes: int, trials: int, lower: float, upper: float):
        found = wilson_interval(successes, trials)
        assert found.lower == pytest.approx(lower, abs=5e-5)
        assert found.upper == pytest.approx(upper, abs=5e-5)
        assert (found.rate, found.trials) == (successes / trials, trials)

    def test_interval_of_no_trials_is_0_to_1(self):
        found = wilson_interval(0, 0)
        assert (found.rate, found.lower, found.upper, found.trials) == (0.0, 0.0, 1.0, 0)

    @given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
    def test_rate_lies_between_its_bounds(self, counts: tuple[int, int]):
        found = wilson_interval(*counts)
        assert 0.0 <= found.lower <= found.rate <= found.upper <= 1.0
        assert found.lower < found.upper

    @given(st.integers(0, 200), st.integers(1, 200))
    def test_success_raises_the_lower_bound_and_failure_lowers_it(self, successes: int, failures: int):
        here = wilson_interval(successes, successes + failures).lower
        assert wilson_interval(successes + 1, successes + failures + 1).lower > here
        assert wilson_interval(successes, successes + failures + 1).lower <= here

    @pytest.mark.parametrize("trials", [3, 5, 10, 30])
    def test_interval_has_its_coverage_for_few_trials(self, trials: int):
        shares = [(step + 0.5) / 200 for step in range(200)]
        covered = [
            sum(
                math.comb(trials, k) * p**k * (1 - p) ** (trials - k)
                for k in range(trials + 1)
                if wilson_interval(k, trials).lower <= p <= wilson_interval(k, trials).upper
            )
            for p in shares
        ]
        assert sum(covered) / len(covered) >= 0.945


class TestRank:
    def test_many_trials_rank_above_one_lucky_success(self):
        assert rank_outcomes(add_trials("+++++++++-")) > rank_outcomes(add_trials("+"))

    @pytest.mark.parametrize("better", ["+", "++-", "+++--", "++++++-----"])
    def test_mostly_successful_procedures_rank_above_untried(self, better: str):
        assert rank_outcomes(add_trials(better)) > rank_outcomes(TrialOutcomes())

    @pytest.mark.parametrize("worse", ["-", "--", "-+-", "+---------", "-" * 50])
    def test_mostly_failed_procedures_rank_below_untried(self, worse: str):
        assert rank_outcomes(add_trials(worse)) < rank_outcomes(TrialOutcomes())

    def test_untried_rank_equals_one_success_of_two(self):
        assert wilson_interval(1, 2).lower == UNTRIED_RANK

    def test_demoted_procedures_rank_last(self):
        fallen = add_trials("+" * 100 + "-" * 8)
        assert fallen.demoted
        assert fallen.success_rate.lower > 0.8
        assert rank_outcomes(fallen) < rank_outcomes(add_trials("-" * 20))

    def test_estimate_is_even_without_trials_and_follows_recent_ones(self):
        assert estimate_success(TrialOutcomes()) == 0.5
        assert estimate_success(add_trials("+" * 10)) > 0.8
        assert estimate_success(add_trials("+" * 100 + "-" * 10)) < 0.2


class TestDemotion:
    def test_run_of_failures_after_successes_demotes(self):
        one_less = add_trials("+" * 20 + "-" * 6)
        assert not one_less.demoted
        assert one_less.add_trial(False, NOW).demoted

    def test_occasional_failures_do_not_demote(self):
        assert not add_trials("+" * 20 + "---" + "+" * 5 + "--").demoted

    @pytest.mark.parametrize("results", ["-" * 40, "+-" * 20, "--------+-" * 4, "+++" + "-" * 3])
    def test_procedure_that_was_never_better_is_not_demoted(self, results: str):
        assert not add_trials(results).demoted

    def test_no_demotion_without_history_before_the_window(self):
        assert not add_trials("-" * RECENT_TRIALS).demoted
        assert not add_trials("+++++-----").demoted

    def test_demotion_lasts_while_trials_fail(self):
        # Mutant: recent trials are compared with the history only, which fills up with failures.
        state = add_trials("+" * 30 + "-" * 9)
        for _ in range(300):
            assert state.demoted
            state = state.add_trial(False, NOW)

    def test_demotion_ends_when_recent_trials_reach_the_old_rate(self):
        state = add_trials("+" * 20 + "-" * 10)
        assert state.bar is not None
        needed = math.ceil(state.bar * RECENT_TRIALS)
        assert needed == 8
        state = add_trials("+" * (needed - 1), state)
        assert state.demoted
        assert not state.add_trial(True, NOW).demoted

    @pytest.mark.parametrize("share", [0.95, 0.8, 0.5])
    def test_steady_procedures_are_rarely_demoted(self, share: float):
        chance = random.Random(7)
        demoted = 0
        for _ in range(200):
            state = TrialOutcomes()
            for _ in range(200):
                state = state.add_trial(chance.random() < share, NOW)
                if state.demoted:
                    demoted += 1
                    break
        assert demoted / 200 < 0.12

    def test_clear_decline_is_detected_quickly(self):
        chance = random.Random(7)
        trials_needed = []
        for _ in range(200):
            state = TrialOutcomes()
            for _ in range(40):
                state = state.add_trial(chance.random() < 0.9, NOW)
            trials = 0
            while not state.demoted and trials < 60:
                state = state.add_trial(chance.random() < 0.3, NOW)
                trials += 1
            trials_needed.append(trials)
        assert sorted(trials_needed)[100] <= 12
        assert sum(trials < 60 for trials in trials_needed) / 200 > 0.9


class TestTrialOutcomes:
    def test_mean_covers_only_timed_trials(self):
        state = (
            TrialOutcomes().add_trial(True, NOW, seconds=2.0).add_trial(True, NOW).add_trial(False, NOW, seconds=4.0)
        )
        assert (state.trials, state.timed, state.mean_seconds) == (3, 2, 3.0)
        assert TrialOutcomes().mean_seconds is None

    def test_last_notes_are_kept_and_the_window_is_bounded(self):
        state = TrialOutcomes()
        for number in range(50):
            state = state.add_trial(number % 2 == 0, NOW + timedelta(seconds=number), note=f"note {number}")
        assert [note.text for note in state.notes] == [f"note {number}" for number in range(50 - MAX_NOTES, 50)]
        assert (state.notes[-1].at, state.notes[-1].success) == (NOW + timedelta(seconds=49), False)
        assert len(state.recent) == RECENT_TRIALS

    def test_outcome_without_a_note_evicts_none(self):
        state = TrialOutcomes().add_trial(False, NOW, note="the disk was full")
        assert [note.text for note in add_trials("+" * 100, state).notes] == ["the disk was full"]

    @given(
        st.lists(st.tuples(st.booleans(), st.none() | st.text(max_size=8), st.none() | st.floats(0, 1e9)), max_size=60)
    )
    def test_json_round_trip_is_exact(self, trials: list[tuple[bool, str | None, float | None]]):
        state = TrialOutcomes()
        for success, note, seconds in trials:
            state = state.add_trial(success, NOW, note=note, seconds=seconds)
        assert outcomes_from_json(json.loads(json.dumps(outcomes_to_json(state)))) == state
        assert state.trials == len(trials)
        assert state.successes == sum(success for success, _, _ in trials)
        assert state.recent == tuple(success for success, _, _ in trials)[-RECENT_TRIALS:]
