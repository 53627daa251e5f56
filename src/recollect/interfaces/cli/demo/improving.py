"""The fifth scene: how something is done gets better, and the success rate says how sure that is."""

from __future__ import annotations

from typing import Any

from recollect.interfaces.cli.demo.process import Place, told_by
from recollect.interfaces.cli.demo.stage import Stage, percent

KEY = "export.invoices"
_WAYS = (
    ("Export all invoices into one file.", 1, 4),
    ("Export month by month, then join the parts.", 11, 12),
)


def act(place: Place) -> dict[str, Any]:
    from recollect.sync import AgentMemory

    rates = []
    with AgentMemory.open(place.store, tenant=place.tenant, user=place.user, agent=place.agent) as memory:
        for body, worked, tried in _WAYS:
            memory.procedural.save(KEY, body, description="how to get the invoices out")
            for trial in range(tried):
                memory.procedural.record_outcome(KEY, trial < worked)
            rate = memory.procedural.success_rate(KEY)
            rates.append({"rate": rate.rate, "lower": rate.lower, "upper": rate.upper, "trials": rate.trials})
        context = memory.recall("How should I export the bills?", tiers=["procedural"])
    return {"rates": rates, "line": context.sections.get("Known procedures", ("",))[0]}


def show(stage: Stage, place: Place) -> None:
    stage.opens("A procedure gets better", "Every attempt counts. Few prove little, and the bounds say how little.")
    told = told_by("improving", place)
    rates = told["rates"]
    for (body, worked, tried), rate in zip(_WAYS, rates, strict=True):
        stage.line(stage.marks.adds, body)
        bounds = f"{percent(rate['lower'])} to {percent(rate['upper'])} with 95% confidence"
        stage.found(None, f"worked {worked} of {tried} times: {percent(rate['rate'])}, {bounds}")
    stage.keep(**told)
    counted = all(
        rate["trials"] == tried and rate["rate"] == worked / tried
        for (_, worked, tried), rate in zip(_WAYS, rates, strict=True)
    )
    stage.check(counted, f"all {sum(tried for _, _, tried in _WAYS)} outcomes were counted, each to its version")
    first, second = rates
    stage.check(
        first["lower"] < first["rate"] < second["lower"] < second["rate"] < second["upper"],
        f"the rate moved from {percent(first['rate'])} to {percent(second['rate'])}, and Wilson's lower bound from "
        f"{percent(first['lower'])} to {percent(second['lower'])}",
    )
    shown = _WAYS[1][0] in told["line"] and "worked 11 of 12 times" in told["line"]
    stage.check(shown, "an agent that asks how is given the second way, with how often it worked")
