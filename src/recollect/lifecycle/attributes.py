"""Statements of which only the newest can be true: a name, an address, a favourite colour."""

from __future__ import annotations

from recollect.lifecycle.phrasing import either, pattern

_PREFIX = r"^(?:(?:no|actually|sorry|correction|oh|well|and|so|hi|hello|hey)[\s,:.!-]+)*"
_SINGLE = either("""
    name, full name, first name, last name, nickname, birthday, date of birth, age, e-?mail(?: address)?, phone number,
    (?:home |work |postal )?address, time ?zone, home ?town, job title, username, shoe size, native language
""")
# One clause and no second thought: what else the sentence said would be hidden with it.
_ONLY = r"(?P<value>[^,;:!?]{1,80}?)[.!\s]*$"

_HAS = pattern(_PREFIX, rf"my (?:new |current )?(?P<what>{_SINGLE}) (?:is|=) ", _ONLY)
_FAVOURITE = pattern(_PREFIX, r"my (?P<what>(?:least )?favou?rite(?: [\w-]+){1,3}) is ", _ONLY)
_IS_FAVOURITE = pattern(_PREFIX, r"(?P<value>[^,;:!?]{1,60}?) is my (?P<what>favou?rite(?: [\w-]+){1,3})[.!\s]*$")
_LIVES = pattern(_PREFIX, r"i (?:now |currently )?live in ", _ONLY)
_AGED = pattern(_PREFIX, r"(?:i'm|i am) (?P<value>\d{1,3}) years old[.!\s]*$")
_JOINED = pattern(r"\b(?:and|but|or|which|who|because|so|though|since|while|when|if)\b")


def attribute_of(text: str) -> str | None:
    """What a statement tells the one value of; None where two such statements can both be true."""
    line = " ".join(text.replace("’", "'").split())
    for rule in (_HAS, _FAVOURITE, _IS_FAVOURITE):
        match = rule.match(line)
        if match and not _JOINED.search(match["value"]):
            return " ".join(match["what"].lower().replace("favorite", "favourite").replace("e-mail", "email").split())
    for rule, name in ((_LIVES, "home"), (_AGED, "age")):
        match = rule.match(line)
        if match and not _JOINED.search(match["value"]):
            return name
    return None
