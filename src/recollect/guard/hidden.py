"""Texts as a model would read them: letters that were hidden, disguised or encoded are brought to light."""

from __future__ import annotations

import base64
import binascii
import html
import re
import unicodedata
from typing import NamedTuple
from urllib.parse import unquote

# Seen by no reader; joiners that some scripts and emoji need are not among them.
_UNSEEN = re.compile("[\u200b\u2060-\u2064\u206a-\u206f\ufeff\u00ad\u180e\U000e0000-\U000e007f]")
_TAGS = re.compile("[\U000e0020-\U000e007e]{3,}")
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_JOINED = re.compile("(?<=[A-Za-z])[\u200c\u200d](?=[A-Za-z])")

# Letters of other alphabets that look like ours. Only words that mix alphabets are read with these.
_ALIKE = str.maketrans(
    "аеорсухіѕјԁһӏԛԝАЕОРСУХІЅЈВНКМТαεορυικντΑΕΟΡΤΥΙΚΝΗΒΜΖΧ",
    "aeopcyxisjdhlqwAEOPCYXISJBHKMTaeopuikvtAEOPTYIKNHBMZX",
)
_MIXED = re.compile(r"\b(?=\w*[A-Za-z])(?=\w*[\u0370-\u04ff\u0500-\u052f])\w+\b")
_FOR_LETTERS = "013457@$"
_DIGITS = str.maketrans(_FOR_LETTERS, "oieastas")
# A word with digits in the midst of its letters, such as "1gn0re": at least two, for "h2o" and "utf8" are words.
_LEET = re.compile(r"\b(?=[a-z]*[013457@$][a-z]*[013457@$a-z]*)[a-z013457@$]{4,20}\b", re.IGNORECASE)
# One letter at a time, with the same sign between: "i g n o r e", "i.g.n.o.r.e".
_SPACED = re.compile(r"(?<![A-Za-z])(?:[A-Za-z][ .\-_*]){4,60}[A-Za-z](?![A-Za-z])")
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{24,8000}+={0,2}")
_HEX = re.compile(r"(?<![0-9A-Za-z])(?:[0-9a-fA-F]{2}[ ]?){16,4000}+")
_ESCAPES = re.compile(r"(?:\\u[0-9a-fA-F]{4}){6,}|(?:\\x[0-9a-fA-F]{2}){6,}")
_PERCENT = re.compile(r"(?:%[0-9a-fA-F]{2}[A-Za-z]{0,4}){6,}")
_UNSHOWN = re.compile(
    r"<[^<>]{0,200}(?:display:\s{0,3}none|visibility:\s{0,3}hidden|font-size:\s{0,3}0|opacity:\s{0,3}0|"
    r"color:\s{0,3}(?:white|#fff))[^<>]{0,200}>([^<]{1,4000}+)",
    re.IGNORECASE,
)
_MARKS = re.compile(r"[*`~]{1,3}(?=\w)|(?<=\w)[*`~]{1,3}|(?<!\w)_{1,3}(?=[a-zA-Z])|(?<=[a-zA-Z])_{1,3}(?!\w)")

_LEAST_UNSEEN = 3
_MOST_DECODED = 20


class Seen(NamedTuple):
    """A text in plain letters, what was hidden in it, and how it was hidden."""

    text: str
    hidden: tuple[str, ...]
    ways: tuple[str, ...]


def plainly(text: str) -> Seen:
    """The text as a model would read it."""
    hidden: list[str] = []
    ways: list[str] = []
    if not text.isascii():
        text, found = _visible(text, hidden)
        ways += found
    if "&" in text and ";" in text:
        text = html.unescape(text)
    hidden += _comments(text)
    if "style" in text or "color" in text:
        hidden += _UNSHOWN.findall(text)
    decoded = _decoded(text)
    if decoded:
        ways.append("encoded text")
        hidden += decoded
    text = _SPACED.sub(lambda found: found[0][::2], text)
    text = _LEET.sub(_with_letters, text)
    return Seen(_MARKS.sub("", text), tuple(hidden), tuple(ways))


def _visible(text: str, hidden: list[str]) -> tuple[str, list[str]]:
    ways = []
    tags = _TAGS.findall(text)
    if tags:
        ways.append("a text in invisible characters")
        hidden += ["".join(chr(ord(sign) - 0xE0000) for sign in run) for run in tags]
    unseen = len(_UNSEEN.findall(text)) + len(_JOINED.findall(text))
    if unseen >= _LEAST_UNSEEN and not tags:
        ways.append("invisible characters")
    if _BIDI.search(text):
        ways.append("reversed writing")
        hidden.append(_BIDI.sub("", text)[::-1])
    text = _BIDI.sub("", _JOINED.sub("", _UNSEEN.sub("", text)))
    text = unicodedata.normalize("NFKC", text)
    text = "".join(sign for sign in unicodedata.normalize("NFD", text) if not _is_decoration(sign))
    text = unicodedata.normalize("NFC", text)
    mixed = _MIXED.findall(text)
    if mixed:
        ways.append("letters of several alphabets in one word")
        text = _MIXED.sub(lambda found: found[0].translate(_ALIKE), text)
    return text, ways


def _comments(text: str) -> list[str]:
    """What stands in the comments of a page."""
    found = []
    at = text.find("<!--")
    while at >= 0:
        end = text.find("-->", at + 4)
        if end < 0:
            break
        found.append(text[at + 4 : end])
        at = text.find("<!--", end)
    return found


def _is_decoration(sign: str) -> bool:
    """Strokes that are laid over letters to hide them from a filter; accents are none."""
    return "\u0333" <= sign <= "\u0344" or "\u0347" <= sign <= "\u036f" or "\u20d0" <= sign <= "\u20f0"


def _with_letters(found: re.Match[str]) -> str:
    word = found[0]
    digits = sum(sign in _FOR_LETTERS for sign in word)
    # "utf8", "sha256" and "1000" are what they are.
    inside = any(word[at] in _FOR_LETTERS and word[at + 1].isalpha() for at in range(len(word) - 1))
    return word.translate(_DIGITS) if inside and digits <= len(word) // 2 and not word[-1].isdigit() else word


def _decoded(text: str) -> list[str]:
    """Texts that stand here in a code; what becomes no text by decoding was none."""
    found: list[str] = []
    for run in _BASE64.findall(text)[:_MOST_DECODED]:
        found += _readable(_base64(run))
    for run in _HEX.findall(text)[:_MOST_DECODED]:
        packed = run.replace(" ", "")
        found += _readable(bytes.fromhex(packed[: len(packed) // 2 * 2]))
    for run in _ESCAPES.findall(text)[:_MOST_DECODED]:
        digits = re.findall(r"\\[ux]([0-9a-fA-F]{2,4})", run)
        found.append("".join(chr(int(one, 16)) for one in digits))
    for run in _PERCENT.findall(text)[:_MOST_DECODED]:
        found.append(unquote(run, errors="replace"))
    return [one for one in found if " " in one.strip() or len(one) > _LEAST_UNSEEN]


def _base64(run: str) -> bytes:
    usual = run.rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(usual + "=" * (-len(usual) % 4))
    except (binascii.Error, ValueError):
        return b""


def _readable(raw: bytes) -> list[str]:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return []
    return [text] if len(text) > _LEAST_UNSEEN and " " in text and text.replace("\n", " ").isprintable() else []
