"""Plans, keys and waits: pure, so each rule is a line."""

from __future__ import annotations

import functools

import pytest

from recollect.errors import BadInput
from recollect.runtime.plan import Keys, plan_hash, plan_of
from recollect.runtime.step import Backoff, Options, is_async, name_of, options_of, step
from recollect.values import Space


async def fetch(state):
    """A step."""


@step(retries=2, timeout=3, backoff=0.1, retry_on=(OSError, KeyError), on_unknown="ask")
async def pay(state, ctx):
    """A step that says how."""


def test_steps_are_named_by_place_and_function():
    plan = plan_of([fetch, pay, functools.partial(fetch), lambda state: None])
    assert [one.name for one in plan] == ["step_0_fetch", "step_1_pay", "step_2_fetch", "step_3_<lambda>"]


def test_the_decorator_leaves_the_function_as_it_is():
    assert options_of(pay) == Options(2, 3.0, Backoff(0.1, 30.0), (OSError, KeyError), None, "ask")
    assert options_of(functools.partial(pay)) == options_of(pay)
    assert options_of(fetch) == Options()
    assert step(fetch) is fetch
    assert name_of(pay) == "pay"
    assert is_async(pay)


def test_a_hash_is_of_the_names_in_their_order():
    assert plan_hash(plan_of([fetch, pay])) == plan_hash(plan_of([fetch, pay]))
    assert plan_hash(plan_of([fetch, pay])) != plan_hash(plan_of([pay, fetch]))


def test_a_key_is_one_steps_alone():
    # Mutant: the parts joined without their lengths ("a", "bc" is then the same as "ab", "c").
    owner, other = Space("t", "checkpoints", agent="a"), Space("t", "checkpoints", agent="b")
    keys = [
        Keys(owner, "task").of("s"),
        Keys(owner, "tas").of("ks"),
        Keys(other, "task").of("s"),
        Keys(Space("ta", "checkpoints", agent=""), "task").of("s"),
    ]
    assert len(set(keys)) == 4
    assert keys[0] == Keys(owner, "task").of("s")
    assert len(keys[0]) == 64


def test_waits_double_up_to_the_longest():
    backoff = Backoff(1.0, 5.0)
    assert [backoff.wait(attempt, 1.0) for attempt in (1, 2, 3, 4, 5000)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.wait(3, 0.25) == 1.0


@pytest.mark.parametrize(("retries", "attempts"), [(None, 5), (0, 1), (7, 8)])
def test_retries_come_after_the_first_attempt(retries: int | None, attempts: int):
    assert Options(retries=retries).attempts(5) == attempts


def test_what_is_no_function_is_no_step():
    with pytest.raises(BadInput, match="step 1"):
        plan_of([fetch, "pay"])  # type: ignore[list-item]
