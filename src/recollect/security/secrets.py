"""Detection of secrets and personal data in texts, by issuer marks, names of values, formats and checksums."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

_IBAN_COUNTRIES = {
    15: "NO", 16: "BE", 18: "DK FI FO GL NL", 19: "MK SI", 20: "AT BA EE KZ LT LU XK", 21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST", 26: "IS TR", 27: "FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HU LB PL SV", 29: "BR EG PS QA UA",
    30: "JO KW MU", 31: "MT SC", 32: "LC",
}  # fmt: skip
_IBAN_LENGTHS = {country: length for length, countries in _IBAN_COUNTRIES.items() for country in countries.split()}

# First digits of the numbers of an issuer, and their lengths.
_CARD_PREFIXES = (
    (("4",), (13, 16, 19)),
    (tuple(str(n) for n in range(51, 56)), (16,)),
    (tuple(str(n) for n in range(2221, 2721)), (16,)),
    (("34", "37"), (15,)),
    (("300", "301", "302", "303", "304", "305", "36", "38"), (14,)),
    (("6011", "644", "645", "646", "647", "648", "649", "65"), (16, 19)),
    (tuple(str(n) for n in range(3528, 3590)), (16, 17, 18, 19)),
    (("62",), (16, 17, 18, 19)),
)


def is_card(digits: str) -> bool:
    """Return whether the digits are a card number: prefix and length of an issuer, and a correct Luhn checksum."""
    if not any(len(digits) in lengths and digits.startswith(begins) for begins, lengths in _CARD_PREFIXES):
        return False
    doubled = [int(digit) for digit in digits]
    for at in range(len(doubled) - 2, -1, -2):
        doubled[at] = doubled[at] * 2 - 9 * (doubled[at] > 4)
    # A row of one digit can have a correct checksum.
    return sum(doubled) % 10 == 0 and len(set(digits)) > 1


def is_iban(text: str) -> bool:
    """Return whether the text is an IBAN: the length of its country, and a correct checksum modulo 97."""
    if _IBAN_LENGTHS.get(text[:2]) != len(text):
        return False
    return int("".join(str(int(character, 36)) for character in text[4:] + text[:4])) % 97 == 1


def compute_entropy(text: str) -> float:
    """Return the bits per character: about three in words, four and more in random keys."""
    if not text:
        return 0.0
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


class SecretFinding(NamedTuple):
    """Kind and position of a secret or a piece of personal data, without its text."""

    kind: str
    start: int
    end: int


_WORD = r"[A-Za-z0-9_-]"
# Text after a mark with fewer bits per character is a word or a row of x, not a random key.
_MIN_ENTROPY = 3.0
_MIN_ENTROPIES = {"voyage api key": 3.8, "private key": 0.0}
_MAX_MEASURED = 200
_MIN_IBAN_LENGTH = 15
# The shortest finding is an e-mail address: a@b.c.
_MIN_TEXT_LENGTH = 5


# Kind, marks of the issuer that start a key, and the pattern after the mark. Patterns are bounded and possessive.
_TOKEN_TABLE: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("anthropic api key", ("sk-ant-",), rf"{_WORD}{{20,200}}+"),
    ("openrouter api key", ("sk-or-",), rf"{_WORD}{{20,200}}+"),
    ("openai api key", ("sk-",), rf"(?:proj-|svcacct-|admin-)?{_WORD}{{20,200}}+"),
    ("stripe key", ("sk_live_", "sk_test_", "rk_live_"), r"[A-Za-z0-9]{16,200}+"),
    ("stripe webhook secret", ("whsec_",), r"[A-Za-z0-9+/=]{16,200}+"),
    ("aws access key", ("AKIA", "ASIA"), r"[A-Z0-9]{16}(?![A-Z0-9])"),
    ("github token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"[A-Za-z0-9]{36,255}+"),
    ("github token", ("github_pat_",), r"[A-Za-z0-9_]{22,255}+"),
    ("gitlab token", ("glpat-",), rf"{_WORD}{{20,64}}+"),
    ("slack token", ("xoxb-", "xoxp-", "xoxa-", "xapp-"), r"[A-Za-z0-9-]{10,250}+"),
    ("slack webhook", ("hooks.slack.com/services/",), r"[A-Za-z0-9/]{20,100}+"),
    ("google api key", ("AIza",), rf"{_WORD}{{35}}"),
    ("google oauth secret", ("GOCSPX-",), rf"{_WORD}{{20,60}}+"),
    ("google oauth token", ("ya29.",), rf"{_WORD}{{20,500}}+"),
    ("hugging face token", ("hf_",), r"[A-Za-z0-9]{30,60}+"),
    ("npm token", ("npm_",), r"[A-Za-z0-9]{36}"),
    ("pypi token", ("pypi-AgEI",), rf"{_WORD}{{50,500}}+"),
    ("sendgrid key", ("SG.",), rf"{_WORD}{{16,32}}\.{_WORD}{{30,60}}+"),
    ("mailgun key", ("key-",), r"[0-9a-f]{32}(?![0-9a-f])"),
    ("twilio key", ("SK",), r"[0-9a-f]{32}(?![0-9a-f])"),
    ("digitalocean token", ("dop_v1_",), r"[0-9a-f]{64}"),
    ("shopify token", ("shpat_",), r"[0-9a-fA-F]{32}"),
    ("databricks token", ("dapi",), r"[0-9a-f]{32}(?![0-9a-f])"),
    ("groq api key", ("gsk_",), r"[A-Za-z0-9]{40,60}+"),
    ("xai api key", ("xai-",), r"[A-Za-z0-9]{40,120}+"),
    ("replicate token", ("r8_",), r"[A-Za-z0-9]{30,50}+"),
    ("perplexity api key", ("pplx-",), r"[A-Za-z0-9]{32,80}+"),
    ("voyage api key", ("pa-",), rf"{_WORD}{{40,60}}"),
    ("linear key", ("lin_api_",), r"[A-Za-z0-9]{30,60}+"),
    ("telegram token", (":AA",), rf"{_WORD}{{33}}(?![A-Za-z0-9_-])"),
    ("json web token", ("eyJ",), rf"{_WORD}{{8,600}}+\.eyJ{_WORD}{{8,4000}}+\.{_WORD}{{10,1000}}+"),
    ("age secret key", ("AGE-SECRET-KEY-1",), r"[A-Z0-9]{50,64}+"),
    # Up to the end of the block, or as far as a key reaches without one.
    (
        "private key",
        ("-----BEGIN ",),
        r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^-]{0,20000}+(?:-----END[A-Z0-9 ]{0,60}+-----)?",
    ),
)
_TOKENS = tuple((kind, mark, re.compile(body)) for kind, marks, body in _TOKEN_TABLE for mark in marks)

# `password=…`, `"api_key": "…"` and the like: a name, an assignment sign and the value.
_ASSIGNED_NAMES = ("password", "passwd", "passphrase", "pwd", "secret", "key", "token", "credential", "credentials")
_ASSIGNED_VALUE = re.compile(
    r"(?P<between>[\"']?[ \t]{0,4}+(?:=>?|:)[ \t]{0,4}+|[ \t]{1,4}+(?:is|was)[ \t]{1,4}+)"
    r"(?P<value>\"[^\"\s]{4,200}+\"|'[^'\s]{4,200}+'|[^\s\"',;&<>{}()\[\]]{4,200}+)"
)
_ASSIGNMENT = re.compile(r"[=:]| (?:is|was) ")
# The word "key" alone has other meanings.
_KEY_PREFIX = re.compile(r"(?i)(?:api|access|private|secret|auth|encryption|signing|license|master)[ _-]?$")
_NOT_A_VALUE = re.compile(
    r"(?i)(?:\$|%|\*|<|\{|x{3,}$|\.{3}|none$|null$|true$|false$|str(?:ing)?\b|your|my[_-]|the[_-]|change|example|"
    r"placeholder|required|optional|redacted|\[redacted|os\.|env|process\.|self\.|config|settings|get|input|here|test$|"
    r"password|secret|token|https?:|[a-z_.]{1,60}+\()"
)
# Prose has "password: see below": a plain word is a value only if it is assigned or quoted.
_PLAIN_WORD = re.compile(r"[A-Za-z]{1,30}+[.:!?]?$")
# A path is not a secret, and shells call the working directory `pwd`.
_FILE_PATH = re.compile(r"(?:(?:~|\.{1,2}|[A-Za-z]:)[/\\]|/(?=[\w.-]{1,60}+/))[\w./\\-]{0,200}+$")
_TOP_DIRECTORY = re.compile(r"/[a-z]{0,20}+/?$")
_RANDOM_SEGMENT = re.compile(r"(?=[^/\\]*[0-9])(?=[^/\\]*[a-z])(?=[^/\\]*[A-Z])[^/\\]{8}")
_URL_PASSWORD = re.compile(r"://([^\s/:@\"'<>]{0,100}+):([^\s/@\"'<>]{3,200}+)@")
# In the ranges that are assigned.
_SSN = re.compile(r"(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\d-])")
# Groups of digits: cards and phone numbers. The text before is checked afterwards: without a lookbehind the search is
# three times as fast.
_DIGITS = re.compile(r"\d(?:[ ().\-/]{0,2}+\d){6,18}+(?![\w]|[.,]\d)")
# One in ten order numbers has the checksum of a card.
_ORDER_NUMBER = re.compile(
    r"(?i)\b(?:order|invoice|tracking|parcel|shipment|booking|reservation|reference|ref|ticket|customer|case|serial)"
    r"(?: (?:number|no|id|code|is|was|nr)\.?){0,2}[ #:.]{1,4}$"
)
_LABEL_LENGTH = 40
_IBAN = re.compile(r"[A-Z]{2}\d\d(?: ?[A-Z0-9]){11,30}+(?![a-z0-9])")
_EMAIL_LOCAL_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._%+-")
_MAX_EMAIL_LOCAL = 64
_EMAIL_HOST = re.compile(r"[A-Za-z0-9-]{1,63}+(?:\.[A-Za-z0-9-]{1,63}+){1,8}+")
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}+")
_LOCAL_PHONE = re.compile(r"\(?\d{3}\)?[ .-]{1,2}\d{3}[ .-]\d{4}|0\d{2,5}[ /-]\d[\d -]{4,10}+")
# Every key of an issuer has a run of at least 19 characters.
_LONG_RUN = re.compile(r"[A-Za-z0-9_./+-]{19}")
_TOKEN_MARKS = re.compile("|".join(re.escape(mark) for _, mark, _ in _TOKENS))

PERSONAL_KINDS = frozenset({"email", "phone", "iban"})
"""Kinds of personal data; all other kinds are secrets."""


def find_secrets(text: str) -> list[SecretFinding]:
    """Return secrets and personal data in text order, without overlaps.

    Of two overlapping findings the first is kept, and a secret before personal data: a password before an @ looks like
    an address.
    """
    if len(text) < _MIN_TEXT_LENGTH:
        return []
    candidates = [finding for find in _FINDERS for finding in find(text)]
    findings: list[SecretFinding] = []
    for finding in sorted(candidates, key=lambda found: (found.start, found.kind in PERSONAL_KINDS, -found.end)):
        if not findings or finding.start >= findings[-1].end:
            findings.append(finding)
    return findings


def _find_tokens(text: str) -> Iterator[SecretFinding]:
    if _LONG_RUN.search(text) is None or _TOKEN_MARKS.search(text) is None:
        return
    for kind, mark, pattern in _TOKENS:
        at = text.find(mark)
        while at >= 0:
            behind = at + len(mark)
            body = pattern.match(text, behind)
            # "sk-" continues a word in "task-".
            continues = at > 0 and mark[0].isalnum() and (text[at - 1].isalnum() or text[at - 1] == "_")
            if body is not None and not continues:
                behind = body.end()
                if compute_entropy(body[0][:_MAX_MEASURED]) >= _MIN_ENTROPIES.get(kind, _MIN_ENTROPY):
                    yield SecretFinding(kind, at, behind)
            at = text.find(mark, behind)


def _find_assignments(text: str) -> Iterator[SecretFinding]:
    if not _ASSIGNMENT.search(text):
        return
    low = text.lower()
    for name in _ASSIGNED_NAMES:
        at = low.find(name)
        while at >= 0:
            behind = at + len(name)
            found = _ASSIGNED_VALUE.match(text, behind)
            if found is not None and (name != "key" or _KEY_PREFIX.search(text, max(0, at - 12), at)):
                start, value = found.start("value"), found["value"]
                quoted = value[0] in "\"'"
                bare = value.strip("\"'")
                if _is_secret(name, bare, certain=quoted or "=" in found["between"]):
                    kind = "password" if name.startswith("p") else "secret"
                    yield SecretFinding(kind, start + quoted, start + quoted + len(bare))
                behind = found.end()
            at = low.find(name, behind)


def _is_secret(name: str, value: str, *, certain: bool) -> bool:
    """Return whether an assigned value is a secret. A token or key must look random; a password need not."""
    if _NOT_A_VALUE.match(value) or (_PLAIN_WORD.match(value) and not certain) or _is_path(name, value):
        return False
    if name.startswith("p") or (name == "secret" and certain):
        return True
    return (
        len(value) >= 12 and compute_entropy(value) >= _MIN_ENTROPY and any(character.isdigit() for character in value)
    )


def _is_path(name: str, value: str) -> bool:
    if name == "pwd" and _TOP_DIRECTORY.match(value):
        return True
    return _FILE_PATH.match(value) is not None and _RANDOM_SEGMENT.search(value) is None


def _find_url_passwords(text: str) -> Iterator[SecretFinding]:
    if "://" in text and "@" in text:
        for found in _URL_PASSWORD.finditer(text):
            if not _NOT_A_VALUE.match(found[2]):
                yield SecretFinding("password in a url", found.start(2), found.end(2))


def _find_numbers(text: str) -> Iterator[SecretFinding]:
    for found in _DIGITS.finditer(text):
        start = found.start()
        before = text[max(0, start - 2) : start]
        opened = before[-1:] in ("(", "+") or before == "+("
        start -= len(before) - len(before.rstrip("+(")) if opened else 0
        if start and (text[start - 1].isalnum() or text[start - 1] in "_.,+-$€£#"):
            continue
        number = text[start : found.end()]
        digits = "".join(filter(str.isdigit, number))
        if not opened and _SSN.fullmatch(number):
            yield SecretFinding("us social security number", start, found.end())
        elif not opened and is_card(digits) and not _ORDER_NUMBER.search(text, max(0, start - _LABEL_LENGTH), start):
            yield SecretFinding("payment card", start, found.end())
        elif _is_phone(number, digits):
            yield SecretFinding("phone", start, found.end())


def _is_phone(number: str, digits: str) -> bool:
    if _DATE.match(number) or not 7 <= len(digits) <= 15:
        return False
    return number.startswith("+") or (number != digits and bool(_LOCAL_PHONE.fullmatch(number)))


def _find_ibans(text: str) -> Iterator[SecretFinding]:
    for found in _IBAN.finditer(text):
        start, number = found.start(), found[0]
        if start and text[start - 1].isalnum():
            continue
        # Words in capitals may follow; the country determines the length.
        while len(number) >= _MIN_IBAN_LENGTH and not is_iban(number.replace(" ", "")):
            number = number[:-1].rstrip()
        if len(number) >= _MIN_IBAN_LENGTH:
            yield SecretFinding("iban", start, start + len(number))


def _find_emails(text: str) -> Iterator[SecretFinding]:
    at = text.find("@")
    while at >= 0:
        start = at
        while start and at - start < _MAX_EMAIL_LOCAL and text[start - 1] in _EMAIL_LOCAL_CHARACTERS:
            start -= 1
        host = _EMAIL_HOST.match(text, at + 1) if start < at else None
        if host is not None:
            yield SecretFinding("email", start, host.end())
        at = text.find("@", at + 1 if host is None else host.end())


_FINDERS: tuple[Callable[[str], Iterator[SecretFinding]], ...] = (
    _find_tokens,
    _find_assignments,
    _find_url_passwords,
    _find_numbers,
    _find_ibans,
    _find_emails,
)
