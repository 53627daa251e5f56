"""Numbers that prove themselves: the sums by which a card, an account or a random key is told from any other digits."""

from __future__ import annotations

import math
from collections import Counter

_IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BR": 29, "BY": 28,
    "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22,
    "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20,
    "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MR": 27, "MT": 31, "MU": 30, "NL": 18,
    "NO": 15, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "SA": 24, "SC": 31, "SE": 24,
    "SI": 19, "SK": 24, "SM": 27, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24,
    "XK": 20,
}  # fmt: skip

# Where an issuer's numbers begin, and how many digits they have.
_CARDS = (
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
    """Whether digits are the number of a payment card: an issuer's, of its length, and right by Luhn's sum."""
    if not any(len(digits) in lengths and digits.startswith(begins) for begins, lengths in _CARDS):
        return False
    doubled = [int(digit) for digit in digits]
    for at in range(len(doubled) - 2, -1, -2):
        doubled[at] = doubled[at] * 2 - 9 * (doubled[at] > 4)
    # A row of the same digit can be right by its sum, and is nobody's card.
    return sum(doubled) % 10 == 0 and len(set(digits)) > 1


def is_iban(text: str) -> bool:
    """Whether letters and digits are an account number: of its country's length, and right modulo 97."""
    if _IBAN_LENGTHS.get(text[:2]) != len(text):
        return False
    turned = text[4:] + text[:4]
    return int("".join(str(int(sign, 36)) for sign in turned)) % 97 == 1


def entropy(text: str) -> float:
    """Bits for each character: words have about three, a random key has four and more."""
    if not text:
        return 0.0
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())
