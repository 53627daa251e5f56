"""Ranking of lines: the weights file, features, and which lines are shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from recollect.errors import BadSettings
from recollect.language.dates import find_asked_time
from recollect.language.recalled_text import RECENT_SECTION
from recollect.retrieval.fusion import DEFAULT_CALIBRATION
from recollect.retrieval.prompt_block import PromptLine
from recollect.retrieval.ranking import (
    FEATURES,
    PHRASE_FEATURES,
    WEIGHTS_FILE,
    Evidence,
    LineChances,
    build_features,
    estimate_chances,
    get_key,
    load_weights,
    select_lines,
)
from recollect.types import Hit, MemoryItem, Scope, Turn, Why

NOW = datetime(2026, 3, 17, 9, tzinfo=UTC)
CELLO = "My cello is at the luthier in Porto until Friday."


def line(
    text: str, cosine: float | None = 0.4, *, position: int = 0, speaker: str = "user", days: int = 1
) -> PromptLine:
    item = MemoryItem(
        id=f"{text} {position}",
        content=text,
        scope=Scope(),
        created_at=NOW - timedelta(days=days),
        tier="conversation",
        turn=Turn("s-1", float(position), speaker),
    )
    hit = Hit(item, "conversation", 0.7, 0.7, Why(cosine=cosine))
    return PromptLine(hit=hit, section=RECENT_SECTION, label=speaker, priority=0.7)


def evidence(
    lines: Sequence[PromptLine], query: str = "Where is my cello?", phrases: Sequence[tuple[str, dict[str, float]]] = ()
) -> Evidence:
    found = [{get_key(one.hit.item): one.hit for one in lines}]
    for _, cosines in phrases:
        hits = [(one.hit, cosines[one.hit.item.content]) for one in lines if one.hit.item.content in cosines]
        found.append({get_key(hit.item): Hit(hit.item, hit.tier, 0.7, 0.7, Why(cosine=cosine)) for hit, cosine in hits})
    return Evidence(
        queries=[query, *(phrase for phrase, _ in phrases)],
        by_query=found,
        calibration=DEFAULT_CALIBRATION,
        now=NOW,
        asked_time=find_asked_time(query, NOW.date()),
        asks_assistant="did you" in query,
    )


def select(
    lines: Sequence[PromptLine], known: Evidence, limit: int | None = None, *, has_threshold: bool = True
) -> list[str]:
    equal = LineChances(np.linspace(0.9, 0.8, len(lines)), np.full(len(lines), 0.9))
    chosen = select_lines(lines, equal, known, limit=limit, has_threshold=has_threshold)
    return [lines[at].hit.item.content for at in chosen]


def test_shipped_weights_are_those_of_the_features():
    assert load_weights(has_phrases=False).features == FEATURES
    assert load_weights(has_phrases=True).features == PHRASE_FEATURES


def test_weights_come_from_the_directory_of_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    only_newest = {"features": {"age": [0.0, 1.0, -1.0, -1.0]}, "bias": [0.0, 0.0]}
    (tmp_path / WEIGHTS_FILE).write_text(json.dumps({"models": {"question": only_newest, "phrases": only_newest}}))
    monkeypatch.setenv("RECOLLECT_WEIGHTS", str(tmp_path))
    lines = [line(CELLO, 0.9, days=30), line("I like tea.", 0.0, days=1)]
    old, new = estimate_chances(lines, evidence(lines)).answers
    assert new > old


@pytest.mark.parametrize("text", ["", "no json", '{"models": {}}'])
def test_damaged_weights_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str):
    (tmp_path / WEIGHTS_FILE).write_text(text)
    monkeypatch.setenv("RECOLLECT_WEIGHTS", str(tmp_path))
    with pytest.raises(BadSettings, match=r"scripts/train\.py"):
        load_weights(has_phrases=False)


def test_nearer_text_has_the_better_chance():
    lines = [line("We talked about nothing.", 0.1), line(CELLO, 0.6, position=2)]
    far, near = estimate_chances(lines, evidence(lines)).answers
    assert near > far


def test_phrase_finds_what_the_question_does_not():
    # Mutant: the cosines of phrases are ignored.
    lines = [line("Nia swells up from peanuts.", 0.1), line("We cook on Sundays with Nia.", 0.3, position=2)]
    phrases = [("nut allergy", {"Nia swells up from peanuts.": 0.7})]
    without = estimate_chances(lines, evidence(lines, "What may I cook?")).answers
    allergy, cooking = estimate_chances(lines, evidence(lines, "What may I cook?", phrases)).answers
    assert without[0] < without[1]
    assert allergy > cooking


def test_text_of_the_asked_day_has_the_better_chance():
    lines = [line("The washing machine has died.", days=8), line("The bus was late.", days=3, position=2)]
    that_day, other_day = estimate_chances(lines, evidence(lines, "What happened on 9 March?")).answers
    assert that_day > other_day


@pytest.mark.parametrize("days", [365, 3000])
def test_old_statement_is_not_left_out_for_its_age(days: int):
    # Mutant: the chance falls with the age without a limit.
    month, old = ([line("I have moved to a house in Porto.", 0.35, days=age)] for age in (30, days))
    question = "Which town do I live in?"
    after_a_month = estimate_chances(month, evidence(month, question))
    assert estimate_chances(old, evidence(old, question)).is_on_topic == after_a_month.is_on_topic


def test_unknown_cosine_counts_as_the_lowest():
    lines = [line("a b", 0.2), line("c d", None, position=2), line("e f", 0.5, position=4)]
    assert build_features(lines, evidence(lines))["cosine"].round(6).tolist() == [0.2, 0.2, 0.5]


def test_no_lines_have_no_chances():
    assert not len(estimate_chances([], evidence([])).answers)


def test_reply_that_repeats_the_message_is_left_out():
    lines = [
        line(CELLO, position=1),
        line("Noted: the cello is at the luthier in Porto.", position=2, speaker="assistant"),
    ]
    assert select(lines, evidence(lines)) == [CELLO]
    assert len(select(lines, evidence(lines, "What did you say about my cello?"))) == 2
    assert len(select(lines, evidence(lines), has_threshold=False)) == 2


def test_reply_with_something_new_stays():
    lines = [line(CELLO, position=1), line("Ask for Mr. Amaral, he opens at ten.", position=2, speaker="assistant")]
    assert len(select(lines, evidence(lines))) == 2


def test_line_without_terms_is_left_out():
    lines = [line("Is that so?"), line(CELLO, position=2)]
    assert select(lines, evidence(lines)) == [CELLO]


def test_limit_takes_the_best():
    lines = [line(f"cello {number}", position=2 * number) for number in range(5)]
    assert select(lines, evidence(lines), 2) == ["cello 0", "cello 1"]
    assert select(lines, evidence(lines), 0) == []
