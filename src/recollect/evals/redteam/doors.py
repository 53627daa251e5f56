"""The doors through which a stranger's text comes into a memory, as applications leave them open."""

from __future__ import annotations

from recollect.errors import BadInput
from recollect.evals.redteam.cases import Attack
from recollect.memory import AgentMemory

PAGE = "https://pages.example/{0}"
_SOURCES = {"web": PAGE, "document": "document:{0}.pdf", "tool": "tool", "agent": "agent"}


async def brought_in(memory: AgentMemory, attack: Attack) -> None:
    """The attack, through its door."""
    door, text = attack.door, attack.texts[0]
    match door:
        case "web" | "document" | "tool" | "agent":
            await memory.remember(text, source=_SOURCES[door].format(attack.key))
        case "turn" | "step":
            await (_in_a_turn if door == "turn" else _in_a_task)(memory, attack)
            await memory.lifecycle.run_once()
        case "keyed web" | "keyed tool":
            await memory.remember(text, key=attack.key, source=_source(door, attack))
        case "repeat":
            await memory.remember(text, key=attack.key, source="web", metadata={"approved": False})
        case "procedure" | "procedure tool":
            try:
                await memory.procedural.save(attack.key, text, source=_source(door, attack))
            except BadInput:  # which is how it should be
                return
        case "flood":
            page = PAGE.format("blog")
            facts = [{"content": one, "source": f"{page}/{n}"} for n, one in enumerate(attack.texts)]
            await memory.semantic.add_many(facts)
        case "other user":
            await memory.scoped(user="mallory", session="s").remember(text)
        case other:
            raise BadInput(f"there is no door {other!r}")


async def _in_a_turn(memory: AgentMemory, attack: Attack) -> None:
    call = {"name": "search", "arguments": {"q": attack.query}, "result": attack.texts[0]}
    await memory.record_turn(f"Please look into {attack.key}.", "I have looked into it.", tool_calls=[call])


async def _in_a_task(memory: AgentMemory, attack: Attack) -> None:
    await memory.start_task(f"Find out about {attack.key}")
    await memory.record_step("I look it up.", f"look_up({attack.key!r})", attack.texts[0])
    await memory.end_task(True, "Done.")


def _source(door: str, attack: Attack) -> str:
    return "tool" if door.endswith("tool") else PAGE.format(attack.key)
