"""The sixth scene: somebody leaves, everything of theirs is erased, and every byte of the files is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recollect.interfaces.cli.demo.process import Place, told_by
from recollect.interfaces.cli.demo.stage import Stage

GUEST = "guest"
_TOLD = ("The guest's locker is number 4711, and the code is heliotrope.", "The guest is allergic to quinoa.")
_SAID = "Please do not tell anybody that my flight leaves at dawn."


def act(place: Place, leaves: bool) -> dict[str, Any]:
    from recollect.sync import AgentMemory

    with AgentMemory.open(place.store, tenant=place.tenant, user=GUEST, agent=place.agent, session="visit") as memory:
        if not leaves:
            for text in _TOLD:
                memory.remember(text)
            memory.record_turn(user=_SAID, assistant="I shall keep it to myself.")
            memory.checkpoints.checkpoint("book-a-taxi", {"for": "the guest", "why": _SAID})
            return {}
        receipt = memory.erase(user=GUEST)
        others = memory.scoped(user=place.user).recall("Which units does Ada prefer?", tiers=["semantic"])
        return {
            "receipt": receipt.as_json(),
            "recalled": len(memory.recall("What is the code of the locker?")),
            "holds": memory.verify_erasure(receipt).holds,
            "others": len(others),
        }


def show(stage: Stage, place: Place) -> None:
    stage.opens("Somebody leaves", "Everything of a guest is erased, from every tier, index, log and checkpoint.")
    told_by("erasing", place, leaves=False)
    before = _held(place)
    told = told_by("erasing", place, leaves=True)
    after = _held(place)
    receipt, scan = told["receipt"], told["receipt"]["scan"]
    stage.line(stage.marks.adds, f"before: a search of the files' bytes finds {before} of the guest's 3 sentences")
    stage.line(" ", f"erased: {sum(receipt['erased'].values())} items, entries and tasks of all tiers")
    stage.keep(before=before, after=after, **told)
    stage.check(
        before == 3 and after == 0 and told["recalled"] == 0,
        f"now it finds {after}, and recall finds nothing",
    )
    looked = scan["pieces"] > 0 and scan["found"] == scan["words"] == 0
    stage.check(
        receipt["status"] == "complete" and looked,
        f"no piece of its texts, words and vectors is in any of {scan['files']} files",
    )
    stage.check(told["holds"] and told["others"] > 0, "the receipt verifies, and what others told is still there")


def _held(place: Place) -> int:
    """How many of the guest's sentences stand in any file, found by nothing cleverer than a search for their bytes."""
    store = Path(place.store)
    data = b"\0".join(file.read_bytes() for file in store.parent.glob(store.name + "*"))
    return sum(text.encode() in data for text in (*_TOLD, _SAID))
