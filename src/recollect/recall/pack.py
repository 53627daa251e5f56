"""Lines into a block for a prompt: in sections, and within a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from recollect.recall.lines import SECTIONS, Count, Line, Written, is_recalled, without_recalled, written
from recollect.values import Context, LeftOut
from recollect.words.tokens import count_tokens

__all__ = ["is_recalled", "pack", "without_recalled"]

# With less room than this, a beginning of a long line says less than the whole of a short one.
_WORTH_CUTTING = 40


def pack(
    query: str,
    lines: Sequence[Line],
    budget: int | None = None,
    *,
    left_out: Sequence[LeftOut] = (),
    warnings: Sequence[str] = (),
    count: Count = count_tokens,
) -> Context:
    """The most useful lines that fit, each in its section and in the order given; the others are in `left_out`."""
    if not lines:
        return Context(query, "", (), 0, tuple(left_out), tuple(warnings))
    chosen = _Chosen(lines, budget, count)
    text = chosen.text()
    # Our own counter makes as much of the whole as of its lines, which have been counted already.
    tokens = chosen.spent if budget is not None and count is count_tokens else _counted(text, count)
    # Where another makes more of it, the least useful line gives way.
    while budget is not None and tokens > budget:
        chosen.drop_last()
        text = chosen.text()
        tokens = _counted(text, count)
    shown = sorted(chosen.written, key=lambda at: (SECTIONS.index(lines[at].section), at))
    return Context(
        query,
        text,
        tuple(lines[at].hit for at in shown),
        tokens,
        (*chosen.left_out, *_twins(lines, chosen), *left_out),
        tuple(warnings),
    )


class _Chosen:
    """Which lines are shown, most useful first, as long as there is room."""

    def __init__(self, lines: Sequence[Line], budget: int | None, count: Count) -> None:
        self._lines = lines
        self._budget = budget
        self.written: dict[int, Written] = {}
        self.left_out: list[LeftOut] = []
        self.spent = 0
        room = budget
        open_sections: set[str] = set()
        for at in sorted(range(len(lines)), key=lambda at: -lines[at].worth):
            line, whole = lines[at], written(lines[at])
            if room is None:
                self.written[at] = whole
                continue
            left = room - (0 if line.section in open_sections else count(line.section))
            cost = count(str(whole))
            shown: Written | None = whole
            if cost > left:
                shown = whole.cut_to(left, count) if left >= _WORTH_CUTTING else None
            if shown is None:
                self._leave_out(at, f"{cost} tokens do not fit into the {max(left, 0)} that are left of {budget}")
                continue
            self.written[at] = shown
            room = left - (cost if shown is whole else count(str(shown)))
            open_sections.add(line.section)
        if budget is not None and room is not None:
            self.spent = budget - room

    def text(self) -> str:
        blocks = []
        for section in SECTIONS:
            ours = [str(self.written[at]) for at in sorted(self.written) if self._lines[at].section == section]
            if ours:
                blocks.append("\n".join([section, *ours]))
        return "\n\n".join(blocks)

    def drop_last(self) -> None:
        at = next(reversed(self.written))
        del self.written[at]
        self._leave_out(at, f"the whole block does not fit into {self._budget} tokens with it")

    def _leave_out(self, at: int, reason: str) -> None:
        self.left_out.append(LeftOut(self._lines[at].hit.item, reason))


def _counted(text: str, count: Count) -> int:
    return count(text) if text else 0


def _twins(lines: Sequence[Line], chosen: _Chosen) -> list[LeftOut]:
    return [
        LeftOut(
            twin,
            f"already shown in {line.section.removeprefix('## ')}"
            if at in chosen.written
            else "says the same as something that did not fit",
        )
        for at, line in enumerate(lines)
        for twin in line.twins
    ]
