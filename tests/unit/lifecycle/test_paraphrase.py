"""Plain wording of claims, which is indexed next to the text."""

from __future__ import annotations

from datetime import UTC, datetime
from types import MappingProxyType

from recollect.language.claims import contradicts, extract_claims
from recollect.language.novelty import build_plain_sentences
from recollect.language.sentences import rewrite_as_user
from recollect.lifecycle.promotion import add_plain_wording
from recollect.stores.codec import MAX_PASSAGES
from recollect.tiers.indexing import PARAPHRASE_KEY, extract_index_terms, texts_to_embed
from recollect.types import MemoryItem, Scope
from tests.cases import Case


def fact(content: str, **metadata: object) -> MemoryItem:
    return MemoryItem(
        id="f", content=content, scope=Scope(), created_at=datetime(2026, 1, 1, tzinfo=UTC), metadata=metadata
    )


PLAIN_WORDINGS = {
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


class TestClaim:
    def test_claim_has_a_plain_wording(self):
        failures: list[str] = []
        for name, (text, plain) in PLAIN_WORDINGS.items():
            with Case(failures, name, text):
                assert build_plain_sentences(text) == [plain]
        assert not failures, "\n".join(failures)

    def test_plain_wording_makes_the_same_claim(self):
        failures: list[str] = []
        for name, (text, plain) in PLAIN_WORDINGS.items():
            if name == "no job":
                continue
            with Case(failures, name, text):
                assert extract_claims(plain) == extract_claims(text)
        assert not failures, "\n".join(failures)

    def test_plain_statement_has_no_other_wording(self):
        failures: list[str] = []
        for text in (
            "I prefer metric units.",
            "I live in Porto.",
            "My name is Ada.",
            "The cabin key is under the blue pot.",
            "Hi!",
        ):
            with Case(failures, text):
                assert build_plain_sentences(text) == []
        assert not failures, "\n".join(failures)

    def test_other_statements_make_no_claim(self):
        failures: list[str] = []
        for text in (
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
        ):
            with Case(failures, text):
                assert extract_claims(text) == ()
        assert not failures, "\n".join(failures)

    def test_end_of_a_habit_ends_the_preference(self):
        failures: list[str] = []
        for earlier, later, ended in (
            ("I like coffee.", "I don't drink coffee any more.", True),
            ("I love sushi.", "I stopped eating sushi.", True),
            ("I prefer coffee.", "I no longer drink coffee.", True),
            ("I like tea.", "I don't drink coffee any more.", False),
            ("I like coffee.", "I don't drink coffee.", False),
            ("I hate coffee.", "I don't drink coffee any more.", False),
            ("I don't drink coffee any more.", "I like coffee.", False),
        ):
            with Case(failures, earlier, later):
                [before], [after] = extract_claims(earlier), extract_claims(later)
                assert contradicts(after, before) is ended
        assert not failures, "\n".join(failures)


class TestItem:
    def test_item_keeps_its_text_and_stores_the_wording(self):
        item = add_plain_wording(fact("No, I moved to Porto.", rule="correction"))
        assert item.content == "No, I moved to Porto."
        assert dict(item.metadata) == {"rule": "correction", PARAPHRASE_KEY: "I live in Porto"}

    def test_each_claim_has_a_line_to_embed(self):
        item = add_plain_wording(fact("I'm a vegan now and I moved to Porto."))
        assert texts_to_embed(item) == [item.content, "I am vegan", "I live in Porto"]

    def test_given_paraphrase_is_discarded(self):
        assert add_plain_wording(
            fact("I am vegetarian", **{PARAPHRASE_KEY: "I live in Porto"})
        ).metadata == MappingProxyType({})

    def test_terms_include_text_and_wording(self):
        terms = extract_index_terms(add_plain_wording(fact("No, I moved to Porto.")))
        assert sorted(terms) == ["live", "move", "porto"]

    def test_item_without_a_wording_is_indexed_unchanged(self):
        for metadata in ({}, {PARAPHRASE_KEY: 7}, {PARAPHRASE_KEY: " \n"}):
            assert texts_to_embed(fact("I live in Porto.", **metadata)) == ["I live in Porto."]

    def test_passages_are_limited_to_the_store_maximum(self):
        long = fact(" ".join(["word."] * 100_000), **{PARAPHRASE_KEY: "I live in Porto"})
        assert len(texts_to_embed(long)) <= MAX_PASSAGES


def test_statement_about_the_user_is_rewritten_in_first_person():
    failures: list[str] = []
    for text, by_user, rewritten in (
        ("You live in Lisbon.", False, "I live in Lisbon."),
        ("As far as I know, you live in Lisbon.", False, "I live in Lisbon."),
        ("You're vegan.", False, "I am vegan."),
        ("Got it, your name is Ada.", False, "my name is Ada."),
        ("Lisbon is lovely.", False, ""),
        ("I live in Lisbon.", False, ""),
        ("You live in Lisbon.", True, "You live in Lisbon."),
        ("user: I live in Lisbon.", False, "I live in Lisbon."),
        ("assistant: You live in Lisbon.", True, "I live in Lisbon."),
    ):
        with Case(failures, text, by_user):
            assert rewrite_as_user(text, by_user) == rewritten
    assert not failures, "\n".join(failures)
