"""Hits into a block for a prompt: dated, quoted as data, within a budget of tokens."""

from __future__ import annotations

from recollect.values import Context, Hit, LeftOut, MemoryItem
from recollect.words.tokens import count_tokens

HEADING = "## Relevant knowledge"
_LONGEST_LINE = 1200


def pack(query: str, hits: list[Hit], budget: int | None) -> Context:
    """The best hits that fit, in their order; what did not fit is named in `left_out`."""
    shown: list[Hit] = []
    lines: list[str] = [HEADING]
    left_out: list[LeftOut] = []
    spent = count_tokens(HEADING)
    for hit in hits:
        line = rendered(hit.item)
        cost = count_tokens(line)
        if budget is not None and spent + cost > budget:
            left_out.append(LeftOut(hit.item, f"{cost} tokens do not fit into what is left of {budget}"))
            continue
        spent += cost
        lines.append(line)
        shown.append(hit)
    if not shown:
        return Context(query, left_out=tuple(left_out))
    return Context(query, "\n".join(lines), tuple(shown), spent, tuple(left_out))


def rendered(item: MemoryItem) -> str:
    """One line: the text on a single line, so that stored text cannot pose as a heading, then where it is from."""
    text = _flat(item.content)
    if len(text) > _LONGEST_LINE:
        text = f"{text[:_LONGEST_LINE]}… ({len(item.content):,} characters)"
    if item.turn is not None and item.turn.speaker:
        text = f"{_flat(item.turn.speaker)}: {text}"
    origin = [item.created_at.date().isoformat()]
    if item.turn is not None:
        origin.append(f"session {_flat(item.turn.session)}")
    if item.source != "user":
        origin.append(f"from {_flat(item.source)}")
    return f"- {text} ({', '.join(origin)})"


def _flat(text: str) -> str:
    return " ".join(text.split())
