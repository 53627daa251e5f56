"""The fourth scene: a preference changes; the new one holds, and the old one is history."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from recollect.interfaces.cli.demo.learning import METRIC, UNITS
from recollect.interfaces.cli.demo.process import Place, told_by
from recollect.interfaces.cli.demo.stage import Stage

IMPERIAL = "Ada prefers imperial units since she moved to Boston."
_ASKED = "Which units should the report use?"


def act(place: Place) -> dict[str, Any]:
    from recollect.sync import AgentMemory

    with AgentMemory.open(place.store, tenant=place.tenant, user=place.user, agent=place.agent) as memory:
        new = memory.remember(IMPERIAL, key=UNITS, importance=0.8)
        before = new.created_at - timedelta(microseconds=1)
        history = memory.semantic.history(UNITS)
        return {
            "now": [hit.item.content for hit in memory.recall(_ASKED, tiers=["semantic"])],
            "then": [hit.item.content for hit in memory.recall(_ASKED, tiers=["semantic"], as_of=before)],
            "history": [{"content": item.content, "ended": item.valid_to is not None} for item in history],
        }


def show(stage: Stage, place: Place) -> None:
    stage.opens("A preference changes", "The same key, another value: nobody has to find and delete the old one.")
    told = told_by("superseding", place)
    now, then = told["now"], told["then"]
    stage.line(stage.marks.adds, IMPERIAL)
    stage.line(stage.marks.asks, _ASKED, "italic")
    stage.found(None, f"now: {now[0] if now else 'nothing'}")
    stage.found(None, f"as of a moment before: {then[0] if then else 'nothing'}")
    stage.keep(**told)
    stage.check(now[:1] == [IMPERIAL] and METRIC not in now, "the new value is found, the old one no longer")
    stage.check(then[:1] == [METRIC] and IMPERIAL not in then, "asked about then, the old one is")
    both = [{"content": IMPERIAL, "ended": False}, {"content": METRIC, "ended": True}]
    stage.check(told["history"] == both, "its history has both, and says when the old one ended")
