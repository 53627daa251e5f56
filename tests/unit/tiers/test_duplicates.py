"""What says the same is told from what only sounds alike: on labelled pairs, with the model that users get."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from recollect.inference.minilm import MiniLM
from recollect.tiers.duplicates import ALIKE, wording
from recollect.tiers.synonyms import NUMBERS, SAME, TOGETHER

PAIRS = Path(__file__).parent / "data" / "said_alike.txt"

# Of the pairs that say the same in nearly the same words; what is told quite differently is not meant to be merged.
LEAST_FOUND = {"tuned on": 1.0, "held out": 0.82}


@dataclass(frozen=True)
class Pair:
    kind: str
    one: str
    other: str
    cosine: float

    @property
    def is_same(self) -> bool:
        return self.kind.startswith("same")

    @property
    def merges(self) -> bool:
        one, other = wording(self.one), wording(self.other)
        return one.words == other.words or (one.gist == other.gist and self.cosine >= ALIKE)


def labelled() -> Iterator[tuple[str, str, str, str]]:
    """The part of the list, the kind, and the two texts."""
    part = ""
    for line in PAIRS.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            part = line.strip("[]")
        elif line and not line.startswith("#"):
            kind, one, other = line.split(" | ")
            yield part, kind, one, other


@pytest.fixture(scope="module")
def pairs() -> dict[str, list[Pair]]:
    model = MiniLM(threads=1)
    rows = list(labelled())
    ones = np.stack(list(model.embed_batch([one for _, _, one, _ in rows])))
    others = np.stack(list(model.embed_batch([other for *_, other in rows])))
    found: dict[str, list[Pair]] = {}
    for (part, kind, one, other), cosine in zip(rows, (ones * others).sum(axis=1), strict=True):
        found.setdefault(part, []).append(Pair(kind, one, other, float(cosine)))
    return found


class TestLabelledPairs:
    def test_there_are_enough_of_them_and_most_are_hard(self, pairs: dict[str, list[Pair]]):
        every = [pair for part in pairs.values() for pair in part]
        assert set(pairs) == set(LEAST_FOUND)
        assert len(every) >= 300
        assert sum(not pair.is_same for pair in every) > len(every) / 2
        assert len({(pair.one, pair.other) for pair in every}) == len(every)

    @pytest.mark.parametrize("part", LEAST_FOUND)
    def test_nothing_is_merged_that_says_something_else(self, pairs: dict[str, list[Pair]], part: str):
        assert [pair for pair in pairs[part] if pair.merges and not pair.is_same] == []

    @pytest.mark.parametrize("part", LEAST_FOUND)
    def test_what_says_the_same_in_nearly_the_same_words_is_found(
        self, pairs: dict[str, list[Pair]], part: str, record_property
    ):
        same = [pair for pair in pairs[part] if pair.is_same and pair.kind != "same, told differently"]
        found = sum(pair.merges for pair in same) / len(same)
        record_property(f"recall, {part}", round(found, 3))
        assert found >= LEAST_FOUND[part], [pair for pair in same if not pair.merges]

    def test_no_cosine_would_do_instead(self, pairs: dict[str, list[Pair]]):
        """Why words decide: most of what must never be merged is as near as what should be."""
        every = [pair for part in pairs.values() for pair in part]
        median = float(np.median([pair.cosine for pair in every if pair.is_same]))
        nearer = [pair for pair in every if not pair.is_same and pair.cosine >= median]
        assert len(nearer) >= 50
        assert max(pair.cosine for pair in nearer) > 0.99

    def test_either_order_gives_the_same_answer(self, pairs: dict[str, list[Pair]]):
        for pair in (pair for part in pairs.values() for pair in part):
            assert Pair(pair.kind, pair.other, pair.one, pair.cosine).merges == pair.merges


LISTED = {*SAME, *SAME.values(), *NUMBERS, *(word for pair in TOGETHER for word in pair), "that"}


def is_plain(word: str) -> bool:
    """Whether the rules know nothing about a word, nor about a text that has it."""
    return word not in LISTED and wording(f"Xxxx, {word}. Xxxx").gist == ("xxxx", ",", word, "|", "xxxx")


plain_words = st.text("abcdefghijklmnopqrstuvwxyzäöñ", min_size=4, max_size=10).filter(is_plain)
texts = st.lists(plain_words, min_size=2, max_size=12)


class TestWording:
    @given(texts, st.data())
    def test_another_word_anywhere_is_another_thing(self, words: list[str], data: st.DataObject):
        at = data.draw(st.integers(0, len(words) - 1))
        changed = [*words[:at], data.draw(plain_words), *words[at + 1 :]]
        assume(changed != words)
        assert wording(" ".join(words)).gist != wording(" ".join(changed)).gist

    @given(texts, st.data())
    def test_another_order_is_another_thing(self, words: list[str], data: st.DataObject):
        other = data.draw(st.permutations(words))
        assume(other != words)
        assert wording(" ".join(words)).gist != wording(" ".join(other)).gist

    @given(texts, st.integers(0, 10**6), st.integers(0, 10**6))
    def test_another_number_is_another_thing(self, words: list[str], one: int, other: int):
        assume(one != other)
        text = " ".join(words)
        assert wording(f"{text} {one}").gist != wording(f"{text} {other}").gist
        assert wording(f"{text} {one}").gist != wording(f"{text} -{one}").gist
        assert wording(f"{text} {one:,}").words == wording(f"{text} {one}").words

    @given(texts)
    def test_case_blanks_and_a_last_full_stop_make_no_difference(self, words: list[str]):
        plain = wording(" ".join(words)).words
        assert wording("  ".join(words).capitalize() + ".\n").words == plain
        assert wording("the " + " ".join(words) + "!").words == plain

    @given(st.text(max_size=200))
    def test_any_text_has_a_wording_and_the_same_one_twice(self, text: str):
        assert wording(text) == wording(text)

    @pytest.mark.parametrize(
        "text", ["The wifi password is Tulip", "the PIN is 0042", "Run `make -B all` first", "His user name is BobM"]
    )
    def test_where_a_letter_may_matter_every_letter_counts(self, text: str):
        assert wording(f"  {text} ").words == wording(text).words
        assert wording(text.swapcase()).gist != wording(text).gist
        assert wording(text + "!").gist != wording(text).gist

    def test_an_introduction_to_nothing_is_a_text_of_its_own(self):
        assert wording("Remember that").words == ("remember", "that")
        assert wording("Note: note that this holds.").words == ("this", "holds")

    @pytest.mark.parametrize(
        ("text", "span"),
        [
            ("Ada arrives tomorrow.", "day"),
            ("The demo is on Monday.", "day"),
            ("The call is at 15:00.", "day"),
            ("The call is at 3pm.", "day"),
            ("Bob paid two weeks ago.", "day"),
            ("The launch is in May.", "month"),
            ("The party is on 5 Nov.", "month"),
            ("Ada drinks tea on Mondays.", "always"),
            ("Ada may drink tea.", "month"),
            ("Ada drinks tea.", "always"),
        ],
    )
    def test_how_long_the_same_words_mean_the_same(self, text: str, span: str):
        assert wording(text).holds_for == span

    def test_some_words_depend_on_who_says_them(self):
        assert wording("I'm allergic to peanuts.").is_personal
        assert wording("Call me, the PIN is 4.").is_personal
        assert not wording("Ada is allergic to peanuts.").is_personal

    @pytest.mark.parametrize(
        "piece", ["oh, ", "and ", "the ", "no, ", "a-", "e-mail ", "1,234", "it's'", "| ", "...", "\n"]
    )
    def test_a_long_text_takes_no_longer_than_its_length(self, piece: str):
        started = time.thread_time()
        wording(piece * (300_000 // len(piece)))
        assert time.thread_time() - started < 5

    @pytest.mark.parametrize("text", ["...", "!!", "—", "The.", "Please!", "(also)"])
    def test_what_has_nothing_but_idle_words_is_only_like_itself(self, text: str):
        assert wording(text).words == wording(text).gist == (text,)
