"""Secrets and personal data in a text: what kind each is and where it stands, found by marks that are cheap to see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from recollect.guard.checksums import entropy, is_card, is_iban


class Finding(NamedTuple):
    """One secret, or one piece of personal data: the text itself is not carried along, only where it stands."""

    kind: str
    start: int
    end: int


class _Token(NamedTuple):
    """A key that begins with a mark of its issuer. `body` follows the mark, and has a bound: no text is read twice."""

    kind: str
    mark: str
    body: re.Pattern[str]
    least_entropy: float = 0.0


_WORDY = r"[A-Za-z0-9_-]"
# Below this many bits a character, what follows a mark is a word or a row of x, and not drawn by lot.
_RANDOM = 3.0
_MEASURED = 200
_SHORTEST_IBAN = 15
# Nothing that is looked for is shorter than the shortest address: a@b.c.
_SHORTEST = 5


def _token(kind: str, mark: str, body: str, least_entropy: float = _RANDOM) -> _Token:
    return _Token(kind, mark, re.compile(body), least_entropy)


_TOKENS: tuple[_Token, ...] = (
    _token("anthropic api key", "sk-ant-", rf"{_WORDY}{{20,200}}+"),
    _token("openrouter api key", "sk-or-", rf"{_WORDY}{{20,200}}+"),
    _token("openai api key", "sk-", rf"(?:proj-|svcacct-|admin-)?{_WORDY}{{20,200}}+"),
    _token("stripe key", "sk_live_", r"[A-Za-z0-9]{16,200}+"),
    _token("stripe key", "sk_test_", r"[A-Za-z0-9]{16,200}+"),
    _token("stripe key", "rk_live_", r"[A-Za-z0-9]{16,200}+"),
    _token("stripe webhook secret", "whsec_", r"[A-Za-z0-9+/=]{16,200}+"),
    _token("aws access key", "AKIA", r"[A-Z0-9]{16}(?![A-Z0-9])"),
    _token("aws access key", "ASIA", r"[A-Z0-9]{16}(?![A-Z0-9])"),
    _token("github token", "ghp_", r"[A-Za-z0-9]{36,255}+"),
    _token("github token", "gho_", r"[A-Za-z0-9]{36,255}+"),
    _token("github token", "ghu_", r"[A-Za-z0-9]{36,255}+"),
    _token("github token", "ghs_", r"[A-Za-z0-9]{36,255}+"),
    _token("github token", "ghr_", r"[A-Za-z0-9]{36,255}+"),
    _token("github token", "github_pat_", r"[A-Za-z0-9_]{22,255}+"),
    _token("gitlab token", "glpat-", rf"{_WORDY}{{20,64}}+"),
    _token("slack token", "xoxb-", r"[A-Za-z0-9-]{10,250}+"),
    _token("slack token", "xoxp-", r"[A-Za-z0-9-]{10,250}+"),
    _token("slack token", "xoxa-", r"[A-Za-z0-9-]{10,250}+"),
    _token("slack token", "xapp-", r"[A-Za-z0-9-]{10,250}+"),
    _token("slack webhook", "hooks.slack.com/services/", r"[A-Za-z0-9/]{20,100}+"),
    _token("google api key", "AIza", rf"{_WORDY}{{35}}"),
    _token("google oauth secret", "GOCSPX-", rf"{_WORDY}{{20,60}}+"),
    _token("google oauth token", "ya29.", rf"{_WORDY}{{20,500}}+"),
    _token("hugging face token", "hf_", r"[A-Za-z0-9]{30,60}+"),
    _token("npm token", "npm_", r"[A-Za-z0-9]{36}"),
    _token("pypi token", "pypi-AgEI", rf"{_WORDY}{{50,500}}+"),
    _token("sendgrid key", "SG.", rf"{_WORDY}{{16,32}}\.{_WORDY}{{30,60}}+"),
    _token("mailgun key", "key-", r"[0-9a-f]{32}(?![0-9a-f])"),
    _token("twilio key", "SK", r"[0-9a-f]{32}(?![0-9a-f])"),
    _token("digitalocean token", "dop_v1_", r"[0-9a-f]{64}"),
    _token("shopify token", "shpat_", r"[0-9a-fA-F]{32}"),
    _token("databricks token", "dapi", r"[0-9a-f]{32}(?![0-9a-f])"),
    _token("groq api key", "gsk_", r"[A-Za-z0-9]{40,60}+"),
    _token("xai api key", "xai-", r"[A-Za-z0-9]{40,120}+"),
    _token("replicate token", "r8_", r"[A-Za-z0-9]{30,50}+"),
    _token("perplexity api key", "pplx-", r"[A-Za-z0-9]{32,80}+"),
    _token("voyage api key", "pa-", rf"{_WORDY}{{40,60}}", 3.8),
    _token("linear key", "lin_api_", r"[A-Za-z0-9]{30,60}+"),
    _token("telegram token", ":AA", rf"{_WORDY}{{33}}(?![A-Za-z0-9_-])"),
    _token("json web token", "eyJ", rf"{_WORDY}{{8,600}}+\.eyJ{_WORDY}{{8,4000}}+\.{_WORDY}{{10,1000}}+"),
    _token("age secret key", "AGE-SECRET-KEY-1", r"[A-Z0-9]{50,64}+"),
    # The block as far as its end, and without one as far as it can be a key.
    _token(
        "private key",
        "-----BEGIN ",
        r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^-]{0,20000}+(?:-----END[A-Z0-9 ]{0,60}+-----)?",
        0.0,
    ),
)  # fmt: skip

# `password=…`, `"api_key": "…"` and the like: what the value is called, what stands between, and the value.
_NAMES = ("password", "passwd", "passphrase", "pwd", "secret", "key", "token", "credential", "credentials")
_VALUE = re.compile(
    r"(?P<between>[\"']?[ \t]{0,4}+(?:=>?|:)[ \t]{0,4}+)"
    r"(?P<value>\"[^\"\s]{4,200}+\"|'[^'\s]{4,200}+'|[^\s\"',;&<>{}()\[\]]{4,200}+)"
)
# A key by itself may open a door or a dictionary.
_OPENS = re.compile(r"(?i)(?:api|access|private|secret|auth|encryption|signing|license|master)[ _-]?$")
_NOT_A_VALUE = re.compile(
    r"(?i)(?:\$|%|\*|<|\{|x{3,}$|\.{3}|none$|null$|true$|false$|str(?:ing)?\b|your|my[_-]|the[_-]|change|example|"
    r"placeholder|required|optional|redacted|\[redacted|os\.|env|process\.|self\.|config|settings|get|input|here|test$|"
    r"password|secret|token|https?:|[a-z_.]{1,60}+\()"
)
# Prose says "password: see below" too; a value that is one plain word is taken only where it is assigned or quoted.
_PLAIN = re.compile(r"[A-Za-z]{1,30}+[.:!?]?$")
# A file's place is no secret: `pwd` is also what shells call the directory they are in.
_PATH = re.compile(r"(?:(?:~|\.{1,2}|[A-Za-z]:)[/\\]|/(?=[\w.-]{1,60}+/))[\w./\\-]{0,200}+$")
_TOP = re.compile(r"/[a-z]{0,20}+/?$")
_BY_LOT = re.compile(r"(?=[^/\\]*[0-9])(?=[^/\\]*[a-z])(?=[^/\\]*[A-Z])[^/\\]{8}")
_IN_URL = re.compile(r"://([^\s/:@\"'<>]{0,100}+):([^\s/@\"'<>]{3,200}+)@")
_SSN = re.compile(r"\d{3}-\d\d-\d{4}(?![\d-])")
# Digits in groups, with little between two of them: cards and phones. What comes before is looked at afterwards: a
# pattern that begins with what it looks for is found three times as fast.
_DIGITS = re.compile(r"\d(?:[ ().\-/]{0,2}+\d){6,18}+(?![\w]|[.,]\d)")
_IBAN = re.compile(r"[A-Z]{2}\d\d(?: ?[A-Z0-9]){11,30}+(?![a-z0-9])")
_LOCAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._%+-")
_LONGEST_LOCAL = 64
_HOST = re.compile(r"[A-Za-z0-9-]{1,63}+(?:\.[A-Za-z0-9-]{1,63}+){1,8}+")
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}+")
_LOCAL_PHONE = re.compile(r"\(?\d{3}\)?[ .-]{1,2}\d{3}[ .-]\d{4}|0\d{2,5}[ /-]\d[\d -]{4,10}+")
# Every key of an issuer has a run of so many signs.
_RUN = re.compile(r"[A-Za-z0-9_./+-]{19}")
_MARKS = re.compile("|".join(re.escape(token.mark) for token in _TOKENS))

PERSONAL = frozenset({"email", "phone", "iban"})
"""Kinds that are about a person. All others open something, or are worth money by themselves."""


def findings(text: str) -> list[Finding]:
    """Everything in a text that is secret or personal, in its order; where two overlap, the one that begins first.

    Of two that begin together it is the secret: a password before an @ looks like an address.
    """
    if len(text) < _SHORTEST:
        return []
    found = [one for look in _LOOKS for one in look(text)]
    if not found:
        return found
    found.sort(key=lambda one: (one.start, one.kind in PERSONAL, -one.end))
    kept: list[Finding] = []
    for one in found:
        if not kept or one.start >= kept[-1].end:
            kept.append(one)
    return kept


def _tokens(text: str) -> Iterator[Finding]:
    if _RUN.search(text) is None or _MARKS.search(text) is None:
        return
    for token in _TOKENS:
        at = text.find(token.mark)
        while at >= 0:
            behind = at + len(token.mark)
            body = token.body.match(text, behind)
            if body is not None and _stands_alone(text, at, token.mark):
                behind = body.end()
                if entropy(body[0][:_MEASURED]) >= token.least_entropy:
                    yield Finding(token.kind, at, behind)
            at = text.find(token.mark, behind)


def _stands_alone(text: str, at: int, mark: str) -> bool:
    """Within a word a mark is no mark: "task-", "disk-"."""
    return at == 0 or not mark[0].isalnum() or not (text[at - 1].isalnum() or text[at - 1] == "_")


def _assigned(text: str) -> Iterator[Finding]:
    if "=" not in text and ":" not in text:
        return
    low = text.lower()
    for name in _NAMES:
        at = low.find(name)
        while at >= 0:
            behind = at + len(name)
            found = _VALUE.match(text, behind)
            if found is not None and (name != "key" or _OPENS.search(text, max(0, at - 12), at)):
                start, value = found.start("value"), found["value"]
                quoted = value[0] in "\"'"
                bare = value.strip("\"'")
                if _is_secret(name, bare, certain=quoted or "=" in found["between"]):
                    kind = "password" if name.startswith("p") else "secret"
                    yield Finding(kind, start + quoted, start + quoted + len(bare))
                behind = found.end()
            at = low.find(name, behind)


def _is_secret(name: str, value: str, *, certain: bool) -> bool:
    """A password is whatever it is; what is called a token or a key has to look like one that was drawn by lot."""
    if _NOT_A_VALUE.match(value) or (_PLAIN.match(value) and not certain) or _is_path(name, value):
        return False
    if name.startswith("p") or (name == "secret" and certain):
        return True
    return len(value) >= 12 and entropy(value) >= _RANDOM and any(sign.isdigit() for sign in value)


def _is_path(name: str, value: str) -> bool:
    """Whether it names a file, and no part of the name looks like a key that happens to have slashes in it."""
    if name == "pwd" and _TOP.match(value):
        return True
    return _PATH.match(value) is not None and _BY_LOT.search(value) is None


def _in_urls(text: str) -> Iterator[Finding]:
    if "://" in text and "@" in text:
        for found in _IN_URL.finditer(text):
            if not _NOT_A_VALUE.match(found[2]):
                yield Finding("password in a url", found.start(2), found.end(2))


def _numbers(text: str) -> Iterator[Finding]:
    for found in _DIGITS.finditer(text):
        start, said = found.start(), found[0]
        before = text[max(0, start - 2) : start]
        opened = before[-1:] in ("(", "+") or before == "+("
        start -= len(before) - len(before.rstrip("+(")) if opened else 0
        if start and (text[start - 1].isalnum() or text[start - 1] in "_.,+-$€£#"):
            continue
        said = text[start : found.end()]
        digits = "".join(filter(str.isdigit, said))
        if not opened and _SSN.fullmatch(said) and _is_assigned_ssn(digits):
            yield Finding("us social security number", start, found.end())
        elif not opened and is_card(digits):
            yield Finding("payment card", start, found.end())
        elif _is_phone(said, digits):
            yield Finding("phone", start, found.end())


def _is_assigned_ssn(digits: str) -> bool:
    """Whether it is one that is given to people."""
    return digits[:3] not in ("000", "666") and digits[0] != "9" and digits[3:5] != "00" and digits[5:] != "0000"


def _is_phone(said: str, digits: str) -> bool:
    """A number in the form in which people write them down: with a +, or in the groups of a local one."""
    if _DATE.match(said) or not 7 <= len(digits) <= 15:
        return False
    return said.startswith("+") or (said != digits and bool(_LOCAL_PHONE.fullmatch(said)))


def _accounts(text: str) -> Iterator[Finding]:
    for found in _IBAN.finditer(text):
        start, said = found.start(), found[0]
        if start and text[start - 1].isalnum():
            continue
        # Words in capitals may follow; the country says how long the number is.
        while len(said) >= _SHORTEST_IBAN and not is_iban(said.replace(" ", "")):
            said = said[:-1].rstrip()
        if len(said) >= _SHORTEST_IBAN:
            yield Finding("iban", start, start + len(said))


def _emails(text: str) -> Iterator[Finding]:
    at = text.find("@")
    while at >= 0:
        start = at
        while start and at - start < _LONGEST_LOCAL and text[start - 1] in _LOCAL:
            start -= 1
        host = _HOST.match(text, at + 1) if start < at else None
        if host is not None:
            yield Finding("email", start, host.end())
        at = text.find("@", at + 1 if host is None else host.end())


_LOOKS: tuple[Callable[[str], Iterator[Finding]], ...] = (_tokens, _assigned, _in_urls, _numbers, _accounts, _emails)
