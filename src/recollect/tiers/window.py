"""How much of a conversation a model gets to see: what is shown word for word, and when the rest is summed up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate

from recollect.errors import BadInput
from recollect.inference.summarise import Count
from recollect.tiers.messages import Message, Shown, cost, item_of, shown, shown_cost
from recollect.tiers.tool_pairs import ends_among, ends_of, joints, orphans, pending, told
from recollect.tiers.trust import trust_of

KEPT_WORD_FOR_WORD = 10

# Besides what is shown: the summary, what it covers last, and the turn that is too much.
_SPARE = 12

_MOST_SUMMARY_TOKENS = 1000
_SUMMARY = "[Context from earlier conversation]\n"
_NOTED = "Understood. I will keep this in mind."

# System messages at the very beginning are the agent's instructions: they stay, within these bounds.
_MOST_INSTRUCTIONS = 5
_INSTRUCTIONS_SHARE = 3

# The smallest part of a message that still tells something.
_LEAST = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of what is shown. `max_tokens` always holds; the others as far as no tool pair is parted."""

    max_messages: int = 50
    max_tokens: int = 10_000
    summarize_threshold: int = 30

    def __post_init__(self) -> None:
        for name, least in (("max_messages", 4), ("max_tokens", 200), ("summarize_threshold", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise BadInput(f"{name} is a whole number from {least}, not {value!r}")

    @property
    def summary_tokens(self) -> int:
        """The most that a summary may have."""
        return min(_MOST_SUMMARY_TOKENS, self.max_tokens // 5)

    @property
    def newest(self) -> int:
        """By so many of the newest entries it is known, as a rule, what is shown: more are summed up before."""
        return max(KEPT_WORD_FOR_WORD, min(self.summarize_threshold, self.max_messages)) + _SPARE

    @property
    def most(self) -> int:
        """The most tokens of one message's text, unless a roll found that it must be less."""
        return self.max_tokens // 2


@dataclass(frozen=True, slots=True)
class Summary:
    """What stands for the messages up to the seq `covers`.

    `most` is how many tokens of one message are shown after it. `noted` is whether the assistant is shown to have
    read it: when the next message is the user's, since some models insist that the two take turns. `unanswered` are
    the calls among what it covers whose results had not come. `trust` is the lowest of what it was made of.
    """

    text: str
    covers: int
    most: int
    noted: bool = True
    unanswered: tuple[str, ...] = ()
    at: datetime | None = None
    trust: float = 1.0


@dataclass(frozen=True, slots=True)
class View:
    """A conversation at a moment: its instructions, its summary, and the messages since."""

    instructions: Sequence[Message]
    summary: Summary | None
    live: Sequence[Message]


@dataclass(frozen=True, slots=True)
class Roll:
    """The decision to sum up the oldest `covered` of the live messages, and to show `most` tokens of each other."""

    covered: int
    most: int


def instructions_of(messages: Sequence[Message], limits: Limits, count: Count) -> list[Message]:
    """The system messages that a conversation begins with, as far as they leave room for it."""
    left = limits.max_tokens // _INSTRUCTIONS_SHARE
    found: list[Message] = []
    for message in messages[:_MOST_INSTRUCTIONS]:
        left -= shown_cost(message, limits.max_tokens, count)
        if message.role != "system" or left < 0 or len(found) + 3 >= limits.max_messages:
            break
        found.append(message)
    return found


def rendered(view: View, limits: Limits, count: Count) -> list[Shown]:
    """The view as a model gets it. What is appended later changes nothing here, unless a summary rolls."""
    messages = [shown(message, limits.max_tokens, count) for message in view.instructions]
    summary = view.summary
    if summary is not None and summary.text:
        messages.append({"role": "user", "content": _SUMMARY + summary.text})
        if summary.noted:
            messages.append({"role": "assistant", "content": _NOTED})
    return messages + _live(view, _most(view, limits), count)


def next_roll(view: View, limits: Limits, count: Count) -> Roll | None:
    """What must be summed up for the view to keep within its limits; None when it does already."""
    live, number = view.live, len(view.live)
    budget = _budget(view, limits, count)
    room = _room(view, limits)
    keep = min(KEPT_WORD_FOR_WORD, room)
    too_much = number > room or sum(_costs(view, _most(view, limits), count)) > budget
    if not too_much and number <= max(limits.summarize_threshold, keep):
        return None
    after = _sums_from_the_end(_costs(view, limits.most, count))
    ends = ends_among([item_of(message) for message in live])
    # A call that waits for its result is passed over only if there is no other way to keep within the limits.
    for waiting in (True, False) if too_much else (True,):
        places = [place for place in joints(ends, waiting=waiting) if 0 < place < number]
        place = max((place for place in places if place <= number - keep), default=0)
        if place and number - place <= room and after[place] <= (budget * 3 // 4 if too_much else budget):
            return Roll(place, limits.most)
        # Room is left to grow, or else the very next message would make the summary roll again.
        fitting = [place for place in places if after[place] <= budget // 2 and number - place <= room]
        if too_much and fitting:
            return Roll(fitting[0], limits.most)
    return _squeezed(view, joints(ends)[-2], limits, budget, count) if too_much else None


@dataclass(frozen=True, slots=True)
class Room:
    """How much more may be said before something must be summed up, so that not every message asks anew.

    What others say meanwhile is not known here. That costs nobody their limits, which hold whenever a model is shown
    the conversation; it only comes later that what is older is summed up.
    """

    messages: int = 0
    tokens: int = 0
    most: int = 0

    @classmethod
    def left_in(cls, view: View, limits: Limits, count: Count) -> Room:
        """What is left where nothing has to be summed up yet."""
        room, most = _room(view, limits), _most(view, limits)
        messages = min(room, max(limits.summarize_threshold, min(KEPT_WORD_FOR_WORD, room)))
        tokens = _budget(view, limits, count) - sum(_costs(view, most, count))
        return cls(messages - len(view.live), tokens, most)

    def after(self, said: Iterable[Message], count: Count) -> Room | None:
        """What is left after this; None where that cannot be told without a look at the whole."""
        messages, tokens = self.messages, self.tokens
        for message in said:
            # Calls and results are shown by what is around them, and instructions may stand apart.
            if (
                message.role not in ("user", "assistant")
                or message.blocks is not None
                or "tool_calls" in message.metadata
            ):
                return None
            messages -= 1
            tokens -= shown_cost(message, self.most, count)
        return Room(messages, tokens, self.most) if messages >= 0 and tokens >= 0 else None


def applied(view: View, roll: Roll, text: str) -> View:
    """The view after a roll, with the summary it led to."""
    covered, live = view.live[: roll.covered], view.live[roll.covered :]
    before = view.summary or Summary("", 0, roll.most)
    covers = covered[-1].seq if covered else before.covers
    unanswered = tuple(pending([ends_of(item_of(message)) for message in covered], before.unanswered))
    trust = min([before.trust, *map(trust_of, covered)])
    summary = Summary(text, covers, roll.most, noted_before(live), unanswered, trust=trust)
    return replace(view, summary=summary, live=live)


def noted_before(live: Sequence[Message]) -> bool:
    """Whether the assistant has to be shown as having read a summary that these messages follow."""
    return not live or live[0].role == "user"


def _squeezed(view: View, start: int, limits: Limits, budget: int, count: Count) -> Roll | None:
    """The newest message, or call with its results, is too much by itself: less of each is shown, or nothing.

    `start` is where it begins.
    """
    number = len(view.live)
    most = limits.most
    while most >= _LEAST:
        if sum(_costs(view, most, count)[start:]) <= budget:
            return None if (start, most) == (0, _most(view, limits)) else Roll(start, most)
        most //= 2
    return Roll(number, limits.most)


def _most(view: View, limits: Limits) -> int:
    return limits.most if view.summary is None else view.summary.most


def _live(view: View, most: int, count: Count) -> list[Shown]:
    messages = [shown(message, most, count) for message in view.live]
    # The calls of some results have been summed up, and of others there never was one.
    for at, names in orphans(messages).items():
        messages[at] = told(messages[at], names)
    return messages


def _costs(view: View, most: int, count: Count) -> list[int]:
    return [cost(given, count) for given in _live(view, most, count)]


def _room(view: View, limits: Limits) -> int:
    """How many live messages may be shown beside the instructions and the summary with its answer."""
    return max(1, limits.max_messages - 2 - len(view.instructions))


def _budget(view: View, limits: Limits, count: Count) -> int:
    """The tokens that are left for live messages when the summary is as long as it may be."""
    frame = [{"role": "user", "content": _SUMMARY}, {"role": "assistant", "content": _NOTED}]
    taken = [*frame, *(shown(message, limits.max_tokens, count) for message in view.instructions)]
    return limits.max_tokens - limits.summary_tokens - sum(cost(given, count) for given in taken)


def _sums_from_the_end(costs: Sequence[int]) -> list[int]:
    return list(accumulate(reversed([*costs, 0])))[::-1]
