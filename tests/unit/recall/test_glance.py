"""At a glance: who cannot be relevant enough is not looked at, unless it may be the question itself."""

from __future__ import annotations

from recollect.recall.calibrate import DEFAULT
from recollect.recall.recall import Judge
from recollect.stores.evidence import Glance
from recollect.stores.question import Mode, Question
from recollect.stores.where import Where
from recollect.values import Scope
from tests.unit.recall.scene import NOW, question

FAR = float("-inf")


def may_show(nearest: float, *held: bool, mode: Mode = "hybrid", asked_before: bool = False) -> bool:
    asked = Question(
        text="cello attic",
        where=Where(Scope().space("semantic")),
        n=5,
        min_relevance=0.8,
        now=NOW,
        asked_at=NOW,
        mode=mode,
        asks_again=(lambda text: text == "cello attic") if asked_before else None,
    )
    return Judge(asked, question(), DEFAULT, frozenset()).may_show(Glance(nearest, held, [1.0, 1.0]))


def test_what_is_near_or_has_the_words_is_looked_at():
    assert may_show(0.9, False, False)
    assert may_show(FAR, True, True, mode="text")


def test_what_is_neither_is_not():
    assert not may_show(0.2, False, False)
    assert not may_show(FAR, True, True)
    assert not may_show(FAR, True, False, mode="text")


def test_what_has_every_word_may_be_the_question_and_is_counted():
    assert may_show(FAR, True, True, asked_before=True)
    assert not may_show(FAR, True, False, asked_before=True)
