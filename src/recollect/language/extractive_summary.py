"""Extractive summaries: the most informative sentences of a text, selected without a model."""

from __future__ import annotations

import bisect
import hashlib
import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from recollect.language.analysis import analyze, count_tokens

TokenCounter = Callable[[str], int]

# A longer piece is a log, a table or code, and is split at a space.
_MAX_PIECE_CHARS = 320
# Tools print up to a million lines; only this many pieces are weighed by their terms.
_MAX_WEIGHED_PIECES = 3000
_GAP_MARK = "…"
# 0 prefers the longest sentences, 1 the shortest.
_COST_EXPONENT = 0.2
# A sentence of this many terms has half the weight per term of a long one: exclamations are short and rare.
_SHORT_PIECE_PENALTY = 6.0
# The weight of rare terms against the cues.
_RARITY_WEIGHT = 0.5

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[。！？])\s*|\s*[\r\n\u2028\u2029]+\s*")

# Cues in a sentence and their weights. Decisions, errors and requests to remember outweigh rare terms.
_CUE_WEIGHTS: tuple[tuple[re.Pattern[str], float], ...] = tuple(
    (re.compile(pattern), weight)
    for pattern, weight in (
        (
            r"(?i)\b(\w*error|\w*exception|fail(s|ed|ure)?|crash(ed)?|refused|denied|timed? ?out|traceback|broken|fatal"
            r"|panic)\b",
            0.6,
        ),
        (r"(?i)\b(decided|decision|agreed|chose|approved|rejected|conclu(ded|sion)|will use|going with)\b", 0.6),
        (r"(?i)\b(remember|important|critical|must|never|always|required|deadline|due)\b", 0.5),
        (r"(?i)\b(prefers?|favou?rite|allergic|actually|instead|no longer|correction|changed|moved to)\b", 0.4),
        (r"(?i)\b(because|so that|root cause|the reason|fixed|solved|works now|done|finished|completed)\b", 0.3),
        (r"\d", 0.25),
        (r"(?<=[\w,;:] )[A-Z][\w'-]+", 0.25),
        (r"[\w-]+[/\\][\w./\\-]+|\w+_\w+|\w+\.\w+\(|https?:", 0.2),
        (r"\?\W*$", -0.15),
        (r"(?i)^\W*(hi|hey|hello|thanks?|thank you|ok|okay|sure|great|bye|lol|let me|i'll|i will)\b.{0,40}$", -0.5),
    )
)

# The cues that are searched in very many lines: errors, decisions and requests.
_STRONG_CUES = _CUE_WEIGHTS[:3]
_DIGITS = re.compile(r"\d+")

_EXTRACT_MARK = re.compile(r"\s*\[extract of ([\d,]+) characters, sha256 ([0-9a-f]{16})…\]\Z")


@dataclass(frozen=True, slots=True)
class LabeledText:
    """A text with the name of its speaker."""

    text: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class _SummaryPiece:
    passage: int
    place: int
    text: str
    cost: int
    terms: tuple[str, ...]
    is_last: bool


def summarize(passages: Iterable[LabeledText | str], limit: int, count: TokenCounter = count_tokens) -> str:
    """Return the most informative sentences in at most `limit` tokens, in order, one line per passage.

    The result is deterministic. A text that fits is returned whole, without repeated sentences.
    """
    texts = [LabeledText(passage) if isinstance(passage, str) else passage for passage in passages]
    if limit <= 0 or not texts:
        return ""
    first: dict[str, _SummaryPiece] = {}
    for piece in _build_pieces(texts, count):  # without repetitions, also across speakers
        first.setdefault(" ".join(piece.text.casefold().split()).rstrip(".!。"), piece)
    pieces = list(first.values())
    everything = _render_pieces(texts, pieces)
    if count(everything) <= limit:
        return everything
    chosen = _choose_pieces(texts, pieces, limit, count)
    # Token counts are not additive, so the selection is cut to what fits. The pieces chosen last matter least.
    fitting = bisect.bisect_right(
        range(1, len(chosen) + 1), limit, key=lambda n: count(_render_pieces(texts, chosen[:n]))
    )
    text = _render_pieces(texts, chosen[:fitting])
    return text if fitting and count(text) <= limit else _truncate_best_piece(pieces, limit, count)


def extract_text(text: str, limit: int, count: TokenCounter = count_tokens) -> str:
    """Return a long text as an extract with a mark that gives the length and the hash of the whole.

    The extract of an extract keeps the first mark. If nothing else fits, the result is the mark alone.
    """
    head = text[: 64 * max(1, limit)]  # of a very long text, only the start is counted
    is_short = count(head) <= limit and (len(head) == len(text) or count(text) <= limit)
    if is_short and not _EXTRACT_MARK.search(text):
        return text
    mark = format_extract_mark(text)
    extract = summarize([_EXTRACT_MARK.sub("", text)], limit - count(mark), count)
    return f"{extract} {mark}" if extract else mark


def format_extract_mark(text: str) -> str:
    """Return the mark of an extract: the length of the whole text and the start of its SHA-256."""
    before = _EXTRACT_MARK.search(text)
    if before:
        return before[0].strip()
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"[extract of {len(text):,} characters, sha256 {digest[:16]}…]"


def _build_pieces(passages: Sequence[LabeledText], count: TokenCounter) -> list[_SummaryPiece]:
    texts = [
        [part for line in _SENTENCE_END.split(passage.text) if line for part in _split_line(line)]
        for passage in passages
    ]
    positions = [(number, place, text) for number, parts in enumerate(texts) for place, text in enumerate(parts)]
    pieces = []
    for number, place, text in _limit_pieces(positions):
        terms, is_last = tuple(dict.fromkeys(analyze(text))), place == len(texts[number]) - 1
        pieces.append(_SummaryPiece(number, place, text, max(1, count(text)), terms, is_last))
    return pieces


def _limit_pieces(pieces: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Return the pieces worth weighing: both ends, and between them those with strong cues, then rare ones."""
    if len(pieces) <= _MAX_WEIGHED_PIECES:
        return pieces
    shapes = [_DIGITS.sub("0", text) for _, _, text in pieces]
    shape_counts = Counter(shapes)
    first = {shape: index for index, shape in reversed(list(enumerate(shapes)))}

    def rank(index: int) -> tuple[float, int, int]:
        cues = sum(weight for pattern, weight in _STRONG_CUES if pattern.search(pieces[index][2]))
        return -cues, shape_counts[shapes[index]], index

    end = _MAX_WEIGHED_PIECES // 10
    middle = sorted(first.values(), key=rank)[: _MAX_WEIGHED_PIECES - 2 * end]
    return [pieces[index] for index in sorted({*range(end), *range(len(pieces) - end, len(pieces)), *middle})]


def _split_line(line: str) -> list[str]:
    """Return the line in pieces of readable length, split at spaces if there are any."""
    line = " ".join(line.split())
    parts: list[str] = []
    start = 0
    while len(line) - start > _MAX_PIECE_CHARS:
        end = line.rfind(" ", start + _MAX_PIECE_CHARS // 2, start + _MAX_PIECE_CHARS)
        end = start + _MAX_PIECE_CHARS if end < 0 else end
        parts.append(line[start:end].strip())
        start = end
    parts.append(line[start:].strip())
    return [part for part in parts if part]


def _choose_pieces(
    passages: Sequence[LabeledText], pieces: list[_SummaryPiece], limit: int, count: TokenCounter
) -> list[_SummaryPiece]:
    """Choose pieces greedily by their weight, their share of new terms and their cost in tokens."""
    rarity = _calculate_rarity(pieces)
    weights = [_weigh_piece(piece, rarity) for piece in pieces]
    totals = [math.fsum(rarity[term] for term in piece.terms) for piece in pieces]
    new = list(totals)
    pieces_by_term: dict[str, list[int]] = defaultdict(list)
    for index, piece in enumerate(pieces):
        for term in piece.terms:
            pieces_by_term[term].append(index)

    def gain(index: int) -> float:
        novelty = max(0.0, new[index]) / totals[index] if totals[index] else 0.0
        return weights[index] * novelty / math.pow(pieces[index].cost, _COST_EXPONENT)

    labels = [count(f"{passage.label}: ") if passage.label else 0 for passage in passages]
    remaining, labeled, chosen = limit, set[int](), list[_SummaryPiece]()
    heap = [(-gain(index), index) for index in range(len(pieces))]
    heapq.heapify(heap)
    while heap:
        stored_gain, index = heapq.heappop(heap)
        # Gains only fall, so a stale entry is pushed back with its current gain.
        if heap and -gain(index) > stored_gain:
            heapq.heappush(heap, (-gain(index), index))
            continue
        piece = pieces[index]
        cost = piece.cost + 1 + (0 if piece.passage in labeled else labels[piece.passage])
        if cost > remaining:
            continue
        remaining -= cost
        chosen.append(piece)
        labeled.add(piece.passage)
        for term in piece.terms:
            for other in pieces_by_term.pop(term, ()):
                new[other] -= rarity[term]
    return chosen


def _calculate_rarity(pieces: Sequence[_SummaryPiece]) -> dict[str, float]:
    counts = Counter(term for piece in pieces for term in piece.terms)
    return {term: math.log(1.0 + len(pieces) / count) for term, count in counts.items()}


def _weigh_piece(piece: _SummaryPiece, rarity: dict[str, float]) -> float:
    if not piece.terms:
        return 0.01
    informative = math.fsum(rarity[term] for term in piece.terms) / (len(piece.terms) + _SHORT_PIECE_PENALTY)
    cues = sum(weight for pattern, weight in _CUE_WEIGHTS if pattern.search(piece.text))
    place = 0.15 if piece.place == 0 else 0.1 if piece.is_last else 0.0
    return max(0.02, _RARITY_WEIGHT * informative + cues + place)


def _render_pieces(passages: Sequence[LabeledText], chosen: Iterable[_SummaryPiece]) -> str:
    lines: list[str] = []
    before: _SummaryPiece | None = None
    for piece in sorted(chosen, key=lambda piece: (piece.passage, piece.place)):
        label = passages[piece.passage].label
        if before is None or before.passage != piece.passage:
            lines.append(f"{label}: {piece.text}" if label else piece.text)
        elif before.place + 1 == piece.place:
            lines[-1] += f" {piece.text}"
        else:
            lines[-1] += f" {_GAP_MARK} {piece.text}"
        before = piece
    return "\n".join(lines)


def _truncate_best_piece(pieces: Sequence[_SummaryPiece], limit: int, count: TokenCounter) -> str:
    """Return the start of the piece with the highest weight, if no piece fits whole."""
    if not pieces:
        return ""
    rarity = _calculate_rarity(pieces)
    text = max(pieces, key=lambda piece: (_weigh_piece(piece, rarity), -piece.passage, -piece.place)).text
    end = bisect.bisect_right(
        range(1, len(text) + 1), limit, key=lambda end: count(f"{text[:end].rstrip()}{_GAP_MARK}")
    )
    # Do not cut inside a word, unless the text has no spaces.
    whole = text[:end] if end == len(text) or text[end].isspace() else text[:end].rpartition(" ")[0] or text[:end]
    return f"{whole.rstrip()}{_GAP_MARK}" if whole.strip() else ""
