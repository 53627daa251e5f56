"""English words to their stems, by the Porter2 rules: `running` and `runs` are found by `run`."""

from __future__ import annotations

from functools import lru_cache

_VOWELS = frozenset("aeiouy")
_DOUBLES = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")
_LI_BEFORE = frozenset("cdeghkmnrt")
_NOT_SHORT_END = frozenset("wxY")

# Whole words the suffix rules would get wrong.
_EXCEPTIONS = {
    **{word: word for word in "sky news howe atlas cosmos bias andes".split()},
    "skis": "ski", "skies": "sky", "idly": "idl", "gently": "gentl", "ugly": "ugli",
    "early": "earli", "only": "onli", "singly": "singl",
    "dying": "die", "lying": "lie", "tying": "tie",
}  # fmt: skip
_FINISHED_AFTER_1A = frozenset("inning outing canning herring earring evening".split())
_R1_PREFIXES = tuple("gener commun arsen past univers later emerg organ inter".split())

# Longest suffix first: the first that fits decides, even when its condition then fails.
_STEP_2 = tuple(
    tuple(rule.split(":"))
    for rule in (
        "ization:ize ational:ate fulness:ful ousness:ous iveness:ive tional:tion biliti:ble "
        "lessli:less entli:ent ation:ate alism:al aliti:al ousli:ous iviti:ive fulli:ful ogist:og "
        "enci:ence anci:ance abli:able izer:ize ator:ate alli:al bli:ble ogi:og li:"
    ).split()
)
_STEP_3 = tuple(
    tuple(rule.split(":"))
    for rule in ("ational:ate tional:tion alize:al icate:ic iciti:ic ative: ical:ic ness: ful:").split()
)
# Most words end in none of these, which is seen at once.
_IN_STEP_2 = tuple(suffix for suffix, _ in _STEP_2)
_IN_STEP_3 = tuple(suffix for suffix, _ in _STEP_3)
_STEP_4 = tuple("ement ance ence able ible ment ant ent ism ate iti ous ive ize ion al er ic".split())


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Return the stem of a lower-case word; words of one or two letters are their own stem."""
    if len(word) <= 2:
        return word
    if word in _EXCEPTIONS:
        return _EXCEPTIONS[word]
    word = _mark_consonant_y(word.lstrip("'"))
    r1, r2 = _regions(word)
    word = _step_1a(_step_0(word))
    if word in _FINISHED_AFTER_1A or word.endswith(("proceed", "exceed", "succeed")):
        return word
    word = _step_1b(word, r1)
    if len(word) > 2 and word[-1] in "yY" and word[-2] not in _VOWELS:
        word = word[:-1] + "i"
    word = _step_2(word, r1)
    word = _step_3(word, r1, r2)
    word = _step_4(word, r2)
    return _step_5(word, r1, r2).lower()


def _mark_consonant_y(word: str) -> str:
    """Write Y for a y that acts as a consonant: at the start or after a vowel."""
    if "y" not in word:
        return word
    letters = list(word)
    for i, letter in enumerate(letters):
        if letter == "y" and (i == 0 or letters[i - 1] in _VOWELS):
            letters[i] = "Y"
    return "".join(letters)


def _after_vowel_consonant(word: str, start: int) -> int:
    """Return the position behind the first consonant that follows a vowel."""
    for i in range(start + 1, len(word)):
        if word[i] not in _VOWELS and word[i - 1] in _VOWELS:
            return i + 1
    return len(word)


def _regions(word: str) -> tuple[int, int]:
    """Return where R1 and R2 begin: suffixes may only be cut inside them."""
    for prefix in _R1_PREFIXES:
        if word.startswith(prefix):
            r1 = len(prefix)
            break
    else:
        r1 = _after_vowel_consonant(word, 0)
    return r1, _after_vowel_consonant(word, r1)


def _ends_in_short_syllable(word: str) -> bool:
    if len(word) == 2:
        return word[0] in _VOWELS and word[1] not in _VOWELS
    return (
        len(word) > 2
        and word[-1] not in _VOWELS
        and word[-1] not in _NOT_SHORT_END
        and word[-2] in _VOWELS
        and word[-3] not in _VOWELS
    )


def _has_vowel(part: str) -> bool:
    return any(letter in _VOWELS for letter in part)


def _step_0(word: str) -> str:
    for suffix in ("'s'", "'s", "'"):
        if word.endswith(suffix):
            return word[: -len(suffix)]
    return word


def _step_1a(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith(("us", "ss")) or not word.endswith("s"):
        return word
    return word[:-1] if _has_vowel(word[:-2]) else word


def _step_1b(word: str, r1: int) -> str:
    for suffix in ("eedly", "eed"):
        if word.endswith(suffix):
            kept = len(word) - len(suffix)
            return word[:kept] + "ee" if kept >= r1 else word
    for suffix in ("ingly", "edly", "ing", "ed"):
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            if not _has_vowel(base):
                return word
            if base.endswith(("at", "bl", "iz")):
                return base + "e"
            if base.endswith(_DOUBLES):  # add, egg and off keep both letters
                return base if len(base) == 3 and base[0] in "aeo" else base[:-1]
            return base + "e" if r1 >= len(base) and _ends_in_short_syllable(base) else base
    return word


def _step_2(word: str, r1: int) -> str:
    if not word.endswith(_IN_STEP_2):
        return word
    for suffix, replacement in _STEP_2:
        if word.endswith(suffix):
            kept = len(word) - len(suffix)
            if kept < r1:
                return word
            before = word[kept - 1 : kept]
            if (suffix == "ogi" and before != "l") or (suffix == "li" and before not in _LI_BEFORE):
                return word
            return word[:kept] + replacement
    return word


def _step_3(word: str, r1: int, r2: int) -> str:
    if not word.endswith(_IN_STEP_3):
        return word
    for suffix, replacement in _STEP_3:
        if word.endswith(suffix):
            kept = len(word) - len(suffix)
            return word if kept < (r2 if suffix == "ative" else r1) else word[:kept] + replacement
    return word


def _step_4(word: str, r2: int) -> str:
    if not word.endswith(_STEP_4):
        return word
    for suffix in _STEP_4:
        if word.endswith(suffix):
            kept = len(word) - len(suffix)
            if kept < r2 or (suffix == "ion" and word[kept - 1 : kept] not in ("s", "t")):
                return word
            return word[:kept]
    return word


def _step_5(word: str, r1: int, r2: int) -> str:
    end = len(word) - 1
    if word.endswith("e"):
        cut = end >= r2 or (end >= r1 and not _ends_in_short_syllable(word[:-1]))
    else:
        cut = word.endswith("ll") and end >= r2
    return word[:-1] if cut else word
