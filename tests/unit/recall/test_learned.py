"""What is found out about a text is found out once, and the text is not kept."""

from __future__ import annotations

from recollect.recall.learned import Learned


class Looking:
    """Tells whether a text has an x in it, and which ones it was shown."""

    def __init__(self, most: int = 8) -> None:
        self.shown: list[str] = []
        self.learned = Learned(self._look, most)

    def _look(self, text: str) -> bool:
        self.shown.append(text)
        return "x" in text


def test_a_text_is_looked_at_once_whatever_the_answer():
    looking = Looking()
    assert [looking.learned.of(text) for text in ("axe", "saw", "axe", "saw")] == [True, False, True, False]
    assert looking.shown == ["axe", "saw"]


def test_it_says_what_is_new_to_it():
    learned = Looking().learned
    assert learned.new(["axe", "saw"]) == ["axe", "saw"]
    learned.of("axe")
    assert learned.new(["axe", "saw", ""]) == ["saw", ""]


def test_no_more_is_held_than_was_said():
    learned = Looking(most=3).learned
    texts = [f"text {number}" for number in range(20)]
    for text in texts:
        learned.of(text)
        assert len(texts) - len(learned.new(texts)) <= 3
    assert learned.new(texts[-1:]) == []


def test_the_texts_themselves_are_not_kept():
    one: Learned[str, bool] = Learned(str.isspace, 8)
    several: Learned[tuple[str, ...], int] = Learned(len, 8)
    one.of("the combination is 4711")
    several.of(("the combination is 4711", "and nobody knows"))
    assert "combination" not in str((vars(one), vars(several)))
    assert "nobody" not in str((vars(one), vars(several)))
