"""The first scene: a session learns facts, a preference and what was said."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

from recollect.interfaces.cli.demo.process import Place, told_by
from recollect.interfaces.cli.demo.stage import Stage

UNITS = "ada.units"
METRIC = "Ada prefers metric units in every report."
FACTS = (
    "The staging database listens on port 6432; production uses 5432.",
    "Never deploy on Fridays: the on-call engineer is alone.",
    "Ada's daughter Mina started school in Lisbon in September.",
)
TURNS = (
    ("The invoice export timed out again, at 12,000 rows.", "I split it by month, and every part went through."),
    ("Please keep each file below 10 MB: the mail server refuses more.", "Understood."),
)


def act(place: Place, session: str) -> dict[str, Any]:
    from recollect.sync import AgentMemory

    with AgentMemory.open(
        place.store, tenant=place.tenant, user=place.user, agent=place.agent, session=session
    ) as memory:
        memory.remember(METRIC, key=UNITS, importance=0.8)  # the first one loads the model
        took = []
        for fact in FACTS:
            began = time.perf_counter()
            memory.remember(fact)
            took.append(time.perf_counter() - began)
        for said, answered in TURNS:
            memory.record_turn(said, answered)
    return {"remember": median(took)}


def show(stage: Stage, place: Place, session: str) -> dict[str, float]:
    stage.opens("A session learns", "A process keeps facts, a preference and a conversation, word for word.")
    for fact in (METRIC, *FACTS):
        stage.line(stage.marks.adds, fact)
    for said, _ in TURNS:
        stage.line(stage.marks.adds, f"“{said}”")
    told = told_by("learning", place, session=session)
    files = [path.name for path in Path(place.store).parent.glob(f"{Path(place.store).name}*")]
    stage.keep(facts=[METRIC, *FACTS], turns=[said for said, _ in TURNS], files=files)
    stage.check(files == [Path(place.store).name], "that process is gone, and has left one file")
    return {"remember a fact": told["remember"]}
