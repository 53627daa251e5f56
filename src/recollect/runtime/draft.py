"""The state of a running task, encoded again after each step: what has not changed since is not done again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recollect.guard.policy import Policy
from recollect.runtime.codec import Author, State, check_size, plain, written

# Writing a text as JSON looks at each character. One that is shorter costs less than finding out that it is the same.
_LONG = 2048
_MARK = "\0a long text\0"
_AS_IT_IS = Policy("allow", "allow")
_MARKED = written(_MARK)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a long text stands: under a name in the state, or in its results."""

    name: str
    among_results: bool
    text: str


@dataclass(frozen=True, slots=True)
class _Sum:
    """The checksum of everything up to the end of one long text."""

    before: str
    fragment: str
    sum: Any


@dataclass(slots=True)
class Draft:
    """One state as text: what a checkpoint keeps, its checksum, and any number of copies to work on."""

    text: str
    sha256: str
    _bare: str
    """The text with a mark in place of each long one."""
    _places: Sequence[_Place] = ()
    _ready: State | None = None
    """A copy that nobody has yet; it is left over from checking."""

    def copy(self) -> State:
        """The state as it will be read again. Whoever changes it changes nothing of ours."""
        state = self._ready if self._ready is not None else json.loads(self._bare)["state"]
        self._ready = None
        for place in self._places:  # a text cannot be changed, so that all copies may have the same
            (state["results"] if place.among_results else state)[place.name] = place.text
        return state


@dataclass(slots=True)
class Drafts:
    """Makes the drafts of one run, which mostly differ in one result."""

    largest: int
    policy: Policy = _AS_IT_IS
    by: Author | None = None
    _fragments: dict[int, tuple[str, str]] = field(default_factory=dict)
    """The long texts of the last draft as JSON, by identity; held beside it, so that no other text can have it."""
    _sums: list[_Sum] = field(default_factory=list)

    def draft(self, state: Any, working: Mapping[str, Any] | None = None) -> Draft:
        """The state as text, or `BadInput` naming the path inside of it of what cannot be stored."""
        places = list(_places(state))
        if not places:
            return self._whole(state, working)
        bare, copy = plain(_marked(state), working, self.by)
        between = bare.split(_MARKED)
        if len(between) != len(places) + 1:  # the state has our mark for a text of its own
            return self._whole(state, working)
        fragments = [self._fragment(place.text) for place in places]
        self._fragments = {id(place.text): (place.text, one) for place, one in zip(places, fragments, strict=True)}
        pieces = [piece for pair in zip(between, fragments, strict=False) for piece in pair]
        text = "".join((*pieces, between[-1]))
        check_size(text, state, self.largest)
        return Draft(text, self._sha256(between, fragments), bare, places, copy)

    def _whole(self, state: Any, working: Mapping[str, Any] | None) -> Draft:
        self._fragments, self._sums = {}, []
        text, copy = plain(state, working, self.by)
        check_size(text, state, self.largest)
        return Draft(text, hashlib.sha256(text.encode()).hexdigest(), text, (), copy)

    def result(self, step: str, result: Any) -> str:
        """What a step returned as JSON, to the letter; secrets in it are refused or noted, as the settings say."""
        text = self.written(result)
        if result is not None and self.policy.looks:
            self.policy.unaltered(f"the result of step {step!r}", text)
        return text

    def written(self, result: Any) -> str:
        """A result as JSON; one that stands in the last draft is not written again."""
        return self._fragment(result) if type(result) is str else written(result)

    def _fragment(self, text: str) -> str:
        known = self._fragments.get(id(text))
        return known[1] if known is not None and known[0] is text else written(text)

    def _sha256(self, between: Sequence[str], fragments: Sequence[str]) -> str:
        """Of all the pieces; where they begin as those of the last draft did, from there on."""
        sums: list[_Sum] = []
        so_far = hashlib.sha256()
        for before, fragment in zip(between, fragments, strict=False):
            known = self._sums[len(sums)] if len(sums) < len(self._sums) else None
            if known is not None and known.fragment is fragment and known.before == before:
                so_far = known.sum
            else:
                self._sums = []  # what follows another beginning has another sum
                so_far = so_far.copy()
                so_far.update((before + fragment).encode())
            sums.append(_Sum(before, fragment, so_far))
        self._sums = sums
        whole = so_far.copy()
        whole.update(between[-1].encode())
        return whole.hexdigest()


def _places(state: Any) -> Iterator[_Place]:
    """In the order in which they are written."""
    if not isinstance(state, dict):
        return
    for name, value in state.items():
        if type(value) is str:
            if len(value) >= _LONG:
                yield _Place(name, False, value)
        elif name == "results" and type(value) is dict:
            for inner, result in value.items():
                if type(result) is str and len(result) >= _LONG:
                    yield _Place(inner, True, result)


def _marked(state: State) -> State:
    marked = {name: _or_mark(value) for name, value in state.items()}
    if type(state.get("results")) is dict:
        marked["results"] = {name: _or_mark(result) for name, result in state["results"].items()}
    return marked


def _or_mark(value: Any) -> Any:
    return _MARK if type(value) is str and len(value) >= _LONG else value
