"""The second scene: another process asks with other words, and finds what was meant or says that there is nothing."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from recollect.interfaces.cli.demo.learning import FACTS, METRIC, TURNS
from recollect.interfaces.cli.demo.process import Place, told_by
from recollect.interfaces.cli.demo.stage import Stage

_ASKED = {
    "Should distances be in miles or kilometres?": METRIC,
    "Is it a good idea to ship before the weekend?": FACTS[1],
    "Where does her child go to school?": FACTS[2],
    "How did we get a large number of invoices out?": TURNS[0][0],
    "What is the capital of Mongolia?": None,
}


def act(place: Place, questions: list[str]) -> dict[str, Any]:
    from recollect.sync import AgentMemory

    found: dict[str, Any] = {}
    took = []
    with AgentMemory.open(
        place.store, tenant=place.tenant, user=place.user, agent=place.agent, session="tuesday"
    ) as memory:
        tiers = memory.stats().tiers
        memory.recall("the first question loads the model")
        for question in questions:
            began = time.perf_counter()
            context = memory.recall(question, n=1)
            took.append(time.perf_counter() - began)
            best = max(context.hits, key=lambda hit: hit.relevance, default=None)
            found[question] = None if best is None else {"content": best.item.content, "relevance": best.relevance}
    return {
        "facts": tiers["semantic"].items,
        "messages": tiers["conversation"].items,
        "found": found,
        "recall": median(took),
    }


def show(stage: Stage, place: Place) -> dict[str, float]:
    stage.opens("Another process recalls, by meaning", "It has never seen the texts, and asks with words of its own.")
    told = told_by("meaning", place, questions=list(_ASKED))
    found = told["found"]
    for question in _ASKED:
        stage.line(stage.marks.asks, question, "italic")
        hit = found[question]
        stage.found(hit and hit["relevance"], hit["content"] if hit else "nothing relevant is remembered")
    stage.keep(found=found)
    everything = told["facts"] == 1 + len(FACTS) and told["messages"] == 2 * len(TURNS)
    stage.check(everything, f"all {1 + len(FACTS)} facts and {len(TURNS)} turns are there")
    meant = [question for question, answer in _ASKED.items() if answer is not None]
    right = [question for question in meant if found[question] and found[question]["content"] == _ASKED[question]]
    stage.check(len(right) == len(meant), f"{len(right)} of {len(meant)} questions found what was meant")
    unknown = [question for question, answer in _ASKED.items() if answer is None]
    silent = all(found[question] is None for question in unknown)
    stage.check(silent, "what was never said is not made up")
    return {"recall by meaning": told["recall"]}
