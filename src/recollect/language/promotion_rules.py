"""English rules that decide which statements of a user's message are promoted to facts.

The rules prefer a miss to an error: a missed statement is still found in its conversation, a wrong fact would last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from recollect.language.claims import extract_claims, may_be_place
from recollect.language.sentences import Statement, compile_pattern, has_content_words, parse_statements

PromotionRule = Literal[
    "explicit", "preference", "correction", "decision", "identity", "repeated", "outcome", "extracted"
]

# The minimum importance of a statement by its rule.
RULE_IMPORTANCE: dict[PromotionRule, float] = {
    "explicit": 0.8, "identity": 0.75, "preference": 0.7, "correction": 0.7, "decision": 0.7, "outcome": 0.7,
    "repeated": 0.6, "extracted": 0.6,
}  # fmt: skip

# The start of a clause. In "the films I love", `I love` does not start one.
_CLAUSE_START = (
    r"(?:^|[,;:.!—–-]\s*|\b(?:and|but|because|since|so|plus|'?cause|why|though|although|that|personally|as) )"
)

# Phrases that limit a statement to the near present.
_TEMPORARY = compile_pattern(r"""
    \b(?:right now|at the moment|today|tonight|this (?:morning|afternoon|evening|time|one|week)|just now|currently|
    yesterday|tomorrow|so far|for now|anymore|these days|lately|in a minute|a second|again)\b""")
# Filler phrases at the start of a sentence.
_FILLER_START = compile_pattern(r"""
    ^(?:(?:oh|ah|well|ok|okay|so|also|and|but|btw|by the way|hey|hi|hello|please|pls|thanks|thank you|yes|yeah|yep|
    right|great|sure|good|quick note|one more thing|just(?! so you know)|then|anyway|perfect|cool)\b[\s,.:;!—-]*)+""")
# A subject that can be understood outside the conversation, unlike "it" and "this", and a verb.
_DECLARATION = compile_pattern(r"""
    ^(?:(?:i|we)(?: \w+ly| also| always| never| only)? (?:own|use|work|live|prefer|run|drive|speak|keep|follow|take|eat|
    drink|play|study|teach|manage|lead|support|deploy|store|host|write|ship|release|pay|meet|have an?|am an?|are an?|
    avoid|track)\b|(?:i'm|we're) an? |(?:my|our|his|her|their|the|all|every|each) [\w' -]+? (?:is|are|was|were|has|have|
    can|must|needs?|takes?|\w+s)\b|(?!(?:it|this|that|there|here|what|who|which|everything|nothing|everyone|nobody|yes|
    no|ok)\b)(?-i:[A-Z])[\w'-]+(?: (?-i:[A-Z])[\w'-]+)? (?:is|are|was|has|have|lives|works|uses|likes|prefers|runs|owns|
    must|needs|can|wants|starts|ends|requires)\b)""")


@dataclass(frozen=True, slots=True)
class PromotableStatement:
    """A statement to promote, in the speaker's words, and the rule that it satisfies."""

    text: str
    rule: PromotionRule


def find_promotable_statements(message: str) -> list[PromotableStatement]:
    """Return the statements of a message to promote, without duplicates, in order."""
    found: dict[str, PromotionRule] = {}
    follows_rejection = False
    for statement in parse_statements(message):
        plain = _FILLER_START.sub("", statement.plain)
        if _BARE_REQUEST.match(plain):
            # "My badge is 4411. Remember that." refers to the previous sentence.
            if statement.previous is not None and _is_asserted(statement.previous):
                found[statement.previous.text] = "explicit"
            continue
        rule = _classify_statement(statement, plain, follows_rejection)
        follows_rejection = bool(_REJECTION.match(plain))
        if rule is not None:
            found.setdefault(statement.text, rule)
    return [PromotableStatement(text, rule) for text, rule in found.items()]


def find_declarations(message: str) -> list[str]:
    """Return the sentences that may hold in other sessions, too; they are promoted once they are repeated."""
    found = []
    for statement in parse_statements(message):
        plain = _FILLER_START.sub("", statement.plain)
        is_declaration = _DECLARATION.match(plain) and len(plain.split()) >= 4 and has_content_words(plain, 2)
        if is_declaration and _is_asserted(statement) and not (statement.is_secret or _TEMPORARY.search(plain)):
            found.append(statement.text)
    return found


def _classify_statement(statement: Statement, plain: str, follows_rejection: bool) -> PromotionRule | None:
    """Return the first rule that a sentence satisfies; `follows_rejection` after a rejection."""
    if is_request(plain):
        return "explicit"
    if not _is_asserted(statement) or statement.is_secret:
        return None
    if is_correction(plain) or (follows_rejection and _DECLARATION.match(plain) and has_content_words(plain, 2)):
        return "correction"
    if is_decision(plain):
        return "decision"
    if is_identity(plain):
        return "identity"
    if is_preference(plain):
        return "preference"
    claims = extract_claims(statement.text)
    if claims and all(claim.is_promotable for claim in claims):  # "I don't live in Lisbon anymore"
        return claims[0].kind if all(claim.is_affirmed for claim in claims) else "correction"
    return None


def _is_asserted(statement: Statement) -> bool:
    return not (statement.is_question or statement.is_supposed or statement.is_reported)


_RELATIVE = """
    (?:wife|husband|partner|spouse|fianc[eé]e?|girlfriend|boyfriend|son|daughter|child|kids?|children|sons|daughters|
    mother|father|mom|mum|dad|parents|brother|sister|siblings?|aunt|uncle|niece|nephew|cousin|grand(?:mother|father|ma|
    pa|son|daughter)|dogs?|cats?|puppy|horse|boss|manager|colleague|assistant|doctor|dentist|therapist|roommate|
    flatmate|neighbou?r|best friend|twins?)"""
_PERSONAL_ATTRIBUTE = """
    (?:username|pronouns|birthday|birth ?date|date of birth|age|e-?mail(?: address)?|phone(?: number)?|mobile
    (?: number)?|(?:home |work |postal )?address|time ?zone|home ?town|home city|native language|mother tongue|
    first language|nationality|religion|job(?: title)?|profession|occupation|title|employer|company|startup|team|
    department|role|employee (?:id|number)|badge(?: number)?|handle|github(?: handle| username)?|blood type|shoe size|
    height|weight|diet|star sign|(?:wedding )?anniversary|car|bike|laptop|degree|major|university|school|
    passport number|account number|customer (?:id|number))"""
_SHARED_ATTRIBUTE = """
    (?:company|startup|team|product|project|office|headquarters|stack|tech stack|database|repo|repository|main branch|
    deadline|release date|launch date|budget|fiscal year|code ?base|domain|staging server|production server|cloud|ci|
    api|house|home|flat|apartment|family|school|customers?)"""
# Temporary states, which are no identity.
_NOT_TEMPORARY = r"""
    (?!(?:not|so|very|too|great|good|bad|fine|ok|okay|a bit|the best|like|just|both|all|our|my|\w+ing|here|there|sick|
    asleep|right|irrelevant|unimportant|broken|slow|wrong|missing|down|in the|on it|awesome|amazing|important|parked|
    red|green|a mess|on fire|late)\b)"""

_MY_RELATIVE = (
    rf"\b(?:my|our) (?:(?:older|younger|eldest|oldest|youngest|little|big|new|ex-?|current|late) )?{_RELATIVE}"
)
_CAPITAL = r"(?-i:[A-ZÀ-Þ])"
_DATE = (
    r"(?:on |the )*(?:\d{1,2}\b|(?:january|february|march|april|may|june|july|august|september|october|november"
    r"|december)\b)"
)
# Household things with a lasting place.
_KEPT_THING = """
    (?:(?:spare |cabin |house |car |bike |boat |shed |garage |cellar |attic |garden |office |flat |apartment |mailbox |
    safe |gate |cottage |front door |back door |garden shed )+(?:door )?keys?|fuse ?box|first[- ]aid kit|
    fire extinguisher|stopcock|main water valve|water main|shut-?off valve|spare (?:tyre|tire|fuses?|bulbs?|batteries)|
    passports?|birth certificates?)"""

_IDENTITY_RULES = (
    compile_pattern(rf"""
        {_MY_RELATIVE},? (?:is|are|was born|were born|lives?|works?|stud(?:y|ies)|has|have|goes|speaks?|turns|
        turned) {_NOT_TEMPORARY}\w+"""),
    compile_pattern(rf"""
        \b(?:my|our) (?:new |current |old |main |work |personal |private |preferred )?{_PERSONAL_ATTRIBUTE} (?:is|are|=|
        :|'s) {_NOT_TEMPORARY}\S+"""),
    compile_pattern(rf"""
        ^our {_SHARED_ATTRIBUTE} (?:is|are|runs?|uses|lives|starts|ends|has (?=an? |\d)) ?{_NOT_TEMPORARY}\S+"""),
    # A name starts with a capital: "my name is on the list" gives no name.
    compile_pattern(rf"\bmy (?:first |last |full |middle |nick|sur|maiden )?name(?:'s| is|:| =) {_CAPITAL}"),
    compile_pattern(rf"{_MY_RELATIVE}(?:'s)? name is {_CAPITAL}|\b(?:i'm|i am) called {_CAPITAL}"),
    compile_pattern(rf"(?:{_MY_RELATIVE}|\b{_CAPITAL}\w+)'s (?:birthday|(?:wedding )?anniversary) is {_DATE}"),
    compile_pattern(rf"{_MY_RELATIVE}'s (?:phone(?: number)?|number|e-?mail(?: address)?) is \S*[\d@]"),
    compile_pattern(rf"""
        \b(?:call me|you can call me|i go by) (?!(?:monday|tuesday|wednesday|thursday|friday|saturday|sunday|back|if|
        when)\b){_CAPITAL}[\w'-]+"""),
    # A home has a name or a number. "I live in the moment" gives no home.
    compile_pattern(rf"\bi (?:currently |now |still )?live (?:at|near|on|outside|close to) (?:the )?(?:{_CAPITAL}|\d)"),
    compile_pattern(r"""
        \bi (?:currently |now |still )?live (?:alone\b|with (?:my|our|one|two|three|four|\d+|an?) (?!lot\b|bit\b))"""),
    compile_pattern(rf"""
        ^(?:the|my|our) {_KEPT_THING} (?:is|are) (?:always |usually )?(?:kept |stored |hidden )?(?:under|in|behind|on|
        above|below|inside|next to|beside|underneath) (?:the|our|a) (?!.*\b(?:pocket|bag|hand|ignition|mail|post|config|
        code|file|repo|table|lock|door)\b)\w+"""),
    compile_pattern(r"""
        \bi (?:currently |now )?work (?:at|for|as|in|remotely|from home|part-time|full-time|night shifts)\b
        (?! (?:it|that|this|night|the moment|full speed|my own)\b)"""),
    compile_pattern(r"""
        \bi (?:study|studied|teach|taught) \w+(?: \w+)? (?:at|in) \w+|\bi (?:majored|graduated) (?:in|from) \w+"""),
    compile_pattern(r"""
        \bi was born (?:in|on|and) \w+|\b(?:i'm|i am) \d{1,3} years old\b|\b(?:i'm|i am) originally from \w+"""),
    compile_pattern(r"""
        \b(?:i'm|i am|i come) from (?-i:[A-Z])\w+|\bi (?:also )?speak (?:fluent |some |a little |native )?(?-i:[A-Z])\w+
    """),
    compile_pattern(rf"\bi have (?:a|an|one|two|three|four|five|six|\d+|no|twin) (?:[\w-]+ )?{_RELATIVE}\b"),
    compile_pattern(r"""
        \bi have (?:diabetes|asthma|celiac|coeliac|adhd|epilepsy|arthritis|migraines|type \d|high blood pressure|
        a (?:severe |mild )?[\w-]+ (?:allergy|intolerance|phobia)|dyslexia|a phd|an mba|a degree)"""),
    compile_pattern(r"""
        \b(?:i'm|i am) (?:also |now |actually |strictly )?(?:vegan|vegetarian|pescatarian|diabetic|celiac|coeliac|
        lactose[- ]intolerant|gluten[- ]free|deaf|left-handed|right-handed|married|engaged|divorced|single|widowed|
        retired|unemployed|self-employed|colou?r-?\s?blind|blind|dyslexic|autistic|pregnant|jewish|muslim|christian|
        hindu|buddhist|catholic|atheist|bilingual|an? (?:only child|early bird|night owl|morning person))\b(?! to\b)
    """),
    # A trade or a role: "I'm a nurse", not "I'm a bit tired".
    compile_pattern(r"""
        \b(?:i'm|i am) (?:also |now |actually )?an? (?!(?:bit|little|lot|few|couple|fan|big|huge|while|minute|tad|total|
        complete|idiot|mess|moron|fool|failure|genius|second|loss|step|day|week|hurry|tiny|bad|terrible|horrible|good|
        great|human|robot|bot)\b)(?:[\w-]+ ){0,3}?[\w-]*(?:er|or|ist|ian|ant|ent|eer|ive|man|woman|nurse|chef|pilot|
        coach|guide|clerk|monk|poet|judge|architect|lead|head|cto|ceo|cfo|intern|widow|vet|mechanic|analyst|cook|
        athlete|citizen|dba|sre|native|dad|mom|mum|phd|postdoc|surgeon|graduate)\b"""),
    compile_pattern(r"""
        \b(?:we are|we're) an? (?:\w+ )?(?:team|company|startup|family|agency|non-?profit|studio|shop|couple)\b"""),
)


_HOME_STATEMENT = compile_pattern(rf"""
    \bi(?:'ve| have)?(?: currently| now| still| just| recently)? (?:live in|moved (?:back )?(?:to|from)) (?P<place>
    (?:the )?{_CAPITAL}[\w'-]*)""")


def is_identity(plain: str) -> bool:
    """Return True if the sentence says who the speaker is, or describes their relatives, team or belongings."""
    if _TEMPORARY.search(plain):
        return False
    home = _HOME_STATEMENT.search(plain)
    return bool(home and may_be_place(home["place"])) or any(rule.search(plain) for rule in _IDENTITY_RULES)


# Words that refer to the conversation; the reference is lost later.
_NOT_POINTING = r"""
    (?!(?:it|that|this|these|those|them|him|her|his|their|its|to[.!]*$|you|your|yours|how|what|where|when|the|to (?:see|
    say|know|hear|think|bother|ask|admit|be)|working with you|talking|everything|all of|both|one of|a lot|being|hearing|
    seeing)\b)"""
_PREFERENCE_ADVERBS = """
    (?:(?:really|much|strongly|absolutely|generally|usually|always|personally|definitely|also|still|very much|do|truly|
    particularly) )*"""

_OPINION = compile_pattern(rf"""
    {_CLAUSE_START}(?:i|we) {_PREFERENCE_ADVERBS}(?:love|like|enjoy|adore|hate|dislike|detest|loathe|despise|
    don't (?:like|enjoy|love)|do not (?:like|enjoy|love)|can't stand|cannot stand|can't bear) {_NOT_POINTING}\w+""")
_PREFERENCE = compile_pattern(rf"""
    {_CLAUSE_START}(?:i|we)(?:'d|'ll)? {_PREFERENCE_ADVERBS}(?:prefer|favou?r) (?!(?:it|that|this|these|those|them|
    neither)\b)(?!(?:the (?:first|second|third|last|former|latter|other|new|old|one|previous))\b)\w+""")
# After "always" and "never", a past tense or a verb of thought is no habit.
_HABIT = compile_pattern(rf"""
    {_CLAUSE_START}(?:i|we) (?:always|never|only ever|only|usually|typically|normally|generally) (?!\w+ed\b)
    (?!(?:said|knew|thought|got|understood|heard|saw|meant|had|did|been|seen|felt|was|were|could|would|forget|know|mind|
    get|see|seem|have to|need|want|just|told|found|came|went|made|gave|took|ever|understand|remember|end up|feel|wonder|
    give up|worry|hope|chose)\b)[a-z]+\s+(?!(?:it|that|this)\b[.!]?$)\w+""")
_ABSTENTION = compile_pattern(r"""
    \b(?:i|we) (?:don't|do not|can't|cannot) (?:eat|drink|smoke|drive|fly|use|wear|watch|work on|take|do|tolerate|cook|
    consume|buy|accept) (?!(?:it|that|this|these|those|them|the|any of|much)\b)\w+""")
_FAVORITE = compile_pattern(r"""
    \b(?:my|our) (?:all-time |absolute |least )?(?:favou?rite|preferred|go-to|default|usual)\b[^.?!,;-]{0,40}?\b
    (?:is|are|'s) (?!(?:that|this|it|what|the one|not)\b)\w+|\bis (?:my|our) (?:favou?rite|preferred)\b""")
_FAN = compile_pattern(rf"""
    \b(?:i'm|i am) (?:not )?(?:really )?(?:a (?:big |huge )?fan of|allergic to|into|fond of) {_NOT_POINTING}\w+""")
# Standing orders: "Always answer in German".
_STANDING_ORDER = compile_pattern(r"""
    ^(?:always|never) (?!(?:mind|again|the|a|been|ever|say never|give up)\b)(?:use|answer|reply|respond|write|include|
    add|send|call|address|speak|show|give|format|put|start|end|ask|assume|commit|push|deploy|delete|suggest|recommend|
    schedule|book|order|run|keep|refer|explain|provide|mention|share|round|sort|name|prefix|cite|quote|translate|
    convert|avoid|check|confirm|make|say|tell|be|do|let)\b .*\w""")
_FROM_NOW_ON = compile_pattern(r"""
    ^(?:answer|reply|respond|write|speak|talk|address|explain|use|call|send|format|include|avoid|round)\b.*\b
    (?:from now on|every time|in (?:the )?future)[.!]?$""")
# The reference is lost: "I like holding them".
_OPEN_REFERENCE = compile_pattern(r"^(?:\S+ ){1,5}(?:it|them|that|this|those|these|one|ones)[.!]*$")

_PREFERENCE_RULES = (_PREFERENCE, _OPINION, _HABIT, _ABSTENTION, _FAVORITE, _FAN, _STANDING_ORDER, _FROM_NOW_ON)


def is_preference(plain: str) -> bool:
    """Return True if the sentence states a preference, a habit or a standing order."""
    if _TEMPORARY.search(plain) or _OPEN_REFERENCE.search(plain):
        return False
    return any(rule.search(plain) for rule in _PREFERENCE_RULES)


_SUBJECT_PHRASE = r"(?:it|that|he|she|they|we|i|the|my|his|her|our|their|this|there) [\w' -]{0,40}?\b"

_NO_BUT_RATHER = compile_pattern(rf"""
    ^no(?:pe)?[,.!:;—-]*\s+(?:(?:actually|wait|sorry|rather|instead|i meant|i mean)[,:]?\s+)*(?:it's|it is|it was|
    that's|they're|he's|she's|{_SUBJECT_PHRASE}(?:is|are|was|were|has|have|lives|works|moved|starts|ends|goes)\b)
    (?P<rest>.+)$""")
_ACTUALLY_IS = compile_pattern(rf"""
    ^(?:actually|correction|sorry|wait|oops|my mistake|my bad)[,:;—!. -]+(?:actually[, ]+|no[, ]+|sorry[, ]+)*
    (?:it's|it is|it was|that's|they're|i'm|we're|i meant|{_SUBJECT_PHRASE}(?:is|are|was|were|has|have|am|lives?|works?|
    moved|starts|ends|goes|meant)\b)(?P<rest>.+)$""")
_WHAT_I_MEANT = compile_pattern(r"""
    \b(?:i|we) (?:actually |really )?meant (?!(?:to|it|what|that|well|no|as|by)\b)(?P<rest>.+)$""")
_NOT_BUT = compile_pattern(r"""
    \b(?:is|are|was|were|it's|that's|he's|she's|i'm|lives?|works?|named|called|starts|ends|am)\s+not (?!(?:only|just|
    sure|bad|perfect|great|ideal|yet|easy|clear|simply|merely|really|so|too|very|good|much|that)\b)
    (?!\w+ing\b)[^,.;]{1,60}?,? but (?:rather )?(?!(?:it|that|i|we|not|also|still|then|maybe|the problem)\b)
    (?P<rest>\w.*)$""")
_NOT_THAT = compile_pattern(r"""
    \b(?:is|are|was|were|it's|he's|she's|i'm|lives?|works?|called|named) (?P<rest>[^,;]{1,60}), not (?!(?:yet|sure|
    really|only|just|that|bad|to mention|because|if|a problem|too|so|very|much)\b)\w+(?: [\w:.-]+){0,3}[.!]*$""")
_NO_LONGER = compile_pattern(r"\b(?:i|we|my [\w ]{1,30}?|our [\w ]{1,30}?)(?: am|'m| are|'re| is)? no longer \w+ \w+")

# Corrections without content: "No, it's fine".
_EMPTY_CORRECTION = compile_pattern(r"""
    ^[\s,]*(?:(?:all|quite|totally|perfectly|just|really|not|very|so|too|a|still|already|no) )*(?:fine|ok|okay|good|
    great|right|wrong|correct|incorrect|true|false|nothing|it|all|enough|alright|done|fixed|broken|working|works|bad|
    problem|clear|cool|perfect|nice|easy|weird|strange|funny|interesting|helpful|better|worse|that|this|thanks|one|
    error|failing|there|here|ready|not|necessary|needed|possible|hard|important)[\s.!]*$""")
# "No, they're easy" is an answer. "No, it's on Tuesday" is a correction: it has a name or a number.
_PLAIN_ANSWER = compile_pattern(r"""
    ^(?:no(?:pe)?[,.!:;—-]*\s+(?:it|they|that|this|he|she)\b|(?:actually|wait|sorry)\W+(?:i'm|we're) \w+)""")
_NAME_OR_NUMBER = re.compile(r"\d|(?<!\A)\b[A-Z][a-z]+")

# A sentence that only says that something is wrong; the next sentence may correct it.
_REJECTION = compile_pattern(r"""
    ^(?:no[,.!]*\s*)?(?:that's|that is|that was|this is|you're|you are|you got (?:it|that)) (?:not (?:right|correct|
    true|quite right)|wrong|incorrect|mistaken|outdated|no longer true|a mistake)\b[^,;]{0,20}$""")


def is_correction(plain: str) -> bool:
    """Return True if the sentence corrects something and says what is right."""
    for rule in (_NO_BUT_RATHER, _ACTUALLY_IS, _WHAT_I_MEANT, _NOT_BUT, _NOT_THAT):
        match = rule.search(plain)
        if match is None or (_PLAIN_ANSWER.match(plain) and not _NAME_OR_NUMBER.search(match["rest"])):
            continue
        if has_content_words(match["rest"]) and not _EMPTY_CORRECTION.match(match["rest"]):
            return True
    return bool(_NO_LONGER.search(plain))


_REMEMBER_REQUEST = compile_pattern(r"""
    ^(?:(?P<asked>(?:can|could|will|would) you )(?:please |kindly )?|i(?:'d| would) like you to |i want you to |
    i need you to |you (?:should|must|need to|have to) |let's |always |make sure (?:to |you ))?(?:remember|memori[sz]e|
    note|keep in mind|bear in mind|know|don't forget|do not forget|never forget|take note|make a note|save|store|
    write down)\b(?P<rest>.*)$""")
_MARKED_NOTE = compile_pattern(r"""
    ^(?:for (?:future|your) (?:reference|information)|for the record|fyi|just so you know|note to self|reminder|
    from now on|going forward|important(?=:)|note(?=:))\b[\s,:—-]+(?P<rest>.+)$""")
_FUTURE_INSTRUCTION = compile_pattern(r"""
    ^in (?:the )?future,? (?P<rest>(?:please|always|never|use|answer|reply|write|don't|do not|call|send|avoid|
    keep)\b.+)$""")
_REQUEST_CONTENT = compile_pattern(r"""
    ^\s*(?:(?:of|down)\s+)?(?:(?:this|that|the following|it|these)?\s*:\s*|that\s+|the fact that\s+|,?\s*
    (?=\b(?:i|i'm|i've|my|we|we're|our|he|she|they|his|her|their|always|never|to always|to never)\b))(?P<said>.+)$""")
# Reminiscence, reassurance and short-term chores.
_NO_REQUEST_CONTENT = compile_pattern(r"""
    ^(?:when|how|what|why|where|who|the time|the day|last|to|me|sometimes|i'm always here|i'm here|we're here)\b
    (?! always| never)""")
_THIS_PHRASE = r"(?:this|that|it)(?: down| in mind| for (?:later|me|next time|the future))?(?:,? please)?"
# A request to remember the sentence before it: "Remember that."
_BARE_REQUEST = compile_pattern(rf"""
    ^(?:please |can you |could you |you should |i want you to )*(?:remember|note|save|keep|memori[sz]e|don't forget|
    do not forget) {_THIS_PHRASE}[.!?]*$""")
_TRAILING_REQUEST = compile_pattern(rf"""
    [,;—-]\s*(?:so )?(?:please )?(?:remember|keep|note|don't forget|do not forget) {_THIS_PHRASE}[.!]*$""")
_SUPPOSITION = compile_pattern(r"(?:if|unless|suppose|imagine|pretend)\b")


def is_request(plain: str) -> bool:
    """Return True if the sentence asks to remember something and contains it."""
    if _TRAILING_REQUEST.search(plain):
        return has_content_words(_TRAILING_REQUEST.sub("", plain), 2)
    marked = _MARKED_NOTE.match(plain) or _FUTURE_INSTRUCTION.match(plain)
    if marked:
        rest = marked["rest"]
        return has_content_words(rest) and len(rest.split()) >= 3 and not _is_open_ended(rest)
    request = _REMEMBER_REQUEST.match(plain)
    if request is None:
        return False
    if plain.rstrip().endswith("?") and not request["asked"]:
        return False  # "remember that photo?" is a question; "could you remember that I'm vegan?" is a request
    content = _REQUEST_CONTENT.match(request["rest"])
    if content is None or _NO_REQUEST_CONTENT.match(content["said"].strip()):
        return False
    text = content["said"].strip().rstrip("?")
    return has_content_words(text) and len(text.split()) >= 2 and not _is_open_ended(text)


def _is_open_ended(text: str) -> bool:
    """Return True if the text is a question or a supposition."""
    return Statement(text.strip(), text.strip()).is_question or bool(_SUPPOSITION.match(text.strip()))


_DECISION_VERB = compile_pattern(r"""
    (?:^|[,;:—-] |\b(?:and|but|so|because|that) )(?P<who>i|we|the team|our team)(?:'ve| have|'re| are)?
    (?: all| finally| just| now| also| already)* (?:decided (?:to|that|on|against|not to)|agreed (?:to|that|on)|
    settled on|chosen|chose|opted for|opted to|concluded that|committed to|signed off on|going with|standardi[sz]
    (?:ed|ing) on|switching to|switched to|migrating to|migrated to) (?!(?:it|that|this|them|one|him|her)\b)\w+""")
_LETS_GO_WITH = compile_pattern(r"""
    ^(?:let's|let us|we'll|we will|i'll|i will) (?:go|stick|stay) with (?!(?:it|that|this|them|the (?:first|second|
    third|last|other|former|latter|one|plan|flow)|option|your|what)\b)\w+""")
_DECISION_IS = compile_pattern(r"""
    ^(?:the |our |my )?(?:final )?decision(?: is|:| was)[\s:]*(?!(?:pending|open|yours|up to)\b)\w+ \w+|^
    (?:it's|it is) decided[:,]? \w+ \w+|^(?:we have|there's|there is) (?:a |an )?agreement (?:to|that|on) \w+""")


def is_decision(plain: str) -> bool:
    """Return True if the sentence states a decision."""
    decided = _DECISION_VERB.search(plain)
    if decided and decided["who"].lower() == "i" and _TEMPORARY.search(plain):
        return False  # "today I decided to sleep in" is no lasting decision
    return bool(decided or _LETS_GO_WITH.search(plain) or _DECISION_IS.search(plain)) and has_content_words(plain, 2)
