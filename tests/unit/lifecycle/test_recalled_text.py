"""Removal of recalled text and prompt templates from a message."""

from __future__ import annotations

import json

import pytest

from recollect.language.recalled_text import extract_own_words, has_recalled_mark

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
def test_recalled_block_is_removed(pasted: str):
    left = extract_own_words(f"{pasted}\n\nI prefer short answers.")
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
def test_context_of_a_prompt_template_is_removed(message: str, left: str):
    assert extract_own_words(message).strip() == left


def test_date_within_a_sentence_is_not_a_recall_mark():
    assert not has_recalled_mark("The release (2026-03-01) is called heron.")
    assert has_recalled_mark("I prefer tea. (2026-03-01, session s-1)")
    assert has_recalled_mark("- I prefer tea (2026-03-01)")


def test_message_of_only_templates_is_read_completely():
    assert extract_own_words("Context: x. Question: y " * 200) is not None
