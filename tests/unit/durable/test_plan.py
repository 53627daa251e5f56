"""Step plans, idempotency keys and backoff."""

from __future__ import annotations

import functools

import pytest

from recollect.durable.steps import (
    Backoff,
    StepOptions,
    build_plan,
    get_name,
    get_options,
    hash_plan,
    is_async,
    make_idempotency_key,
    step,
)
from recollect.errors import BadInput
from recollect.types import Space

SPACE = Space("t", "checkpoints", agent="a")


async def fetch(state):
    """A step."""


@step(retries=2, timeout=3, backoff=0.1, retry_on=(OSError, KeyError), on_unknown="ask")
async def pay(state, ctx):
    """A step with options."""


def test_steps_are_named_by_position_and_function():
    plan = build_plan([fetch, pay, functools.partial(fetch), lambda state: None], SPACE, "task")
    assert [one.name for one in plan] == ["step_0_fetch", "step_1_pay", "step_2_fetch", "step_3_<lambda>"]


def test_step_decorator_returns_the_function():
    assert get_options(pay) == StepOptions(2, 3.0, Backoff(0.1, 30.0), (OSError, KeyError), None, "ask")
    assert get_options(functools.partial(pay)) == get_options(pay)
    assert get_options(fetch) == StepOptions()
    assert step(fetch) is fetch
    assert get_name(pay) == "pay"
    assert is_async(pay)


def test_plan_hash_depends_on_names_and_order():
    assert hash_plan(build_plan([fetch, pay], SPACE, "task")) == hash_plan(build_plan([fetch, pay], SPACE, "task"))
    assert hash_plan(build_plan([fetch, pay], SPACE, "task")) != hash_plan(build_plan([pay, fetch], SPACE, "task"))


def test_idempotency_key_is_unique_per_step():
    # Mutant: the parts are joined without their lengths ("a", "bc" then equals "ab", "c").
    owner, other = Space("t", "checkpoints", agent="a"), Space("t", "checkpoints", agent="b")
    keys = [
        make_idempotency_key(owner, "task", "s"),
        make_idempotency_key(owner, "tas", "ks"),
        make_idempotency_key(other, "task", "s"),
        make_idempotency_key(Space("ta", "checkpoints", agent=""), "task", "s"),
    ]
    assert len(set(keys)) == 4
    assert keys[0] == make_idempotency_key(owner, "task", "s")
    assert len(keys[0]) == 64


def test_backoff_doubles_up_to_its_maximum():
    backoff = Backoff(1.0, 5.0)
    assert [backoff.get_wait(attempt, 1.0) for attempt in (1, 2, 3, 4, 5000)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.get_wait(3, 0.25) == 1.0


@pytest.mark.parametrize(("retries", "attempts"), [(None, 5), (0, 1), (7, 8)])
def test_max_attempts_is_retries_plus_one(retries: int | None, attempts: int):
    assert StepOptions(retries=retries).get_max_attempts(5) == attempts


def test_step_that_is_not_callable_is_refused():
    with pytest.raises(BadInput, match="step 1"):
        build_plan([fetch, "pay"], SPACE, "task")  # type: ignore[list-item]
