"""Detection of prompt injection in untrusted texts: obfuscation is undone, then rules of `phrases.toml` add up."""

from __future__ import annotations

import base64
import binascii
import html
import math
import re
import tomllib
import unicodedata
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import unquote

# Invisible characters, without the joiners that some scripts and emoji need.
_INVISIBLE = re.compile("[\u200b\u2060-\u2064\u206a-\u206f\ufeff\u00ad\u180e\U000e0000-\U000e007f]")
_TAG_CHARACTERS = re.compile("[\U000e0020-\U000e007e]{3,}")
_BIDI_CONTROLS = re.compile("[\u202a-\u202e\u2066-\u2069]")
# Combining strokes that are not accents.
_STROKES = re.compile("[\u0333-\u0344\u0347-\u036f\u20d0-\u20f0]")
_JOINERS = re.compile("(?<=[A-Za-z])[\u200c\u200d](?=[A-Za-z])")

# Cyrillic and Greek letters that look Latin. They are replaced only in words that mix scripts.
_HOMOGLYPHS = str.maketrans(
    "аеорсухіѕјԁһӏԛԝАЕОРСУХІЅЈВНКМТαεορυικντΑΕΟΡΤΥΙΚΝΗΒΜΖΧ",
    "aeopcyxisjdhlqwAEOPCYXISJBHKMTaeopuikvtAEOPTYIKNHBMZX",
)
_MIXED_SCRIPT_WORD = re.compile(r"\b(?=\w*[A-Za-z])(?=\w*[\u0370-\u04ff\u0500-\u052f])\w+\b")
_LEET_CHARACTERS = "013457@$"
_LEET_TO_LETTERS = str.maketrans(_LEET_CHARACTERS, "oieastas")
# A word with digits among its letters, such as "1gn0re".
_LEET_WORD = re.compile(r"\b(?=[a-z]*[013457@$][a-z]*[013457@$a-z]*)[a-z013457@$]{4,20}\b", re.IGNORECASE)
# Separated letters: "i g n o r e", "i.g.n.o.r.e".
_SPACED_WORD = re.compile(r"(?<![A-Za-z])(?:[A-Za-z][ .\-_*]){4,60}[A-Za-z](?![A-Za-z])")
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{24,8000}+={0,2}")
_HEX = re.compile(r"(?<![0-9A-Za-z])(?:[0-9a-fA-F]{2}[ ]?){16,4000}+")
_ESCAPES = re.compile(r"(?:\\u[0-9a-fA-F]{4}){6,}|(?:\\x[0-9a-fA-F]{2}){6,}")
_PERCENT = re.compile(r"(?:%[0-9a-fA-F]{2}[A-Za-z]{0,4}){6,}")
_HIDDEN_ELEMENT = re.compile(
    r"<[^<>]{0,200}(?:display:\s{0,3}none|visibility:\s{0,3}hidden|font-size:\s{0,3}0|opacity:\s{0,3}0|"
    r"color:\s{0,3}(?:white|#fff))[^<>]{0,200}>([^<]{1,4000}+)",
    re.IGNORECASE,
)
_HTML_COMMENT = re.compile("<!--(.*?)-->", re.DOTALL)
_MARKDOWN_MARKS = re.compile(r"[*`~]{1,3}(?=\w)|(?<=\w)[*`~]{1,3}|(?<!\w)_{1,3}(?=[a-zA-Z])|(?<=[a-zA-Z])_{1,3}(?!\w)")

_MIN_INVISIBLE = 3
_MAX_DECODED = 20


def deobfuscate(text: str) -> tuple[str, list[str], list[str]]:
    """Return the text as a model would read it, the texts that were hidden in it, and the techniques of hiding."""
    hidden: list[str] = []
    ways: list[str] = []
    if not text.isascii():
        text, found = _normalize_letters(text, hidden)
        ways += found
    if "&" in text and ";" in text:
        text = html.unescape(text)
    # Up to the last end: a search for the end of each of many unfinished comments would take quadratic time.
    hidden += _HTML_COMMENT.findall(text, 0, text.rfind("-->") + len("-->"))
    if "style" in text or "color" in text:
        hidden += _HIDDEN_ELEMENT.findall(text)
    if decoded := _decode_runs(text):
        ways.append("encoded text")
        hidden += decoded
    text = _SPACED_WORD.sub(lambda found: found[0][::2], text)
    text = _LEET_WORD.sub(_replace_leet, text)
    return _MARKDOWN_MARKS.sub("", text), hidden, ways


def _normalize_letters(text: str, hidden: list[str]) -> tuple[str, list[str]]:
    ways = []
    if tags := _TAG_CHARACTERS.findall(text):
        ways.append("a text in invisible characters")
        hidden += ["".join(chr(ord(sign) - 0xE0000) for sign in run) for run in tags]
    unseen = len(_INVISIBLE.findall(text)) + len(_JOINERS.findall(text))
    if unseen >= _MIN_INVISIBLE and not tags:
        ways.append("invisible characters")
    if _BIDI_CONTROLS.search(text):
        ways.append("reversed writing")
        hidden.append(_BIDI_CONTROLS.sub("", text)[::-1])
    text = _BIDI_CONTROLS.sub("", _JOINERS.sub("", _INVISIBLE.sub("", text)))
    text = _STROKES.sub("", unicodedata.normalize("NFKD", text))
    text = unicodedata.normalize("NFC", text)
    if _MIXED_SCRIPT_WORD.search(text):
        ways.append("letters of several alphabets in one word")
        text = _MIXED_SCRIPT_WORD.sub(lambda found: found[0].translate(_HOMOGLYPHS), text)
    return text, ways


def _replace_leet(found: re.Match[str]) -> str:
    word = found[0]
    digits = sum(sign in _LEET_CHARACTERS for sign in word)
    # "utf8", "sha256" and "1000" stay.
    inside = any(word[at] in _LEET_CHARACTERS and word[at + 1].isalpha() for at in range(len(word) - 1))
    return word.translate(_LEET_TO_LETTERS) if inside and digits <= len(word) // 2 and not word[-1].isdigit() else word


def _decode_runs(text: str) -> list[str]:
    found: list[str] = []
    for run in _BASE64.findall(text)[:_MAX_DECODED]:
        found += _decode_readable(_decode_base64(run))
    for run in _HEX.findall(text)[:_MAX_DECODED]:
        packed = run.replace(" ", "")
        found += _decode_readable(bytes.fromhex(packed[: len(packed) // 2 * 2]))
    for run in _ESCAPES.findall(text)[:_MAX_DECODED]:
        digits = re.findall(r"\\[ux]([0-9a-fA-F]{2,4})", run)
        found.append("".join(chr(int(code, 16)) for code in digits))
    for run in _PERCENT.findall(text)[:_MAX_DECODED]:
        found.append(unquote(run, errors="replace"))
    return [decoded for decoded in found if " " in decoded.strip() or len(decoded) > _MIN_INVISIBLE]


def _decode_base64(run: str) -> bytes:
    standard = run.rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4))
    except (binascii.Error, ValueError):
        return b""


def _decode_readable(raw: bytes) -> list[str]:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return []
    return [text] if len(text) > _MIN_INVISIBLE and " " in text and text.replace("\n", " ").isprintable() else []


_DEFAULT_WEIGHT = 0.5
_NAMED_PATTERN = re.compile("«([a-z]+)»")


@dataclass(frozen=True)
class InjectionRule:
    """Pattern with its weight, searched in texts with one of the words in `needs` and one of the strings in `has`."""

    reason: str
    weight: float
    pattern: str
    needs: frozenset[str]
    has: tuple[str, ...]

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.DOTALL)

    def matches(self, text: str, words: set[str]) -> bool:
        may_match = not self.needs or not words.isdisjoint(self.needs)
        may_match = may_match and (not self.has or any(string in text for string in self.has))
        return may_match and self.regex.search(text) is not None


@cache
def load_rules() -> tuple[InjectionRule, ...]:
    tables = tomllib.loads(files("recollect.security").joinpath("phrases.toml").read_text("utf-8"))
    words = tables.pop("words")
    return tuple(_parse_rule(reason, rule, words) for reason, rules in tables.items() for rule in rules)


def _parse_rule(reason: str, rule: dict[str, Any], words: dict[str, str]) -> InjectionRule:
    pattern = rule["pattern"]
    while _NAMED_PATTERN.search(pattern):
        pattern = _NAMED_PATTERN.sub(lambda found: words[found[1]], pattern)
    pattern = "".join(line.strip() for line in pattern.splitlines())
    needs, has = frozenset(rule.get("needs", "").split()), tuple(rule.get("has", "").split())
    return InjectionRule(reason, rule.get("weight", _DEFAULT_WEIGHT), pattern, needs, has)


AGENT_TRUST = 0.8
"""Trust of the texts of the agent itself. Texts with less trust come from pages, tools and other parties."""

QUARANTINE_SCORE = 0.5
"""Texts of other parties with at least this score are quarantined."""

AGENT_QUARANTINE_SCORE = 0.8
"""The same for texts of the agent, which may quote pages and contain its own instructions."""

_HEAD_LENGTH, _TAIL_LENGTH = 32_000, 8_000

_WORD = re.compile(r"[a-z']+")
_BLANKS = re.compile(r"[^\S\n]+")
# Weights of hiding techniques. Encoded text alone is common on the web.
_TECHNIQUE_WEIGHTS = {
    "a text in invisible characters": 0.6,
    "invisible characters": 0.4,
    "reversed writing": 0.3,
    "letters of several alphabets in one word": 0.4,
    "encoded text": 0.1,
}
# Additional weight of an instruction in a hidden part.
_HIDDEN_WEIGHT = 0.25


class InjectionVerdict(NamedTuple):
    """Score of a text from 0 to 1, and the reasons with the heaviest first."""

    score: float
    reasons: tuple[str, ...]


def score_injection(text: str) -> InjectionVerdict:
    """Return the injection score of a text, of which at most 32,000 first and 8,000 last characters are scanned."""
    if len(text) > _HEAD_LENGTH + _TAIL_LENGTH:
        text = f"{text[:_HEAD_LENGTH]}\n{text[-_TAIL_LENGTH:]}"
    plain, hidden, techniques = deobfuscate(text)
    weights: dict[str, float] = {technique: _TECHNIQUE_WEIGHTS[technique] for technique in techniques}
    for part, is_hidden in ((plain, False), *((part, True) for part in hidden)):
        signs = _find_signs(part)
        for reason, weight in signs.items():
            weights[reason] = max(weights.get(reason, 0.0), weight)
        if signs and is_hidden:
            weights["stands in a hidden part"] = _HIDDEN_WEIGHT
    score = 1.0 - math.prod(1.0 - weight for weight in weights.values())
    return InjectionVerdict(round(score, 3), tuple(sorted(weights, key=lambda reason: (-weights[reason], reason))))


def find_quarantine_reasons(text: str, trust: float) -> tuple[str, ...]:
    """Return the reasons to quarantine a text with this trust; empty if it is harmless.

    Texts with full trust are never quarantined: a user may give instructions.
    """
    if trust >= 1.0:
        return ()
    verdict = score_injection(text)
    threshold = QUARANTINE_SCORE if trust < AGENT_TRUST else AGENT_QUARANTINE_SCORE
    return verdict.reasons if verdict.score >= threshold else ()


def _find_signs(text: str) -> dict[str, float]:
    flat = _BLANKS.sub(" ", text.lower())
    words = set(_WORD.findall(flat))
    found: dict[str, float] = {}
    for rule in load_rules():
        known = rule.weight <= found.get(rule.reason, 0.0)
        if not known and rule.matches(flat, words):
            found[rule.reason] = rule.weight
    return found
