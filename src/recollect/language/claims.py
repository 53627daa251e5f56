"""Claims: a statement read as slots with values. A later value of a slot, or its denial, ends the earlier value."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Literal

from recollect.language.analysis import analyze, stem
from recollect.language.sentences import compile_pattern

ClaimValue = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """A claim that a slot has a value, or no longer has it. A denial with an empty `value` denies any value."""

    slot: str
    value: ClaimValue
    is_affirmed: bool = True
    is_single_valued: bool = False
    """True if the slot has one value at a time: a user has one home, but likes many things."""
    preferred_over: ClaimValue = ()
    kind: Literal["identity", "preference"] = field(default="identity", compare=False)
    is_promotable: bool = field(default=True, compare=False)
    """True if the claim alone is a reason to promote its statement."""
    search_terms: tuple[str, ...] = field(default=(), compare=False)
    """Index terms; nearly every other statement about the slot contains one of them."""
    plain_text: str = field(default="", compare=False)
    """The claim as a plain sentence."""
    denied_slots: tuple[str, ...] = field(default=(), compare=False)
    """Other slots whose same value it denies: a user who no longer drinks coffee no longer likes it."""

    @property
    def slots(self) -> tuple[str, ...]:
        return (self.slot, *self.denied_slots)


@dataclass(frozen=True, slots=True)
class ClaimClause:
    """An independent part of a statement, and its claim."""

    text: str
    claim: SlotClaim


def contradicts(later: SlotClaim, earlier: SlotClaim) -> bool:
    """Return True if both claims cannot hold at the same time."""
    if later.slot != earlier.slot:
        return (
            earlier.is_affirmed
            and earlier.slot in later.denied_slots
            and (later.value, later.preferred_over) == (earlier.value, earlier.preferred_over)
        )
    if later.is_affirmed and earlier.is_affirmed:
        if later.preferred_over and later.preferred_over == earlier.value:
            return not earlier.preferred_over or earlier.preferred_over == later.value
        return later.is_single_valued and later.value != earlier.value
    if not later.is_affirmed and not earlier.is_affirmed:
        return False
    denied = earlier if later.is_affirmed else later
    if not denied.value and denied.is_single_valued:
        return True  # "I quit my job" denies any employer
    return (later.value, later.preferred_over) == (earlier.value, earlier.preferred_over)


def extract_claims(text: str) -> tuple[SlotClaim, ...]:
    """Return the claims of a statement; empty if one of its clauses is not understood."""
    return tuple(clause.claim for clause in parse_clauses(text))


_MAX_LINE_LENGTH = 240
_CLAUSE_SEPARATOR = compile_pattern(r"(?:,? and |; |, but |, )(?=(?:i|i'm|my|we|please call me|call me)\b)")


@lru_cache(maxsize=2048)
def parse_clauses(text: str) -> tuple[ClaimClause, ...]:
    """Return the clauses of a statement with their claims; none if a clause is not understood, and would be lost."""
    line = " ".join(text.split())
    if not line or len(line) > _MAX_LINE_LENGTH:
        return ()
    if (whole := _parse_claim(line)) is not None:
        return (ClaimClause(line, whole),)
    parts = [part.strip() for part in _CLAUSE_SEPARATOR.split(line)]
    if len(parts) < 2:
        return ()
    clauses = [ClaimClause(part, claim) for part in parts if (claim := _parse_claim(part)) is not None]
    return tuple(clauses) if len(clauses) == len(parts) else ()


_APOSTROPHE = re.compile(r"['’‘]")
_CONTRACTIONS = (
    (re.compile(r"[’‘]"), "'"),
    (re.compile(r"\b(i)'m\b", re.I), r"\1 am"),
    (re.compile(r"\b(i|we)'ve\b", re.I), r"\1 have"),
    (re.compile(r"\b(i|we)'d\b", re.I), r"\1 would"),
    (re.compile(r"\bcan't\b", re.I), "cannot"),
    (re.compile(r"\b(do|does|is|are|did)n't\b", re.I), r"\1 not"),
    (re.compile(r"\b(my (?:[\w']+ )?name)'s\b", re.I), r"\1 is"),
)


def expand_contractions(line: str) -> str:
    """Return the line with its contractions written out."""
    if _APOSTROPHE.search(line) is None:
        return line
    for contraction, expansion in _CONTRACTIONS:
        line = contraction.sub(expansion, line)
    return line


_LISTS = tomllib.loads(resources.files(__package__).joinpath("places.toml").read_text("utf-8"))
_COUNTRIES, _CITIES, _NOT_PLACES = (
    frozenset(" ".join(_LISTS[name].split()).split(", ")) for name in ("countries", "cities", "not_places")
)


def is_country(name: str) -> bool:
    """Return True if the place contains cities: a user can live in Lisbon and in Portugal."""
    return _normalize_name(name) in _COUNTRIES


def is_place(name: str) -> bool:
    """Return True if the name is a listed place."""
    return _normalize_name(name) in _CITIES or is_country(name)


def may_be_place(name: str) -> bool:
    """Return True if a capitalized name can be a home: a listed place, or a name that is not excluded."""
    words = _normalize_name(name).split()
    return is_place(name) or (bool(words) and words[0].partition("'")[0] not in _NOT_PLACES and not name[-1].isdigit())


def _normalize_name(name: str) -> str:
    lowered = name.lower().strip(" .")
    return lowered if lowered == "the hague" else lowered.removeprefix("the ")


# Lead-in phrases, and those of them that mark a correction.
_CORRECTION = compile_pattern(r"\b(?:no|nope|actually|sorry|correction|wait|my mistake|my bad|update)\b")
_LEAD_IN = compile_pattern(r"""
    ^(?:(?:no|nope|actually|sorry|correction|oh|ah|well|and|but|so|hi|hello|hey|wait|yes|yeah|ok|okay|btw|by the way|
    fyi|please|pls|now|these days|nowadays|update|my mistake|my bad|from now on|as of today|as of now|for the record|
    just so you know|(?:please )?remember(?: that)?|(?:please )?note(?: that)?|keep in mind(?: that)?|bear in mind
    (?: that)?|don't forget(?: that)?|do not forget(?: that)?|as you know|as i said|as mentioned|thanks|right|great|
    anyway)\b[\s,:;.!—-]+)+""")


def _parse_claim(clause: str) -> SlotClaim | None:
    text = expand_contractions(clause)
    lead_in = _LEAD_IN.match(text)
    text = text[lead_in.end() :] if lead_in else text
    is_correction = bool(lead_in and _CORRECTION.search(lead_in[0]))
    matches = ((read, match) for rule, read in _CLAIM_READERS if (match := rule.fullmatch(text)) is not None)
    claims = (read(match, not match.groupdict().get("no"), is_correction) for read, match in matches)
    return next((claim for claim in claims if claim is not None), None)


def _split_name(text: str) -> ClaimValue:
    """Return the words of a name, unstemmed: `Siemens` is no plural, and `C++` is not `C`."""
    words = [word.strip(".,!'\"") for word in text.lower().split()]
    return tuple(word for word in words if word not in ("", "a", "an", "the", "on"))


def _stem_value(text: str) -> ClaimValue:
    """Return the stemmed words of a thing: `Peanuts` is `peanut`."""
    return tuple(stem(word) if word.isalpha() and word.isascii() else word for word in _split_name(text))


def _not(is_affirmed: bool, auxiliary: str = "") -> str:
    return "" if is_affirmed else f"{auxiliary}not "


def _build_search_terms(*texts: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(analyze(" ".join(texts))))


_MONTH = "(?:january|february|march|april|may|june|july|august|september|october|november|december)"
# A time in the past: "I moved to Porto last year". "In the summer" alone would be a second home.
_TIME_PHRASE = rf"""
    (?:,? (?:last (?:year|month|week|spring|summer|autumn|fall|winter|{_MONTH})|this (?:year|month|week|spring|autumn|
    winter)|in (?:{_MONTH}(?: \d{{4}})?|\d{{4}}|the (?:spring|summer|autumn|winter))|(?:a|two|three|six|
    \d+) (?:years?|months?|weeks?|days?) ago|yesterday))?"""
_TRAILING_PHRASE = rf"""
    (?:,? (?:now|these days|nowadays|again|instead|any ?more|any longer|currently|actually|after all|please|btw|too|
    by the way|for good|permanently|full[- ]time|sorry|recently|since (?:\d{{4}}|last \w+|{_MONTH}(?: \d{{4}})?)|
    not (?:in |at |for )?(?-i:[A-Z])[\w-]+(?: (?-i:[A-Z])[\w-]+)?|
    (?:that|it|this) was (?:a mistake|my mistake|an error|wrong|a misunderstanding|a joke)|i was wrong))*[.!\s]*"""
_CONJUNCTION = compile_pattern(r"""
    \b(?:and|but|or|which|who|because|so|though|although|since|while|when|if|unless|except|until|as long as)\b""")
_CESSATION = compile_pattern(r"\b(?:any ?more|any longer|no longer|stopped|quit|gave up|given up)\b")
# Words that refer to the conversation; the reference is lost later.
_POINTING_WORD = compile_pattern(r"""
    ^(?:(?:it|that|this|these|those|them|him|her|you|your|how|what|where|when|the|to|both|neither|one))\b""")
_NEGATION = r"(?P<no>(?:do not|not|no longer|never)(?: really| actually)? )?"
_ADVERBS = (
    r"(?:(?:now|currently|still|actually|really|very much|much|strongly|just|recently|usually|generally|always) )*"
)
_CAPITALIZED_WORD = r"(?-i:[A-ZÀ-Þ])[\w'.&-]*"
_PLACE = (
    rf"(?P<place>(?:the )?{_CAPITALIZED_WORD}(?: (?:{_CAPITALIZED_WORD}|de|do|da|del|la|le|upon|am|of|und)){{0,3}}?)"
    rf"(?:, (?P<within>(?-i:[A-Z])[\w.]+(?: (?-i:[A-Z])[\w.]+)?))?"
)
_ORGANIZATION = rf"(?P<org>(?:the )?{_CAPITALIZED_WORD}(?: (?:{_CAPITALIZED_WORD}|of|and|for|&)){{0,4}}?)"
_THING = r"(?P<thing>[\w'&-]+(?: (?!(?:over|than|to|and|but|or|because|when|if|so)\b)[\w'&-]+){0,4}?)"
_OTHER_THING = r"(?P<other>[\w'&-]+(?: (?!(?:and|but|or|because|when|if|so)\b)[\w'&-]+){0,4}?)"
_PERSON = rf"(?P<name>{_CAPITALIZED_WORD}(?: {_CAPITALIZED_WORD}){{0,3}}?)"
_VALUE = r"(?P<value>[^,;:!?\s][^,;:!?]{0,79}?)"
# "I'm not in Lisbon any more" may mean a trip; the clause after it counts.
_LEFT_PLACE = (
    r"(?:(?:(?:i am|we are) (?:not|no longer) in|(?:i|we) (?:have )?left) (?P<gone>[\w ]{2,30}?)"
    r"(?: any ?more| any longer)?(?:[,;]|,? and|,? but) )?"
)
_CHANGED_JOBS = r"(?:i (?:have )?(?:just |recently )?(?:changed|switched) jobs[,;]? (?:and )?)?"
# Only one trait of a group holds at a time.
_TRAIT_GROUPS: dict[str, tuple[str, ...]] = {
    "diet": ("vegetarian", "vegan", "pescatarian", "omnivore"),
    "marriage": ("married", "engaged", "divorced", "single", "widowed"),
    "hand": ("left-handed", "right-handed", "ambidextrous"),
    "work": ("retired", "unemployed", "self-employed"),
}
_GROUPED_TRAITS = "|".join(word for words in _TRAIT_GROUPS.values() for word in words)
# "Call me Monday" gives no name.
_NOT_NAMES = frozenset("monday tuesday wednesday thursday friday saturday sunday back if when on in not".split())
# "My birthday is next week" gives no birthday, and "my address is changing" gives no address.
_NO_VALUE = r"""
    (?!(?:under|on|in|at|about|up|being|going|changing|not|the same|still|hard|a secret|none|unknown|that|this|it|
    always|what|one of)\b)"""
_VALUE_SHAPES = (
    (re.compile("title|pronouns|favourite"), compile_pattern(_NO_VALUE)),
    (re.compile("birth|age$|phone|address|size"), re.compile(r".*[\d@]")),
    (re.compile("mail"), re.compile(r"\S+@\S+$")),
    (re.compile("name$|zone|town|language"), re.compile(r"[A-ZÀ-Þ]|utc|cet|[a-z]+[\d_.]")),
)
_SINGLE_ATTRIBUTE = """
    (?:full name|first name|last name|surname|nickname|birthday|date of birth|e-?mail(?: address)?|phone number|
    (?:home |work |postal )?address|time ?zone|home ?town|job title|username|shoe size|native language|age|pronouns)"""
# Relatives of whom a user has one: a wife, but not a daughter.
_SINGLE_RELATIVE = "(?:wife|husband|spouse|mother|father|mom|mum|dad|boss|manager)"
_LANGUAGES = """
    (?:english|german|french|spanish|portuguese|italian|dutch|polish|russian|ukrainian|czech|swedish|danish|norwegian|
    finnish|greek|turkish|arabic|hebrew|hindi|japanese|chinese|mandarin|korean|vietnamese|thai|hungarian|romanian|
    catalan|latin)"""
_INFINITIVES = {"eating": "eat", "drinking": "drink", "smoking": "smoke", "driving": "drive", "wearing": "wear"}


_ClaimReader = Callable[[re.Match[str], bool, bool], SlotClaim | None]
_CLAIM_READERS: list[tuple[re.Pattern[str], _ClaimReader]] = []


def _reads(*shapes: str) -> Callable[[_ClaimReader], _ClaimReader]:
    """Register a function that builds a claim from a match of one of these patterns, or None if it is no claim."""

    def register(reader: _ClaimReader) -> _ClaimReader:
        _CLAIM_READERS.extend((compile_pattern(shape + _TRAILING_PHRASE), reader) for shape in shapes)
        return reader

    return register


@_reads(
    rf"{_LEFT_PLACE}i (?:am )?{_NEGATION}{_ADVERBS}(?:live|living|based|reside|residing) {_ADVERBS}in {_PLACE}",
    rf"{_LEFT_PLACE}we {_NEGATION}{_ADVERBS}live {_ADVERBS}in {_PLACE}",
    rf"{_LEFT_PLACE}(?:i|we) (?:have )?{_ADVERBS}(?P<moved>moved|relocated) {_ADVERBS}(?:back )?"
    rf"(?:from [\w ]{{2,40}} )?to {_PLACE}(?: from [\w ]{{2,40}}?)?{_TIME_PHRASE}",
    rf"(?:i|we) (?:have )?{_ADVERBS}moved (?P<away>away from|out of) {_PLACE}{_TIME_PHRASE}",
)
def _read_home(match: re.Match[str], is_affirmed: bool, is_correction: bool) -> SlotClaim | None:
    groups, place = match.groupdict(), match["place"]
    is_singular = not match[0].lower().startswith("we ")
    # "I moved to Linux" is not an address.
    is_certain = is_place(place) or groups.get("within") or (is_correction and is_singular)
    if not may_be_place(place) or (groups.get("moved") is not None and not is_certain):
        return None
    # "I left Siemens, and I live in Porto now" makes two claims.
    if groups.get("gone") and not is_place(match["gone"]):
        return None
    is_affirmed = is_affirmed and groups.get("away") is None
    slot, plain = "home country" if is_country(place) else "home", f"I {_not(is_affirmed, 'do ')}live in {place}"
    terms = _build_search_terms("live living moved relocated based reside home", place)
    return SlotClaim(slot, _split_name(place), is_affirmed, True, search_terms=terms, plain_text=plain)


@_reads(
    rf"{_CHANGED_JOBS}i (?:am )?{_NEGATION}{_ADVERBS}(?:work|employed) {_ADVERBS}(?:at|for|by)"
    rf" {_ORGANIZATION}(?: as an? [\w -]{{3,30}}?)?",
    rf"i (?:have )?{_ADVERBS}(?:started|begun) (?:working|to work|a (?:new )?job|my new job)"
    rf" (?:at|for|with) {_ORGANIZATION}{_TIME_PHRASE}",
    rf"i (?:have )?{_ADVERBS}(?:got|found|have) (?:an?|my) (?:new )?(?:job|position|role) (?:at|with)"
    rf" {_ORGANIZATION}{_TIME_PHRASE}",
    rf"i (?:have )?{_ADVERBS}(?P<left>quit|left|resigned from|lost) my (?:old |day )?(?:job|position)"
    rf"(?: (?:at|with|for) {_ORGANIZATION})?{_TIME_PHRASE}",
    rf"i (?:have )?{_ADVERBS}(?P<left>quit|resigned from|quit working (?:at|for)|stopped working (?:at|for))"
    rf" {_ORGANIZATION}{_TIME_PHRASE}",
    rf"i (?:was|got|have been) (?P<left>laid off|fired|let go) (?:by|from|at) {_ORGANIZATION}{_TIME_PHRASE}",
)
def _read_employer(match: re.Match[str], is_affirmed: bool, _: bool) -> SlotClaim | None:
    groups, organization = match.groupdict(), match["org"] or ""
    # Vim in "I quit Vim" is not an employer.
    if groups.get("left", "").lower() == "quit" and " my " not in match[0] and not may_be_place(organization):
        return None
    is_affirmed = is_affirmed and "left" not in groups
    job = f"work at {organization}" if organization else "have a job"
    plain = f"I {_not(is_affirmed, 'do ')}{job}"
    terms = _build_search_terms("work working job employed quit left", organization)
    return SlotClaim("employer", _split_name(organization), is_affirmed, True, search_terms=terms, plain_text=plain)


@_reads(
    rf"i am {_NEGATION}(?:{_ADVERBS}|strictly |happily )(?:an? )?(?P<trait>{_GROUPED_TRAITS}"
    r"|diabetic|coeliac|celiac|pregnant|"
    r"lactose intolerant|gluten intolerant|colou?r-?blind|dyslexic|muslim|christian|hindu|buddhist|jewish|catholic)",
)
def _read_trait(match: re.Match[str], is_affirmed: bool, _: bool) -> SlotClaim | None:
    trait = match["trait"].lower()
    group = next((name for name, traits in _TRAIT_GROUPS.items() if trait in traits), None)
    slot, plain = group or f"trait {trait}", f"I am {_not(is_affirmed)}{trait}"
    terms = _build_search_terms(trait, *(_TRAIT_GROUPS[group] if group else ()))
    return SlotClaim(slot, _stem_value(trait), is_affirmed, group is not None, search_terms=terms, plain_text=plain)


@_reads(
    rf"i am {_NEGATION}{_ADVERBS}(?:severely |mildly |badly |deathly )?allergic to {_THING}",
    rf"i {_NEGATION}{_ADVERBS}have an? (?:severe |mild |bad )?(?P<thing>[\w-]+) allergy",
)
def _read_allergy(match: re.Match[str], is_affirmed: bool, _: bool) -> SlotClaim | None:
    thing, terms = match["thing"], _build_search_terms("allergic allergy", match["thing"])
    plain = f"I am {_not(is_affirmed)}allergic to {thing}"
    return SlotClaim("allergy", _stem_value(thing), is_affirmed, search_terms=terms, plain_text=plain)


@_reads(
    rf"i (?:would )?{_NEGATION}{_ADVERBS}prefer {_THING}(?: (?:over|to|rather than|than|instead of) {_OTHER_THING})?",
    rf"i {_NEGATION}{_ADVERBS}like {_THING} (?:more|better) than {_OTHER_THING}",
)
def _read_preference(match: re.Match[str], is_affirmed: bool, _: bool) -> SlotClaim | None:
    thing, other = match["thing"], match.groupdict().get("other") or ""
    if _POINTING_WORD.match(thing) or (other and _POINTING_WORD.match(other)):
        return None
    comparison = f"{thing} over {other}" if other else thing
    return SlotClaim(
        "preferred", _stem_value(thing), is_affirmed, preferred_over=_stem_value(other), kind="preference",
        search_terms=_build_search_terms(thing, other),
        plain_text=f"I {_not(is_affirmed, 'do ')}prefer {comparison}",
    )  # fmt: skip


@_reads(
    rf"i {_NEGATION}{_ADVERBS}(?P<verb>love|like|enjoy|adore|hate|dislike|detest|loathe"
    rf"|cannot stand|cannot bear) {_THING}",
)
def _read_taste(match: re.Match[str], is_affirmed: bool, _: bool) -> SlotClaim | None:
    thing = match["thing"]
    is_liked = match["verb"].lower() in ("love", "like", "enjoy", "adore")
    # "I don't hate tea" is no claim.
    if _POINTING_WORD.match(thing) or not (is_liked or is_affirmed):
        return None
    is_promotable = not is_affirmed and bool(_CESSATION.search(match.string))
    is_affirmed = is_liked and is_affirmed
    return SlotClaim(
        "taste", _stem_value(thing), is_affirmed, kind="preference", is_promotable=is_promotable,
        search_terms=_build_search_terms(thing), plain_text=f"I {_not(is_affirmed, 'do ')}like {thing}",
    )  # fmt: skip


@_reads(
    rf"my name is {_NEGATION}{_ADVERBS}{_PERSON}",
    rf"(?P<no>(?:do not|never) )?(?:you can |you may |just |everyone can )?call me {_PERSON}",
    rf"i {_NEGATION}{_ADVERBS}go by {_PERSON}",
    rf"i am {_NEGATION}{_ADVERBS}called {_PERSON}",
)
def _read_name(match: re.Match[str], is_affirmed: bool, _: bool) -> SlotClaim | None:
    name = _split_name(match["name"])
    if not _NOT_NAMES.isdisjoint(name[:1]):
        return None
    terms, plain = _build_search_terms("name call called go"), f"My name is {_not(is_affirmed)}{match['name']}"
    return SlotClaim("name", name, is_affirmed, True, search_terms=terms, plain_text=plain)


def _has_expected_shape(attribute: str, value: str) -> bool:
    shape = next((shape for kind, shape in _VALUE_SHAPES if kind.search(attribute)), None)
    return not _CONJUNCTION.search(value) and (shape is None or bool(shape.match(value)))


@_reads(
    rf"my (?:new |current )?(?P<what>{_SINGLE_ATTRIBUTE}) (?:is|=) {_NEGATION}{_ADVERBS}{_VALUE}",
    rf"my (?P<what>(?:least )?favou?rite(?: [\w-]+){{1,3}}) is {_NEGATION}{_ADVERBS}{_VALUE}",
    r"(?P<value>[^,;:!?]{1,60}?) is (?P<no>(?:not|no longer) )?my (?P<what>favou?rite(?: [\w-]+){1,3})",
)
def _read_attribute(match: re.Match[str], is_affirmed: bool, _: bool) -> SlotClaim | None:
    attribute = " ".join(match["what"].lower().replace("favorite", "favourite").replace("e-mail", "email").split())
    value = match["value"]
    if not _has_expected_shape(attribute, value):
        return None
    is_favorite = "favourite" in attribute
    return SlotClaim(
        attribute, _split_name(value), is_affirmed, True, kind="preference" if is_favorite else "identity",
        is_promotable=not is_affirmed, search_terms=_build_search_terms(attribute, "favorite" if is_favorite else ""),
        plain_text=f"My {attribute} is {_not(is_affirmed)}{value}",
    )  # fmt: skip


@_reads(
    rf"my (?P<kin>{_SINGLE_RELATIVE})'s (?P<what>name|birthday|phone number|e-?mail(?: address)?)"
    rf" is {_NEGATION}{_ADVERBS}{_VALUE}",
    rf"my (?P<kin>{_SINGLE_RELATIVE}) is {_NEGATION}(?:called|named) {_VALUE}",
)
def _read_relative(match: re.Match[str], is_affirmed: bool, _: bool) -> SlotClaim | None:
    relative, value = match["kin"].lower(), match["value"]
    attribute = (match.groupdict().get("what") or "name").lower()
    if not _has_expected_shape(attribute, value):
        return None
    return SlotClaim(
        f"{relative} {attribute}", _split_name(value), is_affirmed, True, is_promotable=False,
        search_terms=_build_search_terms(relative, attribute),
        plain_text=f"My {relative}'s {attribute} is {_not(is_affirmed)}{value}",
    )  # fmt: skip


@_reads(r"i am (?:now )?(?P<value>\d{1,3}) years old")
def _read_age(match: re.Match[str], _: bool, __: bool) -> SlotClaim | None:
    terms, plain = _build_search_terms("years old age"), f"I am {match['value']} years old"
    return SlotClaim("age", _split_name(match["value"]), True, True, search_terms=terms, plain_text=plain)


@_reads(
    r"(?:(?:always|only) )?(?P<no>(?:do not|never) )?(?:answer|reply|respond|write|speak|talk)(?: to me)?(?: only)?"
    rf" in (?P<language>{_LANGUAGES})(?: only| from now on| every time| in (?:the )?future)?",
)
def _read_language(match: re.Match[str], is_affirmed: bool, _: bool) -> SlotClaim | None:
    language = match["language"]
    return SlotClaim(
        "language of answers", _split_name(language), is_affirmed, True, kind="preference", is_promotable=False,
        search_terms=_build_search_terms("answer reply respond write speak talk"),
        plain_text=f"{'Answer' if is_affirmed else 'Do not answer'} in {language}",
    )  # fmt: skip


@_reads(
    rf"i {_NEGATION}{_ADVERBS}(?P<verb>eat|drink|smoke|drive|wear)(?: {_THING})?",
    rf"i (?:have )?{_ADVERBS}(?P<no>stopped|quit|gave up|given up) (?P<verb>{'|'.join(_INFINITIVES)})"
    rf"(?: {_THING})??{_TIME_PHRASE}",
)
def _read_habit(match: re.Match[str], is_affirmed: bool, _: bool) -> SlotClaim | None:
    thing = match["thing"] or ""
    if _POINTING_WORD.match(thing):
        return None
    verb = _INFINITIVES.get(match["verb"].lower(), match["verb"].lower())
    is_promotable = not is_affirmed and bool(_CESSATION.search(match.string))
    return SlotClaim(
        f"habit {verb}", _stem_value(thing), is_affirmed, kind="preference", is_promotable=is_promotable,
        search_terms=_build_search_terms(verb, thing),
        plain_text=f"I {_not(is_affirmed, 'do ')}{verb} {thing}".strip(),
        denied_slots=("taste", "preferred") if is_promotable and thing else (),
    )  # fmt: skip


@_reads(r"(?P<who>i |we )?(?P<how>always|never) (?P<rest>[^,;:!?]{3,80}?)")
def _read_standing_rule(match: re.Match[str], _: bool, __: bool) -> SlotClaim | None:
    who, how, rest = (match["who"] or "").strip().lower(), match["how"].lower(), match["rest"]
    if _CONJUNCTION.search(rest):
        return None
    return SlotClaim(
        f"rule {who}".strip(), _stem_value(rest), how == "always", kind="preference", is_promotable=False,
        search_terms=_build_search_terms(rest), plain_text=f"{who} {how} {rest}".strip(),
    )  # fmt: skip
