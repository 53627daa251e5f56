"""What a statement claims, as a slot and its value: the later value of a slot, or its denial, ends the earlier one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from recollect.lifecycle import wordings as say
from recollect.lifecycle.places import is_country, is_place, may_be_place
from recollect.words import analyse
from recollect.words.stem import stem

Value = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """That something has a value, or has it no longer; `value` is empty where it is denied whatever it was."""

    slot: str
    value: Value
    holds: bool = True
    single: bool = False
    """Whether there is only one value at a time: a home has one, what somebody likes has many."""
    over: Value = ()
    """What is liked less than the value."""
    kind: Literal["identity", "preference"] = field(default="identity", compare=False)
    firm: bool = field(default=True, compare=False)
    """Whether it is worth keeping on its own account, and not only where another rule says so."""
    probes: tuple[str, ...] = field(default=(), compare=False)
    """Words of which one is in nearly every other statement about this slot."""
    plainly: str = field(default="", compare=False)
    """The sentence in which somebody would say it who is asked, however it was said."""
    also: tuple[str, ...] = field(default=(), compare=False)
    """Other slots that it denies the value of: nobody likes what they do not drink any more."""

    @property
    def slots(self) -> tuple[str, ...]:
        return (self.slot, *self.also)


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of a statement that stands for itself, in the words that were used, and its claim."""

    text: str
    claim: Claim


def ends(later: Claim, earlier: Claim) -> bool:
    """Whether both cannot be true, so that the later one holds."""
    if later.slot != earlier.slot:
        return (
            earlier.holds and earlier.slot in later.also and (later.value, later.over) == (earlier.value, earlier.over)
        )
    if later.holds and earlier.holds:
        if later.over and later.over == earlier.value:
            return not earlier.over or earlier.over == later.value
        return later.single and later.value != earlier.value
    if not later.holds and not earlier.holds:
        return False
    denied = earlier if later.holds else later
    if not denied.value and denied.single:
        # Who has "quit my job" has none, until a later job is told.
        return True
    return (later.value, later.over) == (earlier.value, earlier.over)


def claims_of(text: str) -> tuple[Claim, ...]:
    """All that a statement claims; nothing unless every part of it is understood."""
    return tuple(clause.claim for clause in clauses_of(text))


@lru_cache(maxsize=2048)
def clauses_of(text: str) -> tuple[Clause, ...]:
    """The parts of a statement with what each claims. Empty where one is not understood: ending it would hide that."""
    line = " ".join(text.split())
    if not line or len(line) > say.LONGEST:
        return ()
    whole = _claim(line)
    if whole is not None:
        return (Clause(line, whole),)
    parts = [part.strip() for part in say.PARTS.split(line)]
    if len(parts) < 2:
        return ()
    claims = [_claim(part) for part in parts]
    found = [Clause(part, claim) for part, claim in zip(parts, claims, strict=True) if claim is not None]
    return tuple(found) if len(found) == len(parts) else ()


def _claim(clause: str) -> Claim | None:
    plain = say.plain(clause)
    lead = say.LEAD.match(plain)
    told = plain[lead.end() :] if lead else plain
    corrects = bool(lead and say.CORRECTS.search(lead[0]))
    for rule, read in _READERS:
        match = rule.fullmatch(told)
        if match is not None:
            claim = read(match, corrects)
            if claim is not None:
                return claim
    return None


def _unless(holds: bool) -> str:
    return "" if holds else "not "


def _holds(match: re.Match[str]) -> bool:
    return not match.groupdict().get("no")


def _named(text: str) -> Value:
    """The words of a name: `Siemens` is not more than one `Siemen`, and `C++` is not `C`."""
    words = [word.strip(".,!'\"") for word in text.lower().split()]
    return tuple(word for word in words if word not in ("", "a", "an", "the", "on"))


def _value(text: str) -> Value:
    """The words of a thing, in whatever number: `Peanuts` is `peanut`."""
    return tuple(stem(word) if word.isalpha() and word.isascii() else word for word in _named(text))


def _probes(*texts: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(analyse(" ".join(texts))))


def _home(match: re.Match[str], corrects: bool) -> Claim | None:
    place = match["place"]
    moved = "moved" in match.groupdict() and match["moved"] is not None
    alone = not match[0].lower().startswith("we ")
    # "I moved to Linux" is no address.
    if not may_be_place(place) or (moved and not (is_place(place) or match["within"] or (corrects and alone))):
        return None
    # "I left Siemens, and I live in Porto now" tells of two things.
    gone = match.groupdict().get("gone")
    if gone and not is_place(gone):
        return None
    slot = "home country" if is_country(place) else "home"
    holds = _holds(match) and match.groupdict().get("away") is None
    return Claim(
        slot, _named(place), holds, True, probes=_probes("live living moved relocated based reside home", place),
        plainly=f"I {'live' if holds else 'do not live'} in {place}",
    )  # fmt: skip


def _employer(match: re.Match[str], corrects: bool) -> Claim | None:
    holds = _holds(match) and "left" not in match.groupdict()
    org = match["org"] or ""
    # "I quit Vim" leaves no employer.
    if match.groupdict().get("left", "").lower() == "quit" and " my " not in match[0] and not may_be_place(org):
        return None
    at = f"work at {org}" if org else "have a job"
    return Claim(
        "employer", _named(org), holds, True, probes=_probes("work working job employed quit left", org),
        plainly=f"I {'' if holds else 'do not '}{at}",
    )  # fmt: skip


def _trait(match: re.Match[str], corrects: bool) -> Claim | None:
    trait = match["trait"].lower()
    group = next((name for name, words in say.GROUPS.items() if trait in words), None)
    others = say.GROUPS[group] if group else ()
    return Claim(
        group or f"trait {trait}", _value(trait), _holds(match), group is not None, probes=_probes(trait, *others),
        plainly=f"I am {_unless(_holds(match))}{trait}",
    )  # fmt: skip


def _allergy(match: re.Match[str], corrects: bool) -> Claim | None:
    thing = match["thing"]
    return Claim(
        "allergy", _value(thing), _holds(match), probes=_probes("allergic allergy", thing),
        plainly=f"I am {_unless(_holds(match))}allergic to {thing}",
    )  # fmt: skip


def _taste(match: re.Match[str], corrects: bool) -> Claim | None:
    thing = match["thing"]
    if say.POINTS.match(thing):
        return None
    liked = match["verb"].lower() in ("love", "like", "enjoy", "adore")
    # "I don't hate tea" says little about tea.
    if not liked and not _holds(match):
        return None
    firm = bool(say.NO_MORE.search(match.string)) and not _holds(match)
    holds = liked and _holds(match)
    return Claim(
        "taste", _value(thing), holds, kind="preference", firm=firm, probes=_probes(thing),
        plainly=f"I {'like' if holds else 'do not like'} {thing}",
    )  # fmt: skip


def _preferred(match: re.Match[str], corrects: bool) -> Claim | None:
    thing, other = match["thing"], match.groupdict().get("other") or ""
    if say.POINTS.match(thing) or (other and say.POINTS.match(other)):
        return None
    return Claim(
        "preferred", _value(thing), _holds(match), over=_value(other), kind="preference",
        probes=_probes(thing, other),
        plainly=f"I {'prefer' if _holds(match) else 'do not prefer'} {thing}{f' over {other}' if other else ''}",
    )  # fmt: skip


def _name(match: re.Match[str], corrects: bool) -> Claim | None:
    if not say.NO_NAMES.isdisjoint(_named(match["name"])[:1]):
        return None
    return Claim(
        "name", _named(match["name"]), _holds(match), True, probes=_probes("name call called go"),
        plainly=f"My name is {_unless(_holds(match))}{match['name']}",
    )  # fmt: skip


def _fits(what: str, value: str) -> bool:
    """Whether a value is one of its kind, and no second thought."""
    shape = next((shape for kind, shape in say.SHAPES if kind.search(what)), None)
    return not say.JOINED.search(value) and (shape is None or bool(shape.match(value)))


def _attribute(match: re.Match[str], corrects: bool) -> Claim | None:
    what = " ".join(match["what"].lower().replace("favorite", "favourite").replace("e-mail", "email").split())
    value = match["value"]
    if not _fits(what, value):
        return None
    favourite = "favourite" in what
    return Claim(
        what, _named(value), _holds(match), True, kind="preference" if favourite else "identity",
        firm=not _holds(match), probes=_probes(what, "favorite" if favourite else ""),
        plainly=f"My {what} is {_unless(_holds(match))}{value}",
    )  # fmt: skip


def _kin(match: re.Match[str], corrects: bool) -> Claim | None:
    value = match["value"]
    what = (match.groupdict().get("what") or "name").lower()
    if not _fits(what, value):
        return None
    kin = match["kin"].lower()
    return Claim(
        f"{kin} {what}", _named(value), _holds(match), True, firm=False, probes=_probes(kin, what),
        plainly=f"My {kin}'s {what} is {_unless(_holds(match))}{value}",
    )  # fmt: skip


def _age(match: re.Match[str], corrects: bool) -> Claim | None:
    value = match["value"]
    return Claim("age", _named(value), True, True, probes=_probes("years old age"), plainly=f"I am {value} years old")


def _language(match: re.Match[str], corrects: bool) -> Claim | None:
    return Claim(
        "language of answers", _named(match["language"]), _holds(match), True, kind="preference", firm=False,
        probes=_probes("answer reply respond write speak talk"),
        plainly=f"{'Answer' if _holds(match) else 'Do not answer'} in {match['language']}",
    )  # fmt: skip


def _rule(match: re.Match[str], corrects: bool) -> Claim | None:
    rest = match["rest"]
    if say.JOINED.search(rest):
        return None
    who = (match["who"] or "").strip().lower()
    holds = match["how"].lower() == "always"
    return Claim(
        f"rule {who}".strip(), _value(rest), holds, kind="preference", firm=False, probes=_probes(rest),
        plainly=f"{who} {'always' if holds else 'never'} {rest}".strip(),
    )  # fmt: skip


def _habit(match: re.Match[str], corrects: bool) -> Claim | None:
    thing = match["thing"] or ""
    if say.POINTS.match(thing):
        return None
    verb = say.INFINITIVE.get(match["verb"].lower(), match["verb"].lower())
    firm = bool(say.NO_MORE.search(match.string)) and not _holds(match)
    return Claim(
        f"habit {verb}", _value(thing), _holds(match), kind="preference", firm=firm, probes=_probes(verb, thing),
        plainly=f"I {'' if _holds(match) else 'do not '}{verb} {thing}".strip(),
        also=("taste", "preferred") if firm and thing else (),
    )  # fmt: skip


_Read = Callable[[re.Match[str], bool], Claim | None]


def _readers() -> Iterator[tuple[re.Pattern[str], _Read]]:
    readers: tuple[tuple[tuple[str, ...], _Read], ...] = (
        (say.HOME, _home),
        (say.EMPLOYER, _employer),
        (say.TRAIT, _trait),
        (say.ALLERGY, _allergy),
        (say.PREFERRED, _preferred),
        (say.TASTE, _taste),
        (say.NAME, _name),
        (say.ATTRIBUTE, _attribute),
        (say.KIN, _kin),
        (say.AGE, _age),
        (say.LANGUAGE, _language),
        (say.HABIT, _habit),
        (say.RULE, _rule),
    )
    for patterns, read in readers:
        for one in patterns:
            yield re.compile(one + say.TAIL, re.I), read


_READERS = tuple(_readers())
