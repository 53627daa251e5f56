"""Text analysis: stems, terms, and token counts."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from recollect.language.analysis import STOP_WORDS, analyze, build_date_terms, count_tokens, stem
from tests.cases import Case

# From the published sample vocabulary of the Porter2 (Snowball English) stemmer.
PORTER2 = """
    consign:consign consigned:consign consigning:consign consignment:consign consist:consist consisted:consist
    consistency:consist consistent:consist consistently:consist consisting:consist consists:consist
    consolation:consol consolations:consol consolatory:consolatori console:consol consoled:consol consoles:consol
    consolidate:consolid consolidated:consolid consolidating:consolid consoling:consol consolingly:consol
    consols:consol consonant:conson consort:consort consorted:consort consorting:consort conspicuous:conspicu
    conspicuously:conspicu conspiracy:conspiraci conspirator:conspir conspirators:conspir conspire:conspir
    conspired:conspir conspiring:conspir constable:constabl constables:constabl constance:constanc
    constancy:constanc constant:constant
    knack:knack knackeries:knackeri knacks:knack knag:knag knave:knave knaves:knave knavish:knavish kneaded:knead
    kneading:knead knee:knee kneel:kneel kneeled:kneel kneeling:kneel kneels:kneel knees:knee knell:knell
    knelt:knelt knew:knew knick:knick knif:knif knife:knife knight:knight knightly:knight knights:knight knit:knit
    knits:knit knitted:knit knitting:knit knives:knive knob:knob knobs:knob knock:knock knocked:knock
    knocker:knocker knockers:knocker knocking:knock knocks:knock knopp:knopp knot:knot knots:knot
""".split()


OTHER_STEMS = """
    running:run runs:run hopping:hop hoping:hope agreed:agre feed:feed ties:tie cries:cri cry:cri say:say by:by gas:gas
    this:this caresses:caress luxuriated:luxuri generalization:general generously:generous communism:communism skies:sky
    sky:sky dying:die news:news succeed:succeed yellow:yellow youth:youth relational:relat a:a :
""".split()


def test_stems_match_porter2():
    failures: list[str] = []
    for pair in PORTER2:
        with Case(failures, pair):
            word, expected = pair.split(":")
            assert stem(word) == expected
    assert not failures, "\n".join(failures)


def test_stems_follow_the_rules():
    failures: list[str] = []
    for pair in OTHER_STEMS:
        with Case(failures, pair):
            word, expected = pair.split(":")
            assert stem(word) == expected
    assert not failures, "\n".join(failures)


@given(st.text())
def test_any_text_can_be_stemmed_and_analyzed(text: str):
    stem(text)
    terms = analyze(text)
    assert all(term and term == "".join(term.split()) for term in terms)
    assert analyze(text) == terms


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz '", max_size=60))
def test_case_does_not_matter(text: str):
    assert analyze(text.upper()) == analyze(text)


TERMS: list[tuple[str, list[str]]] = [
    ("The dogs are running", ["dog", "run"]),
    ("What did she have to do with that?", []),
    ("", []),
    ("?! …", []),
    ("Ada's report isn't ready, we'll wait", ["ada", "report", "readi", "wait"]),
    ("Ada’s report", ["ada", "report"]),
    ("O'Brien", ["o", "brien"]),
    ("l’avion d'hier", ["l", "avion", "hier"]),
    ("step_0_quote user.units kebab-case", ["step", "0", "quot", "user", "unit", "kebab", "case"]),
    ("port 6432, v2.1", ["port", "6432", "v2", "1"]),
    ("ada@example.org", ["ada", "exampl", "org"]),
    ("Café naïve", ["cafe", "naiv"]),
    ("Cafe\u0301", ["cafe"]),
    ("ﬁne №5", ["fine", "no5"]),
    ("ÅNGSTRÖM", ["angstrom"]),
]


def test_text_has_these_terms():
    failures: list[str] = []
    for text, terms in TERMS:
        with Case(failures, text):
            assert analyze(text) == terms
    assert not failures, "\n".join(failures)


def test_scripts_without_spaces_match_a_part():
    failures: list[str] = []
    for text, query in (
        ("東京タワーに行きました", "東京タワー"),
        ("서울에서 만났다", "서울"),
        ("私はひらがなを書く", "ひらがな"),
        ("我昨天买了一辆自行车", "自行车"),
        ("mixed 漢字text", "漢字"),
    ):
        with Case(failures, text, query):
            assert set(analyze(query)) <= set(analyze(text))
            assert analyze(query)
    assert not failures, "\n".join(failures)


def test_single_ideograph_is_a_term():
    assert analyze("猫") == ["猫"]


def test_stop_words_are_never_terms():
    assert [word for word in STOP_WORDS if analyze(word)] == []


def test_term_length_is_limited():
    assert max(map(len, analyze("x" * 10_000))) <= 64


def test_date_is_found_by_its_words():
    assert {"may", "2023"} <= set(build_date_terms(datetime(2023, 5, 8, tzinfo=UTC)))


class TestTokens:
    def test_english_is_estimated(self):
        failures: list[str] = []
        for text, at_least, at_most in (
            ("", 0, 0),
            ("one", 1, 1),
            ("one two three", 3, 3),
            ("2026", 1, 4),
            ("internationalization", 2, 5),
            ("...", 1, 3),
        ):
            with Case(failures, text):
                assert at_least <= count_tokens(text) <= at_most
        assert not failures, "\n".join(failures)

    def test_ideographs_cost_about_one_token_each(self):
        failures: list[str] = []
        for text in ("東京タワーに行きました", "서울에서만났다", "我昨天买了一辆自行车"):
            with Case(failures, text):
                assert count_tokens(text) >= len(text)
        assert not failures, "\n".join(failures)

    @given(st.lists(st.text(), max_size=6))
    def test_lines_are_counted_separately(self, lines: list[str]):
        assert count_tokens("\n".join(lines)) == sum(map(count_tokens, lines))

    @given(st.text())
    def test_any_text_has_a_cost(self, text: str):
        assert count_tokens(text) >= 0
