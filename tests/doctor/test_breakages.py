"""Every check in both directions: a healthy memory passes, and one that is hurt in one way fails in that one."""

from __future__ import annotations

import pytest

from recollect.doctor.checklist import CHECKLIST
from tests.doctor.breakages import BREAKAGES, Breakage, Tools
from tests.doctor.ward import Ward

IDS = [check.id for check in CHECKLIST]


def test_the_list_has_35_points_and_each_can_be_broken():
    assert len(IDS) == len(set(IDS)) == 35
    assert {breakage.check for breakage in BREAKAGES} == set(IDS)


async def test_a_healthy_memory_passes(ward: Ward):
    assert await ward.ill() == {}
    report = await ward.examined()
    assert [one.id for one in report.findings] == IDS
    assert {one.id for one in report.findings if one.status != "pass"} == {"access.encryption"}


async def test_an_open_memory_passes(ward: Ward):
    memory = await ward.opened()
    assert await ward.ill() == {}
    assert (await memory.doctor()).healthy


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda one: one.name)
async def test_what_is_broken_is_what_is_found(
    breakage: Breakage, ward: Ward, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    await breakage.do(Tools(ward, request, monkeypatch))
    assert await ward.ill() == {breakage.check: breakage.status}
