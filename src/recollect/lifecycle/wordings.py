"""The shapes in which people say where they live, what they do and what they like, contractions written out."""

from __future__ import annotations

import re

from recollect.lifecycle.phrasing import either, pattern

LONGEST = 240

_APOSTROPHE = re.compile(r"['’‘]")
_EXPANDED = (
    (re.compile(r"[’‘]"), "'"),
    (re.compile(r"\b(i)'m\b", re.I), r"\1 am"),
    (re.compile(r"\b(i|we)'ve\b", re.I), r"\1 have"),
    (re.compile(r"\b(i|we)'d\b", re.I), r"\1 would"),
    (re.compile(r"\bcan't\b", re.I), "cannot"),
    (re.compile(r"\b(do|does|is|are|did)n't\b", re.I), r"\1 not"),
    (re.compile(r"\b(my (?:[\w']+ )?name)'s\b", re.I), r"\1 is"),
)


def plain(line: str) -> str:
    """The line with its contractions written out."""
    if _APOSTROPHE.search(line) is None:
        return line
    for found, written in _EXPANDED:
        line = found.sub(written, line)
    return line


# What people begin with, and what of it says that something was wrong.
CORRECTS = pattern(r"\b(?:no|nope|actually|sorry|correction|wait|my mistake|my bad|update)\b")
LEAD = pattern(
    r"^(?:",
    either("""
        no, nope, actually, sorry, correction, oh, ah, well, and, but, so, hi, hello, hey, wait, yes, yeah, ok, okay,
        btw, by the way, fyi, please, pls, now, these days, nowadays, update, my mistake, my bad,
        from now on, as of today, as of now, for the record, just so you know,
        (?:please )?remember(?: that)?, (?:please )?note(?: that)?,
        keep in mind(?: that)?, bear in mind(?: that)?, don't forget(?: that)?, do not forget(?: that)?, as you know,
        as i said, as mentioned, thanks, right, great, anyway
    """),
    r"\b[\s,:;.!—-]+)+",
)
_MONTH = either("january, february, march, april, may, june, july, august, september, october, november, december")
# When something happened: "I moved to Porto last year". Who lives there "in the summer" has another home besides.
_WHEN = (
    "(?:,? "
    + either(rf"""
    last (?:year|month|week|spring|summer|autumn|fall|winter|{_MONTH}), this (?:year|month|week|spring|autumn|winter),
    in (?:{_MONTH}(?: \d{{4}})?|\d{{4}}|the (?:spring|summer|autumn|winter)),
    (?:a|two|three|six|\d+) (?:years?|months?|weeks?|days?) ago, yesterday
""")
    + ")?"
)
TAIL = (
    r"(?:,? (?:now|these days|nowadays|again|instead|any ?more|any longer|currently|actually|after all|please|btw|too"
    r"|by the way|for good|permanently|full[- ]time|sorry|recently|since (?:\d{4}|last \w+|"
    rf"{_MONTH}(?: \d{{4}})?)|not (?:in |at |for )?(?-i:[A-Z])[\w-]+(?: (?-i:[A-Z])[\w-]+)?"
    r"|(?:that|it|this) was (?:a mistake|my mistake|an error|wrong|a misunderstanding|a joke)|i was wrong"
    r"))*[.!\s]*"
)
PARTS = pattern(r"(?:,? and |; |, but |, )(?=(?:i|i'm|my|we|please call me|call me)\b)")
JOINED = pattern(
    r"\b(?:and|but|or|which|who|because|so|though|although|since|while|when|if|unless|except|until|as long as)\b"
)
NO_MORE = pattern(r"\b(?:any ?more|any longer|no longer|stopped|quit|gave up|given up)\b")
# What these point at is gone with the talk.
POINTS = pattern(
    r"^(?:",
    either(
        "it, that, this, these, those, them, him, her, you, your, how, what, where, when, the, to, both, neither, one"
    ),
    r")\b",
)

_NO = r"(?P<no>(?:do not|not|no longer|never)(?: really| actually)? )?"
_OFTEN = r"(?:(?:now|currently|still|actually|really|very much|much|strongly|just|recently|usually|generally|always) )*"
_WORD = r"(?-i:[A-ZÀ-Þ])[\w'.&-]*"
_PLACE = (
    rf"(?P<place>(?:the )?{_WORD}(?: (?:{_WORD}|de|do|da|del|la|le|upon|am|of|und)){{0,3}}?)"
    rf"(?:, (?P<within>(?-i:[A-Z])[\w.]+(?: (?-i:[A-Z])[\w.]+)?))?"
)
_ORG = rf"(?P<org>(?:the )?{_WORD}(?: (?:{_WORD}|of|and|for|&)){{0,4}}?)"
_THING = r"(?P<thing>[\w'&-]+(?: (?!(?:over|than|to|and|but|or|because|when|if|so)\b)[\w'&-]+){0,4}?)"
_OTHER = r"(?P<other>[\w'&-]+(?: (?!(?:and|but|or|because|when|if|so)\b)[\w'&-]+){0,4}?)"
_PERSON = rf"(?P<name>{_WORD}(?: {_WORD}){{0,3}}?)"
_VALUE = r"(?P<value>[^,;:!?\s][^,;:!?]{0,79}?)"

# Who is "not in Lisbon any more" may be travelling; what counts is what they say next.
_GONE = (
    r"(?:(?:(?:i am|we are) (?:not|no longer) in|(?:i|we) (?:have )?left) (?P<gone>[\w ]{2,30}?)"
    r"(?: any ?more| any longer)?(?:[,;]|,? and|,? but) )?"
)
HOME = (
    rf"{_GONE}i (?:am )?{_NO}{_OFTEN}(?:live|living|based|reside|residing) {_OFTEN}in {_PLACE}",
    rf"{_GONE}we {_NO}{_OFTEN}live {_OFTEN}in {_PLACE}",
    rf"{_GONE}(?:i|we) (?:have )?{_OFTEN}(?P<moved>moved|relocated) {_OFTEN}(?:back )?(?:from [\w ]{{2,40}} )?"
    rf"to {_PLACE}(?: from [\w ]{{2,40}}?)?{_WHEN}",
    rf"(?:i|we) (?:have )?{_OFTEN}moved (?P<away>away from|out of) {_PLACE}{_WHEN}",
)
_SWITCHED = r"(?:i (?:have )?(?:just |recently )?(?:changed|switched) jobs[,;]? (?:and )?)?"
EMPLOYER = (
    rf"{_SWITCHED}i (?:am )?{_NO}{_OFTEN}(?:work|employed) {_OFTEN}(?:at|for|by) {_ORG}(?: as an? [\w -]{{3,30}}?)?",
    rf"i (?:have )?{_OFTEN}(?:started|begun) (?:working|to work|a (?:new )?job|my new job)"
    rf" (?:at|for|with) {_ORG}{_WHEN}",
    rf"i (?:have )?{_OFTEN}(?:got|found|have) (?:an?|my) (?:new )?(?:job|position|role) (?:at|with) {_ORG}{_WHEN}",
    rf"i (?:have )?{_OFTEN}(?P<left>quit|left|resigned from|lost) my (?:old |day )?(?:job|position)"
    rf"(?: (?:at|with|for) {_ORG})?{_WHEN}",
    rf"i (?:have )?{_OFTEN}(?P<left>quit|resigned from|quit working (?:at|for)|stopped working (?:at|for))"
    rf" {_ORG}{_WHEN}",
    rf"i (?:was|got|have been) (?P<left>laid off|fired|let go) (?:by|from|at) {_ORG}{_WHEN}",
)

# Of each group only one is true at a time.
GROUPS: dict[str, tuple[str, ...]] = {
    "diet": ("vegetarian", "vegan", "pescatarian", "omnivore"),
    "marriage": ("married", "engaged", "divorced", "single", "widowed"),
    "hand": ("left-handed", "right-handed", "ambidextrous"),
    "work": ("retired", "unemployed", "self-employed"),
}
_TRAITS = "|".join(word for words in GROUPS.values() for word in words)
TRAIT = (
    rf"i am {_NO}(?:{_OFTEN}|strictly |happily )(?:an? )?(?P<trait>{_TRAITS}|diabetic|coeliac|celiac|pregnant|"
    r"lactose intolerant|gluten intolerant|colou?r-?blind|dyslexic|muslim|christian|hindu|buddhist|jewish|catholic)",
)
ALLERGY = (
    rf"i am {_NO}{_OFTEN}(?:severely |mildly |badly |deathly )?allergic to {_THING}",
    rf"i {_NO}{_OFTEN}have an? (?:severe |mild |bad )?(?P<thing>[\w-]+) allergy",
)
PREFERRED = (
    rf"i (?:would )?{_NO}{_OFTEN}prefer {_THING}(?: (?:over|to|rather than|than|instead of) {_OTHER})?",
    rf"i {_NO}{_OFTEN}like {_THING} (?:more|better) than {_OTHER}",
)
TASTE = (
    rf"i {_NO}{_OFTEN}(?P<verb>love|like|enjoy|adore|hate|dislike|detest|loathe|cannot stand|cannot bear) {_THING}",
)
# "My birthday is next week" tells no birthday, and "my address is changing" no address.
SHAPES: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = (
    (
        re.compile("title|pronouns|favourite"),
        re.compile(
            r"(?!(?:under|on|in|at|about|up|being|going|changing|not|the same|still|hard|a secret|none|unknown|that"
            r"|this|it|always|what|one of)\b)",
            re.I,
        ),
    ),
    (re.compile("birth|age$|phone|address|size"), re.compile(r".*[\d@]")),
    (re.compile("mail"), re.compile(r"\S+@\S+$")),
    (re.compile("name$|zone|town|language"), re.compile(r"[A-ZÀ-Þ]|utc|cet|[a-z]+[\d_.]")),
)
# "Call me Monday" is no name.
NO_NAMES = frozenset("monday tuesday wednesday thursday friday saturday sunday back if when on in not".split())
NAME = (
    rf"my name is {_NO}{_OFTEN}{_PERSON}",
    rf"(?P<no>(?:do not|never) )?(?:you can |you may |just |everyone can )?call me {_PERSON}",
    rf"i {_NO}{_OFTEN}go by {_PERSON}",
    rf"i am {_NO}{_OFTEN}called {_PERSON}",
)
_SINGLE = either("""
    full name, first name, last name, surname, nickname, birthday, date of birth, e-?mail(?: address)?,
    phone number, (?:home |work |postal )?address, time ?zone, home ?town, job title, username, shoe size,
    native language, age, pronouns
""")
ATTRIBUTE = (
    rf"my (?:new |current )?(?P<what>{_SINGLE}) (?:is|=) {_NO}{_OFTEN}{_VALUE}",
    rf"my (?P<what>(?:least )?favou?rite(?: [\w-]+){{1,3}}) is {_NO}{_OFTEN}{_VALUE}",
    r"(?P<value>[^,;:!?]{1,60}?) is (?P<no>(?:not|no longer) )?my (?P<what>favou?rite(?: [\w-]+){1,3})",
)
# One can have two daughters, and hardly two wives.
_ONE = either("wife, husband, spouse, mother, father, mom, mum, dad, boss, manager")
KIN = (
    rf"my (?P<kin>{_ONE})'s (?P<what>name|birthday|phone number|e-?mail(?: address)?) is {_NO}{_OFTEN}{_VALUE}",
    rf"my (?P<kin>{_ONE}) is {_NO}(?:called|named) {_VALUE}",
)
AGE = (r"i am (?:now )?(?P<value>\d{1,3}) years old",)
_LANGUAGES = either("""
    english, german, french, spanish, portuguese, italian, dutch, polish, russian, ukrainian, czech, swedish, danish,
    norwegian, finnish, greek, turkish, arabic, hebrew, hindi, japanese, chinese, mandarin, korean, vietnamese, thai,
    hungarian, romanian, catalan, latin
""")
LANGUAGE = (
    r"(?:(?:always|only) )?(?P<no>(?:do not|never) )?(?:answer|reply|respond|write|speak|talk)(?: to me)?(?: only)?"
    rf" in (?P<language>{_LANGUAGES})(?: only| from now on| every time| in (?:the )?future)?",
)
RULE = (r"(?P<who>i |we )?(?P<how>always|never) (?P<rest>[^,;:!?]{3,80}?)",)
INFINITIVE = {"eating": "eat", "drinking": "drink", "smoking": "smoke", "driving": "drive", "wearing": "wear"}
HABIT = (
    rf"i {_NO}{_OFTEN}(?P<verb>eat|drink|smoke|drive|wear)(?: {_THING})?",
    rf"i (?:have )?{_OFTEN}(?P<no>stopped|quit|gave up|given up) (?P<verb>{'|'.join(INFINITIVE)})"
    rf"(?: {_THING})??{_WHEN}",
)
