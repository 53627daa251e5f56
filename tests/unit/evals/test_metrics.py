"""Measures of the evaluation, its data files, and its output."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import BadInput
from recollect.evals import locomo
from recollect.evals.locomo import compute_mean, compute_ndcg, compute_percentile, compute_recall

CONVERSATION = {
    "sample_id": "conv-1",
    "conversation": {
        "speaker_a": "Caroline",
        "speaker_b": "Melanie",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Caroline", "dia_id": "D1:1", "text": "I went to a support group yesterday."},
            {"speaker": "Melanie", "dia_id": "D1:2", "text": "That's great! I painted a sunrise last year."},
        ],
        "session_2_date_time": "10:37 am on 27 June, 2023",
        "session_2": [
            {"speaker": "Caroline", "dia_id": "D2:1", "text": "I adopted a puppy.", "blip_caption": "a brown dog"},
            {"speaker": "Melanie", "dia_id": "D2:2", "text": "We are going camping in the forest."},
        ],
        "session_3_date_time": "8:00 am on 1 July, 2023",
    },
    "qa": [
        {"question": "When did Melanie paint a sunrise?", "evidence": ["D1:2"], "category": 2},
        {"question": "What animal does Caroline have?", "evidence": ["D2:1"], "category": 4},
        {"question": "What do both like?", "evidence": ["D1:2; D2:2"], "category": 1},
        {"question": "Would Melanie enjoy nature?", "evidence": ["D2:2", "D9:9"], "category": 3},
        {"question": "Adversarial, not asked", "evidence": ["D1:1"], "category": 5},
        {"question": "Without evidence, not asked", "evidence": [], "category": 1},
    ],
}


def write_locomo(directory: Path, content: Any) -> Path:
    path = directory / "locomo.json"
    path.write_text(json.dumps(content), "utf-8")
    return path


class TestMeasures:
    def test_recall_is_the_fraction_found(self):
        assert compute_recall(1, "abc", {"a"}) == 1.0
        assert compute_recall(1, "abc", {"b"}) == 0.0
        assert compute_recall(2, "abc", {"b", "z"}) == 0.5
        assert compute_recall(10, "abc", {"a", "b", "c"}) == 1.0

    def test_ndcg_prefers_the_front(self):
        assert compute_ndcg(10, "abc", {"a"}) == 1.0
        assert compute_ndcg(10, "abc", {"b"}) == pytest.approx(1 / math.log2(3))
        assert compute_ndcg(10, "abc", {"a", "b"}) == 1.0
        assert compute_ndcg(2, "abc", {"c"}) == 0.0
        assert compute_ndcg(1, "abc", {"a", "b"}) == 1.0

    @given(st.permutations(range(8)), st.sets(st.integers(0, 9), min_size=1), st.integers(1, 10))
    def test_all_measures_are_fractions(self, ranking: list[int], wanted: set[int], k: int):
        assert 0.0 <= compute_recall(k, ranking, wanted) <= 1.0
        assert 0.0 <= compute_ndcg(k, ranking, wanted) <= 1.0 + 1e-9

    def test_percentiles_are_values_that_occurred(self):
        assert compute_percentile([3.0, 1.0, 2.0], 0.5) == 2.0
        assert compute_percentile([float(n) for n in range(1, 101)], 0.95) == 95.0
        assert compute_percentile([], 0.5) == 0.0
        assert compute_mean([]) == 0.0


class TestLoad:
    def test_turns_and_questions_are_read(self, tmp_path: Path):
        [conversation] = locomo.load_conversations(write_locomo(tmp_path, [CONVERSATION]))
        assert [turn.id for turn in conversation.turns] == ["D1:1", "D1:2", "D2:1", "D2:2"]
        assert conversation.turns[2].text == "I adopted a puppy. [shares image: a brown dog]"
        assert [question.category for question in conversation.questions] == [2, 4, 1, 3]
        assert conversation.questions[2].evidence == {"D1:2", "D2:2"}
        assert conversation.questions[3].evidence == {"D2:2"}

    @pytest.mark.parametrize(
        "content", [{}, [1], [{"conversation": {}}], [{"conversation": [], "qa": []}], "text", None]
    )
    def test_invalid_file_is_refused(self, tmp_path: Path, content: Any):
        with pytest.raises(BadInput, match="LoCoMo"):
            locomo.load_conversations(write_locomo(tmp_path, content))

    def test_missing_file_is_refused(self, tmp_path: Path):
        with pytest.raises(BadInput, match="cannot be read"):
            locomo.load_conversations(tmp_path / "none.json")


def test_command_prints_every_documented_field(tmp_path: Path):
    process = run_command(tmp_path, write_locomo(tmp_path, [CONVERSATION]), "--json")
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert set(result["turn"]) >= {"recall@1", "recall@5", "recall@10", "recall@25", "ndcg@10"}
    assert set(result["session"]) >= {"recall@5", "recall@10"}
    assert set(result["by_category"]) == {"multi-hop", "temporal", "open-domain", "single-hop"}
    assert set(result["latency_ms"]) >= {"p50", "p95"}
    assert result["questions"] == 4
    assert result["turn"]["recall@10"] == 1.0
    assert result["session"]["recall@5"] == 1.0
    assert result["turn"]["recall@1"] < 1.0


def test_table_omits_categories_without_questions(tmp_path: Path):
    single = {**CONVERSATION, "qa": CONVERSATION["qa"][:1]}  # type: ignore[index]
    process = run_command(tmp_path, write_locomo(tmp_path, [single, {**single, "sample_id": "conv-2", "qa": []}]))
    assert process.returncode == 0, process.stderr
    assert "temporal" in process.stdout
    assert "multi-hop" not in process.stdout


def run_command(directory: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = "from recollect.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, "eval", "locomo", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, cwd=directory, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
