"""Whatever the words, a claim has a plain wording, and that is what is indexed beside the text."""

from __future__ import annotations

from datetime import UTC, datetime
from types import MappingProxyType

import pytest

from recollect.lifecycle.claims import claims_of, ends
from recollect.lifecycle.plainly import in_plain_words, worded
from recollect.lifecycle.retold import as_they_would_say
from recollect.stores.vectors import MOST_PASSAGES
from recollect.tiers.indexing import PLAINLY, index_terms, to_embed
from recollect.values import MemoryItem, Scope


def fact(content: str, **metadata: object) -> MemoryItem:
    return MemoryItem(
        id="f", content=content, scope=Scope(), created_at=datetime(2026, 1, 1, tzinfo=UTC), metadata=metadata
    )


PLAIN = {
    "home": ("No, I moved to Porto.", "I live in Porto"),
    "home of several": ("Actually we have relocated to Porto last week", "I live in Porto"),
    "home after another": ("I'm not in Lisbon any more, I live in Porto now", "I live in Porto"),
    "home left": ("I left Lisbon and I live in Porto now.", "I live in Porto"),
    "no home": ("I have moved away from Kyoto.", "I do not live in Kyoto"),
    "home country": ("I've moved to Spain.", "I live in Spain"),
    "employer": ("I started working at Bosch last month.", "I work at Bosch"),
    "new employer": ("I got a new job at Bosch.", "I work at Bosch"),
    "switched": ("I've switched jobs, I work for Bosch now.", "I work at Bosch"),
    "no employer": ("I was laid off by Initech last month.", "I do not work at Initech"),
    "no job": ("I quit my job.", "I do not have a job"),
    "trait": ("I'm a vegan now.", "I am vegan"),
    "no trait": ("I'm no longer vegan.", "I am not vegan"),
    "allergy": ("I have a severe nut allergy.", "I am allergic to nut"),
    "no allergy": ("I am not allergic to peanuts, that was a mistake.", "I am not allergic to peanuts"),
    "taste": ("I really adore sushi.", "I like sushi"),
    "no taste": ("I can't stand cilantro.", "I do not like cilantro"),
    "preferred": ("I like jazz more than rock.", "I prefer jazz over rock"),
    "name": ("Please call me Robert.", "My name is Robert"),
    "no name": ("Never call me Bob.", "My name is not Bob"),
    "attribute": ("My new phone number is 555 9876.", "My phone number is 555 9876"),
    "favourite": ("Teal is my favorite colour.", "My favourite colour is Teal"),
    "kin": ("My wife is called Ingrid.", "My wife's name is Ingrid"),
    "age": ("I'm now 35 years old.", "I am 35 years old"),
    "language": ("From now on, reply to me in English.", "Answer in English"),
    "rule": ("Btw, we always deploy on Mondays.", "we always deploy on Mondays"),
    "habit": ("I don't drink coffee any more.", "I do not drink coffee"),
    "habit given up": ("I have given up smoking.", "I do not smoke"),
    "habit given up then": ("I quit smoking last year.", "I do not smoke"),
    "one of its things": ("I stopped drinking coffee last month.", "I do not drink coffee"),
}


class TestAClaim:
    @pytest.mark.parametrize("case", PLAIN)
    def test_has_a_plain_wording(self, case: str):
        said, plainly = PLAIN[case]
        assert in_plain_words(said) == [plainly]

    @pytest.mark.parametrize("case", [case for case in PLAIN if case != "no job"])
    def test_is_the_same_claim_in_plain_words(self, case: str):
        """So that the plain wording is never about something else."""
        said, plainly = PLAIN[case]
        assert claims_of(plainly) == claims_of(said)

    @pytest.mark.parametrize(
        "said",
        [
            "I prefer metric units.",
            "I live in Porto.",
            "My name is Ada.",
            "The cabin key is under the blue pot.",
            "Hi!",
        ],
    )
    def test_in_plain_words_has_no_other_ones(self, said: str):
        assert in_plain_words(said) == []

    @pytest.mark.parametrize(
        "said",
        [
            "We moved to Postgres.",
            "We have relocated to Azure.",
            "We have relocated to Zustand.",
            "Actually, we moved to Zustand.",
            "My sister moved to Porto.",
            "I'm not in Lisbon any more.",
            "I left Siemens, and I live in Porto now.",
            "I'm no longer in marketing, and I live in Porto now.",
            "I got a new job.",
            "I stopped reading.",
        ],
    )
    def test_is_not_made_of_everything(self, said: str):
        assert claims_of(said) == ()

    @pytest.mark.parametrize(
        ("earlier", "later", "ended"),
        [
            ("I like coffee.", "I don't drink coffee any more.", True),
            ("I love sushi.", "I stopped eating sushi.", True),
            ("I prefer coffee.", "I no longer drink coffee.", True),
            ("I like tea.", "I don't drink coffee any more.", False),
            ("I like coffee.", "I don't drink coffee.", False),
            ("I hate coffee.", "I don't drink coffee any more.", False),
            ("I don't drink coffee any more.", "I like coffee.", False),
        ],
    )
    def test_that_a_habit_is_over_ends_the_taste_for_it(self, earlier: str, later: str, ended: bool):
        [before], [after] = claims_of(earlier), claims_of(later)
        assert ends(after, before) is ended


class TestAnItem:
    def test_keeps_its_text_and_has_the_wording_beside_it(self):
        item = worded(fact("No, I moved to Porto.", rule="correction"))
        assert item.content == "No, I moved to Porto."
        assert dict(item.metadata) == {"rule": "correction", PLAINLY: "I live in Porto"}

    def test_has_a_line_for_each_claim(self):
        item = worded(fact("I'm a vegan now and I moved to Porto."))
        assert to_embed(item) == [item.content, "I am vegan", "I live in Porto"]

    def test_does_not_keep_the_wording_of_another_one(self):
        assert worded(fact("I am vegetarian", **{PLAINLY: "I live in Porto"})).metadata == MappingProxyType({})

    def test_is_found_by_the_words_of_both(self):
        terms = index_terms(worded(fact("No, I moved to Porto.")))
        assert sorted(terms) == ["live", "move", "porto"]

    def test_without_a_wording_is_indexed_as_it_is(self):
        for metadata in ({}, {PLAINLY: 7}, {PLAINLY: " \n"}):
            assert to_embed(fact("I live in Porto.", **metadata)) == ["I live in Porto."]

    def test_has_no_more_vectors_than_a_store_takes(self):
        long = fact(" ".join(["word."] * 100_000), **{PLAINLY: "I live in Porto"})
        assert len(to_embed(long)) <= MOST_PASSAGES


@pytest.mark.parametrize(
    ("told", "by_them", "said"),
    [
        ("You live in Lisbon.", False, "I live in Lisbon."),
        ("As far as I know, you live in Lisbon.", False, "I live in Lisbon."),
        ("You're vegan.", False, "I am vegan."),
        ("Got it, your name is Ada.", False, "my name is Ada."),
        ("Lisbon is lovely.", False, ""),
        ("I live in Lisbon.", False, ""),
        ("You live in Lisbon.", True, "You live in Lisbon."),
        ("user: I live in Lisbon.", False, "I live in Lisbon."),
        ("assistant: You live in Lisbon.", True, "I live in Lisbon."),
    ],
)
def test_what_somebody_is_told_about_themselves_is_read_as_they_would_say_it(told: str, by_them: bool, said: str):
    assert as_they_would_say(told, by_them) == said
