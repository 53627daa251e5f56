"""The order of recalled lines, and how many are shown: probabilities learned from labelled conversations."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recollect.errors import BadSettings
from recollect.language.dates import AskedTime
from recollect.retrieval.fusion import Calibration
from recollect.retrieval.log_search import find_shared_terms, get_terms
from recollect.retrieval.prompt_block import PromptLine
from recollect.types import Hit, MemoryItem

Column = NDArray[np.float64]
ItemKey = tuple[str, str]
"""Tier and id of an item."""

FEATURES = (
    "cosine", "cosine_above_others", "cosine_rank", "cosine_beside", "words", "words_squared", "words_beside",
    "best_cosine", "lead", "is_question", "is_assistant", "is_asked_assistant",
    "is_fact", "length", "age", "time", "out_of_time",
)  # fmt: skip
PHRASE_FEATURES = (*FEATURES, "phrase_cosine", "phrase_cosine_mean", "phrase_words", "phrase_words_mean")

# The candidates that a cosine is compared with.
_COMPARED = 20
# A line is shown if it is on the topic with this probability; below, blocks grow faster than answers.
_MIN_CHANCE = 0.09
# The best lines are shown in any case: in a small memory, all chances are low.
_MIN_LINES = 3
# A line with this share of the terms of a query is on its topic.
_MIN_COVERED = 0.6
# A short reply is an echo if at most this share of its terms is new.
_MAX_ECHO_CHARACTERS, _MAX_NEW_SHARE = 300, 0.34
_SECONDS_PER_DAY = 86_400.0
# The labelled conversations are not older than some weeks; what was said before does not fade further.
_MAX_DAYS = 30.0
_WEIGHTS_VARIABLE = "RECOLLECT_WEIGHTS"
WEIGHTS_FILE = "ranking.json"


class LineChances(NamedTuple):
    """The probability of each line that it has the answer, and that it has the answer or is on its topic."""

    answers: Column
    is_on_topic: Column


@dataclass(frozen=True, slots=True)
class RankingWeights:
    """Two logistic regressions over the same features, which are centered and scaled."""

    features: tuple[str, ...]
    center: Column
    scale: Column
    weights: Column
    bias: Column

    def estimate(self, table: Mapping[str, Column]) -> LineChances:
        rows = np.stack([table[name] for name in self.features], axis=1)
        scores = ((rows - self.center) / self.scale) @ self.weights + self.bias
        chances = 1.0 / (1.0 + np.exp(-np.clip(scores, -30.0, 30.0)))
        return LineChances(chances[:, 0], chances[:, 1])


def load_weights(*, has_phrases: bool) -> RankingWeights:
    """Return the weights for a query with or without phrases, from the directory that `RECOLLECT_WEIGHTS` names."""
    return _read_weights(os.environ.get(_WEIGHTS_VARIABLE, ""))[has_phrases]


@lru_cache(maxsize=16)
def _read_weights(directory: str) -> tuple[RankingWeights, RankingWeights]:
    file = Path(directory) / WEIGHTS_FILE if directory else resources.files("recollect.retrieval") / WEIGHTS_FILE
    try:
        models = json.loads(file.read_text("utf-8"))["models"]
        return tuple(_parse_weights(models[name]) for name in ("question", "phrases"))  # type: ignore[return-value]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BadSettings(f"{file} has no ranking weights: {error}; make them with scripts/train.py") from error


def _parse_weights(model: Mapping[str, Any]) -> RankingWeights:
    rows = np.array(list(model["features"].values()), np.float64)
    bias = np.array(model["bias"], np.float64)
    return RankingWeights(tuple(model["features"]), rows[:, 0], rows[:, 1], rows[:, 2:4], bias)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The hits of the question and of each phrase, by item."""

    queries: Sequence[str]
    by_query: Sequence[Mapping[ItemKey, Hit]]
    calibration: Calibration
    now: datetime
    asked_time: AskedTime | None = None
    asks_assistant: bool = False
    """True if the query asks what the assistant said."""


def select_lines(
    lines: Sequence[PromptLine], chances: LineChances, evidence: Evidence, *, limit: int | None, has_threshold: bool
) -> list[int]:
    """Return the indexes of the lines to show, best first.

    With a threshold, the lines that are unlikely on the topic are left out, except for the best three. So is a reply
    that only repeats the message before it, if that message is shown.
    """
    order: list[int] = np.argsort(-chances.answers, kind="stable").tolist()
    if has_threshold:
        order = [at for at in order if get_terms(lines[at].hit.item.content)]
        order = [at for rank, at in enumerate(order) if rank < _MIN_LINES or chances.is_on_topic[at] >= _MIN_CHANCE]
    if has_threshold and not evidence.asks_assistant:
        places = {place: at for at in order if (place := _get_place(lines[at])) is not None}
        order = [at for at in order if not _is_echo(lines[at], lines, places)]
    return order if limit is None else order[:limit]


def _get_place(line: PromptLine) -> tuple[str, str, float] | None:
    """Return the tier, session and position of a line's message; of a fact, those of the message that it repeats."""
    for item in (line.hit.item, *line.duplicates):
        if item.turn is not None:
            return item.tier, item.turn.session, item.turn.position
    return None


def _is_echo(line: PromptLine, lines: Sequence[PromptLine], places: Mapping[tuple[str, str, float], int]) -> bool:
    """Return True if a reply adds next to nothing to the message before it, which is shown."""
    place, reply = _get_place(line), line.hit.item.content
    before = None if place is None else places.get((place[0], place[1], place[2] - 1))
    if before is None or not _is_assistant(line) or len(reply) > _MAX_ECHO_CHARACTERS:
        return False
    terms = get_terms(reply)
    return len(terms - get_terms(lines[before].hit.item.content)) <= _MAX_NEW_SHARE * len(terms)


def get_key(item: MemoryItem) -> ItemKey:
    return item.tier, item.id


def estimate_chances(lines: Sequence[PromptLine], evidence: Evidence) -> LineChances:
    if not lines:
        return LineChances(np.zeros(0), np.zeros(0))
    table = build_features(lines, evidence)
    chances = load_weights(has_phrases=len(evidence.by_query) > 1).estimate(table)
    # The labelled questions seldom use the words of their answers, so the weights ask for little of them.
    words = np.maximum(table["words"], table.get("phrase_words", 0.0))
    return LineChances(chances.answers, np.where(words >= _MIN_COVERED, 1.0, chances.is_on_topic))


def build_features(lines: Sequence[PromptLine], evidence: Evidence) -> dict[str, Column]:
    """Return the features of all lines, one column each."""
    items = [line.hit.item for line in lines]
    cosines = np.stack([_list_cosines(lines, hits, evidence.calibration) for hits in evidence.by_query], axis=1)
    texts = [item.content for item in items]
    words = np.stack([_score_words(query, texts) for query in evidence.queries], axis=1)
    own, own_words = cosines[:, 0], words[:, 0]
    best = np.sort(own)[::-1][:_COMPARED]
    days = [max((evidence.now - item.created_at).total_seconds(), 0.0) / _SECONDS_PER_DAY for item in items]
    is_assistant = _flag(_is_assistant(line) for line in lines)
    asked = evidence.asked_time
    time = _flag(0.0 if asked is None else asked.score(item.content, item.created_at.date()) for item in items)
    table = {
        "cosine": own,
        "cosine_above_others": (own - best.mean()) / (best.std() + 1e-3),
        "cosine_rank": np.log1p(np.argsort(np.argsort(-own, kind="stable"), kind="stable").astype(np.float64)),
        "cosine_beside": _list_parts(lines, "meaning beside"),
        "words": own_words,
        "words_squared": own_words**2,
        "words_beside": _list_parts(lines, "neighbours"),
        "best_cosine": np.full(len(lines), best[0]),
        "lead": np.full(len(lines), best[0] - best[min(4, len(best) - 1)]),
        "is_question": _flag(item.content.rstrip().endswith("?") for item in items),
        "is_assistant": is_assistant,
        "is_asked_assistant": is_assistant * evidence.asks_assistant,
        "is_fact": _flag(item.tier == "semantic" for item in items),
        "length": np.log(np.array([max(len(item.content.split()), 1) for item in items], np.float64)),
        "age": np.log1p(np.minimum(days, _MAX_DAYS)),
        "time": time,
        "out_of_time": np.where(time > 0.0, 0.0, float(evidence.asked_time is not None)),
    }
    if cosines.shape[1] > 1:
        table |= {
            "phrase_cosine": cosines[:, 1:].max(axis=1),
            "phrase_cosine_mean": cosines[:, 1:].mean(axis=1),
            "phrase_words": words[:, 1:].max(axis=1),
            "phrase_words_mean": words[:, 1:].mean(axis=1),
        }
    return table


def _list_cosines(lines: Sequence[PromptLine], hits: Mapping[ItemKey, Hit], calibration: Calibration) -> Column:
    """Return the cosine of each line with a query; the lowest one that is known for lines that it did not find."""
    found = [hits.get(get_key(line.hit.item)) for line in lines]
    known = np.array([np.nan if hit is None or hit.why.cosine is None else hit.why.cosine for hit in found], np.float64)
    lowest = np.nanmin(known) if not np.isnan(known).all() else calibration.noise
    return np.asarray(calibration.rescale(np.where(np.isnan(known), lowest, known)))


def _score_words(query: str, texts: Sequence[str]) -> Column:
    """Return the share of the weight of the query's terms that each text has."""
    shared = find_shared_terms(query, texts)
    return np.array([shared[at].share if at in shared else 0.0 for at in range(len(texts))], np.float64)


def _list_parts(lines: Sequence[PromptLine], name: str) -> Column:
    return _flag(line.hit.why.parts.get(name, 0.0) for line in lines)


def _flag(values: Iterable[float]) -> Column:
    return np.fromiter(values, np.float64)


def _is_assistant(line: PromptLine) -> bool:
    turn = line.hit.item.turn
    return line.label == "assistant" or (turn is not None and turn.speaker == "assistant")
