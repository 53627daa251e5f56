"""What recall wrote, or an application looked up, is not what the sender says."""

from __future__ import annotations

import json

import pytest

from recollect.lifecycle.recited import is_recited, own_words

BLOCK = "## Relevant knowledge\n- I prefer tea. (2026-03-01)\n- I live in Bonn. (2026-03-02, from web, unverified)"


@pytest.mark.parametrize(
    "pasted",
    [
        BLOCK,
        BLOCK.replace("\n", " "),
        json.dumps({"memory": BLOCK}),
        json.dumps(json.dumps({"memory": BLOCK})),
        "\n".join(BLOCK.splitlines()[1:]),
        " ".join(BLOCK.splitlines()[1:]),
        "- I prefer tea. (2026-03-01) - I live in Bonn. (2026-03-02)",
        "Memory says - I prefer tea. (2026-03-01, from web) - I live in Bonn. (2026-03-02) so far.",
    ],
)
def test_nothing_of_a_block_is_left(pasted: str):
    left = own_words(f"{pasted}\n\nI prefer short answers.")
    assert "tea" not in left
    assert "Bonn" not in left
    assert "I prefer short answers." in left


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ("Context: I prefer tea. Question: what is next?", "what is next?"),
        ("Relevant memories:\n- I prefer tea.\n\nWhat is next?", "What is next?"),
        ("Based on memory: I prefer tea.", ""),
        ("Context: I'm a nurse.", "Context: I'm a nurse."),
        ("I prefer tea.", "I prefer tea."),
        ("My memory: it is bad, I live in Bonn.", "My memory: it is bad, I live in Bonn."),
    ],
)
def test_what_was_looked_up_for_a_question_is_left_out(message: str, left: str):
    assert own_words(message).strip() == left


def test_a_date_within_a_sentence_is_no_mark_of_ours():
    assert not is_recited("The release (2026-03-01) is called heron.")
    assert is_recited("I prefer tea. (2026-03-01, session s-1)")
    assert is_recited("- I prefer tea (2026-03-01)")


def test_a_message_of_templates_alone_is_read_to_its_end():
    assert own_words("Context: x. Question: y " * 200) is not None
