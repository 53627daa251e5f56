"""Who somebody is: names, places, people, trades, and what their body will not have."""

from __future__ import annotations

from recollect.lifecycle.phrasing import PASSING, either, pattern, unless
from recollect.lifecycle.places import may_be_place

_KIN = either("""
    wife, husband, partner, spouse, fianc[eé]e?, girlfriend, boyfriend, son, daughter, child, kids?, children, sons,
    daughters, mother, father, mom, mum, dad, parents, brother, sister, siblings?, aunt, uncle, niece, nephew, cousin,
    grand(?:mother|father|ma|pa|son|daughter), dogs?, cats?, puppy, horse, boss, manager, colleague, assistant, doctor,
    dentist, therapist, roommate, flatmate, neighbou?r, best friend, twins?
""")
_ATTRIBUTE = either("""
    username, pronouns, birthday, birth ?date, date of birth, age,
    e-?mail(?: address)?, phone(?: number)?, mobile(?: number)?, (?:home |work |postal )?address, time ?zone,
    home ?town, home city, native language, mother tongue, first language, nationality, religion,
    job(?: title)?, profession,
    occupation, title, employer, company, startup, team, department, role, employee (?:id|number), badge(?: number)?,
    handle, github(?: handle| username)?, blood type, shoe size, height, weight, diet, star sign,
    (?:wedding )?anniversary, car, bike, laptop, degree, major, university, school, passport number, account number,
    customer (?:id|number)
""")
_OURS = either("""
    company, startup, team, product, project, office, headquarters, stack, tech stack, database, repo, repository,
    main branch, deadline, release date, launch date, budget, fiscal year, code ?base, domain, staging server,
    production server, cloud, ci, api, house, home, flat, apartment, family, school, customers?
""")
# How somebody or something happens to be.
_PASSES = r"""
    not, so, very, too, great, good, bad, fine, ok, okay, a bit, the best, like, just, both, all, our, my, \w+ing, here,
    there, sick, asleep, right, irrelevant, unimportant, broken, slow, wrong, missing, down, in the, on it, awesome,
    amazing, important, parked, red, green, a mess, on fire, late
"""

_OF_KIN = rf"\b(?:my|our) (?:(?:older|younger|eldest|oldest|youngest|little|big|new|ex-?|current|late) )?{_KIN}"
_CAPITAL = r"(?-i:[A-ZÀ-Þ])"
_DATE = (
    r"(?:on |the )*(?:\d{1,2}\b|(?:january|february|march|april|may|june|july|august|september|october|november"
    r"|december)\b)"
)
# Where things are that are looked for a year later: in a house, not in a program.
_KEPT_THING = either("""
    (?:spare |cabin |house |car |bike |boat |shed |garage |cellar |attic |garden |office |flat |apartment |mailbox
    |safe |gate |cottage |front door |back door |garden shed )+(?:door )?keys?, fuse ?box, first[- ]aid kit,
    fire extinguisher, stopcock, main water valve, water main, shut-?off valve,
    spare (?:tyre|tire|fuses?|bulbs?|batteries),
    passports?, birth certificates?
""")

_RULES = (
    pattern(
        rf"{_OF_KIN},? ",
        either("is, are, was born, were born, lives?, works?, stud(?:y|ies), has, have, goes, speaks?, turns, turned"),
        rf" {unless(_PASSES)}\w+",
    ),
    pattern(
        r"\b(?:my|our) (?:new |current |old |main |work |personal |private |preferred )?",
        rf"{_ATTRIBUTE} (?:is|are|=|:|'s) ",
        rf"{unless(_PASSES)}\S+",
    ),
    pattern(rf"^our {_OURS} (?:is|are|runs?|uses|lives|starts|ends|has (?=an? |\d)) ?{unless(_PASSES)}\S+"),
    # "My name is on the list" tells no name: a name has a capital.
    pattern(rf"\bmy (?:first |last |full |middle |nick|sur|maiden )?name(?:'s| is|:| =) {_CAPITAL}"),
    pattern(rf"{_OF_KIN}(?:'s)? name is {_CAPITAL}|\b(?:i'm|i am) called {_CAPITAL}"),
    pattern(rf"(?:{_OF_KIN}|\b{_CAPITAL}\w+)'s (?:birthday|(?:wedding )?anniversary) is {_DATE}"),
    pattern(rf"{_OF_KIN}'s (?:phone(?: number)?|number|e-?mail(?: address)?) is \S*[\d@]"),
    pattern(
        r"\b(?:call me|you can call me|i go by) ",
        unless("monday, tuesday, wednesday, thursday, friday, saturday, sunday, back, if, when"),
        rf"{_CAPITAL}[\w'-]+",
    ),
    # Homes have names or numbers. In the moment, on coffee and with the consequences live others.
    pattern(rf"\bi (?:currently |now |still )?live (?:at|near|on|outside|close to) (?:the )?(?:{_CAPITAL}|\d)"),
    pattern(
        r"\bi (?:currently |now |still )?live (?:alone\b|with (?:my|our|one|two|three|four|\d+|an?) (?!lot\b|bit\b))"
    ),
    pattern(
        rf"^(?:the|my|our) {_KEPT_THING} (?:is|are) (?:always |usually )?(?:kept |stored |hidden )?",
        either("under, in, behind, on, above, below, inside, next to, beside, underneath"),
        r" (?:the|our|a) (?!.*\b(?:pocket|bag|hand|ignition|mail|post|config|code|file|repo|table|lock|door)\b)\w+",
    ),
    pattern(
        r"\bi (?:currently |now )?work (?:at|for|as|in|remotely|from home|part-time|full-time|night shifts)\b",
        r"(?! (?:it|that|this|night|the moment|full speed|my own)\b)",
    ),
    pattern(r"\bi (?:study|studied|teach|taught) \w+(?: \w+)? (?:at|in) \w+|\bi (?:majored|graduated) (?:in|from) \w+"),
    pattern(r"\bi was born (?:in|on|and) \w+|\b(?:i'm|i am) \d{1,3} years old\b|\b(?:i'm|i am) originally from \w+"),
    pattern(
        r"\b(?:i'm|i am|i come) from (?-i:[A-Z])\w+",
        r"|\bi (?:also )?speak (?:fluent |some |a little |native )?(?-i:[A-Z])\w+",
    ),
    pattern(rf"\bi have (?:a|an|one|two|three|four|five|six|\d+|no|twin) (?:[\w-]+ )?{_KIN}\b"),
    pattern(
        r"\bi have ",
        either("""
            diabetes, asthma, celiac, coeliac, adhd, epilepsy, arthritis, migraines, type \\d, high blood pressure,
            a (?:severe |mild )?[\\w-]+ (?:allergy|intolerance|phobia), dyslexia, a phd, an mba, a degree
        """),
    ),
    pattern(
        r"\b(?:i'm|i am) (?:also |now |actually |strictly )?",
        either(r"""
            vegan, vegetarian, pescatarian, diabetic, celiac, coeliac, lactose[- ]intolerant, gluten[- ]free, deaf,
            left-handed, right-handed, married, engaged, divorced, single, widowed, retired, unemployed, self-employed,
            colou?r-?\s?blind, blind, dyslexic, autistic, pregnant, jewish, muslim, christian, hindu, buddhist,
            catholic, atheist, bilingual, an? (?:only child|early bird|night owl|morning person)
        """),
        r"\b(?! to\b)",
    ),
    # A trade or a role: "I'm a nurse", not "I'm a bit tired".
    pattern(
        r"\b(?:i'm|i am) (?:also |now |actually )?an? ",
        unless("""
            bit, little, lot, few, couple, fan, big, huge, while, minute, tad, total, complete, idiot, mess, moron,
            fool, failure, genius, second, loss, step, day, week, hurry, tiny, bad, terrible, horrible, good, great,
            human, robot, bot
        """),
        r"(?:[\w-]+ ){0,3}?[\w-]*",
        either("""
            er, or, ist, ian, ant, ent, eer, ive, man, woman, nurse, chef, pilot, coach, guide, clerk, monk, poet,
            judge, architect, lead, head, cto, ceo, cfo, intern, widow, vet, mechanic, analyst, cook, athlete,
            citizen, dba, sre, native, dad, mom, mum, phd, postdoc, surgeon, graduate
        """),
        r"\b",
    ),
    pattern(r"\b(?:we are|we're) an? (?:\w+ )?(?:team|company|startup|family|agency|non-?profit|studio|shop|couple)\b"),
)


_HOME = pattern(
    r"\bi(?:'ve| have)?(?: currently| now| still| just| recently)? (?:live in|moved (?:back )?(?:to|from)) ",
    rf"(?P<place>(?:the )?{_CAPITAL}[\w'-]*)",
)


def is_identity(plain: str) -> bool:
    """Whether a sentence says who its speaker is, or who theirs are."""
    if PASSING.search(plain):
        return False
    home = _HOME.search(plain)
    if home is not None and may_be_place(home["place"]):
        return True
    return any(rule.search(plain) for rule in _RULES)
