"""The offline summariser: the sentences of a text that say the most, chosen without a model."""

from __future__ import annotations

import bisect
import hashlib
import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from recollect.words import analyse
from recollect.words.tokens import count_tokens

Count = Callable[[str], int]

# A piece longer than this is no sentence but a log, a table or code: it is cut at a space.
_LONGEST_PIECE = 320
# More pieces than this are a machine's: only so many are weighed word by word, for a tool may print a million lines.
_MOST_WEIGHED = 3000
_GAP = "…"
# 0 would take the longest sentences, 1 the shortest.
_THRIFT = 0.2
# A sentence of this many words says half as much a word as a long one: exclamations are short and rare.
_SLIGHT = 6.0
# How much rare words weigh beside the cues.
_RARE = 0.5

_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[。！？])\s*|\s*[\r\n\u2028\u2029]+\s*")

# (what is noticed in a sentence, how much more or less it says). What was decided, what broke and what has to be
# kept outweigh any amount of rare words.
_CUES: tuple[tuple[re.Pattern[str], float], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE if words else 0), weight)
    for words, pattern, weight in (
        (
            True,
            r"\b(\w*error|\w*exception|fail(s|ed|ure)?|crash(ed)?|refused|denied|timed? ?out|traceback|broken|fatal"
            r"|panic)\b",
            0.6,
        ),
        (True, r"\b(decided|decision|agreed|chose|approved|rejected|conclu(ded|sion)|will use|going with)\b", 0.6),
        (True, r"\b(remember|important|critical|must|never|always|required|deadline|due)\b", 0.5),
        (True, r"\b(prefers?|favou?rite|allergic|actually|instead|no longer|correction|changed|moved to)\b", 0.4),
        (True, r"\b(because|so that|root cause|the reason|fixed|solved|works now|done|finished|completed)\b", 0.3),
        (False, r"\d", 0.25),
        (False, r"(?<=[\w,;:] )[A-Z][\w'-]+", 0.25),
        (False, r"[\w-]+[/\\][\w./\\-]+|\w+_\w+|\w+\.\w+\(|https?:", 0.2),
        (False, r"\?\W*$", -0.15),
        (True, r"^\W*(hi|hey|hello|thanks?|thank you|ok|okay|sure|great|bye|lol|let me|i'll|i will)\b.{0,40}$", -0.5),
    )
)

# What is looked for in very many lines: the first three kinds.
_GRAVE = _CUES[:3]
_DIGITS = re.compile(r"\d+")

_MARK = re.compile(r"\s*\[extract of ([\d,]+) characters, sha256 ([0-9a-f]{16})…\]\Z")


@dataclass(frozen=True, slots=True)
class Passage:
    """A text with the name of whoever said it."""

    text: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class _Piece:
    passage: int
    place: int
    text: str
    cost: int
    terms: tuple[str, ...]
    first: bool
    last: bool


def summarise(passages: Iterable[Passage | str], limit: int, count: Count = count_tokens) -> str:
    """At most `limit` tokens of the most telling sentences, in their order, a line for each passage.

    The same input gives the same summary. What fits is returned whole, without what it says twice.
    """
    given = [Passage(one) if isinstance(one, str) else one for one in passages]
    if limit <= 0 or not given:
        return ""
    pieces = _distinct(_pieces(given, count))
    everything = _rendered(given, pieces)
    if count(everything) <= limit:
        return everything
    chosen = _chosen(given, pieces, limit, count)
    # A counter need not be additive: of what was chosen, as much as fits. What was chosen last says the least.
    fitting = bisect.bisect_right(range(1, len(chosen) + 1), limit, key=lambda n: count(_rendered(given, chosen[:n])))
    text = _rendered(given, chosen[:fitting])
    return text if fitting and count(text) <= limit else _beginning(pieces, limit, count)


def extract(text: str, limit: int, count: Count = count_tokens) -> str:
    """A long text as its most telling sentences and a mark that says how much there was and its hash.

    An extract of an extract still speaks of the whole. The mark is never left out, so that nothing is cut in silence:
    where even that does not fit, the answer is the mark alone.
    """
    if not _MARK.search(text) and _fits(text, limit, count):
        return text
    mark = mark_of(text)
    kept = summarise([_MARK.sub("", text)], limit - count(mark), count)
    return f"{kept} {mark}" if kept else mark


def _fits(text: str, limit: int, count: Count) -> bool:
    """Whether a text has at most so many tokens; a very long one is not counted to its end to see that it has not."""
    head = text[: 64 * max(1, limit)]
    return count(head) <= limit and (len(head) == len(text) or count(text) <= limit)


def mark_of(text: str) -> str:
    """What an extract says of the whole: its length and the beginning of its SHA-256."""
    before = _MARK.search(text)
    if before:
        return before[0].strip()
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"[extract of {len(text):,} characters, sha256 {digest[:16]}…]"


def _pieces(passages: Sequence[Passage], count: Count) -> list[_Piece]:
    texts = [[part for line in _END.split(one.text) if line for part in _windows(line)] for one in passages]
    said = [(number, place, text) for number, some in enumerate(texts) for place, text in enumerate(some)]
    return [
        _Piece(
            number,
            place,
            text,
            max(1, count(text)),
            tuple(dict.fromkeys(analyse(text))),
            first=place == 0,
            last=place == len(texts[number]) - 1,
        )
        for number, place, text in _narrowed(said)
    ]


def _narrowed(said: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Of very many, those worth weighing: both ends, and between them the grave before the rare.

    A line like a hundred others says nothing by being there once more: alike but for their numbers is alike.
    """
    if len(said) <= _MOST_WEIGHED:
        return said
    shapes = [_DIGITS.sub("0", text) for _, _, text in said]
    alike = Counter(shapes)
    first: dict[str, int] = {}
    for at, shape in enumerate(shapes):
        first.setdefault(shape, at)

    def grave(at: int) -> float:
        return sum(weight for pattern, weight in _GRAVE if pattern.search(said[at][2]))

    end = _MOST_WEIGHED // 10
    telling = sorted(first.values(), key=lambda at: (-grave(at), alike[shapes[at]], at))
    kept = {*range(end), *range(len(said) - end, len(said)), *telling[: _MOST_WEIGHED - 2 * end]}
    return [said[at] for at in sorted(kept)]


def _windows(line: str) -> list[str]:
    """A line in pieces of readable length, cut at spaces where there are any."""
    line = " ".join(line.split())
    parts: list[str] = []
    start = 0
    while len(line) - start > _LONGEST_PIECE:
        end = line.rfind(" ", start + _LONGEST_PIECE // 2, start + _LONGEST_PIECE)
        end = start + _LONGEST_PIECE if end < 0 else end
        parts.append(line[start:end].strip())
        start = end
    parts.append(line[start:].strip())
    return [part for part in parts if part]


def _distinct(pieces: list[_Piece]) -> list[_Piece]:
    """Without sentences that were said before in the same words, whoever said them."""
    seen: set[str] = set()
    kept = []
    for piece in pieces:
        words = " ".join(piece.text.casefold().split()).rstrip(".!。")
        if words not in seen:
            seen.add(words)
            kept.append(piece)
    return kept


def _chosen(passages: Sequence[Passage], pieces: list[_Piece], limit: int, count: Count) -> list[_Piece]:
    """Greedily the piece that says most that was not said yet, per token it costs; the weightiest first."""
    rarity = _rarity(pieces)
    weights = [_weight(piece, rarity) for piece in pieces]
    whole = [math.fsum(rarity[term] for term in piece.terms) for piece in pieces]
    unsaid = list(whole)
    holding: dict[str, list[int]] = defaultdict(list)
    for at, piece in enumerate(pieces):
        for term in piece.terms:
            holding[term].append(at)

    def gain(at: int) -> float:
        return weights[at] * _novelty(unsaid[at], whole[at]) / math.pow(pieces[at].cost, _THRIFT)

    labels = [count(f"{passage.label}: ") if passage.label else 0 for passage in passages]
    left, spoken, chosen = limit, set[int](), list[_Piece]()
    heap = [(-gain(at), at) for at in range(len(pieces))]
    heapq.heapify(heap)
    while heap:
        promised, at = heapq.heappop(heap)
        # What a piece adds only ever falls, so an old promise that is still the best may be looked at again.
        if heap and -gain(at) > promised:
            heapq.heappush(heap, (-gain(at), at))
            continue
        piece = pieces[at]
        cost = piece.cost + 1 + (0 if piece.passage in spoken else labels[piece.passage])
        if cost > left:
            continue
        left -= cost
        chosen.append(piece)
        spoken.add(piece.passage)
        for term in piece.terms:
            for other in holding.pop(term, ()):
                unsaid[other] -= rarity[term]
    return chosen


def _novelty(unsaid: float, whole: float) -> float:
    return max(0.0, unsaid) / whole if whole else 0.0


def _rarity(pieces: Sequence[_Piece]) -> dict[str, float]:
    found = Counter(term for piece in pieces for term in piece.terms)
    return {term: math.log(1.0 + len(pieces) / n) for term, n in found.items()}


def _weight(piece: _Piece, rarity: dict[str, float]) -> float:
    if not piece.terms:
        return 0.01
    informative = math.fsum(rarity[term] for term in piece.terms) / (len(piece.terms) + _SLIGHT)
    cues = sum(weight for pattern, weight in _CUES if pattern.search(piece.text))
    place = 0.15 if piece.first else 0.1 if piece.last else 0.0
    return max(0.02, _RARE * informative + cues + place)


def _rendered(passages: Sequence[Passage], chosen: Iterable[_Piece]) -> str:
    lines: list[str] = []
    before: _Piece | None = None
    for piece in sorted(chosen, key=lambda one: (one.passage, one.place)):
        label = passages[piece.passage].label
        if before is None or before.passage != piece.passage:
            lines.append(f"{label}: {piece.text}" if label else piece.text)
        elif before.place + 1 == piece.place:
            lines[-1] += f" {piece.text}"
        else:
            lines[-1] += f" {_GAP} {piece.text}"
        before = piece
    return "\n".join(lines)


def _beginning(pieces: Sequence[_Piece], limit: int, count: Count) -> str:
    """The first words of the weightiest piece, where no piece fits whole."""
    if not pieces:
        return ""
    rarity = _rarity(pieces)
    text = max(pieces, key=lambda piece: (_weight(piece, rarity), -piece.passage, -piece.place)).text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if count(f"{text[:middle].rstrip()}{_GAP}") <= limit:
            low = middle
        else:
            high = middle - 1
    # Half a word misleads, unless the text is written without spaces.
    whole = text[:low] if low == len(text) or text[low].isspace() else text[:low].rpartition(" ")[0] or text[:low]
    return f"{whole.rstrip()}{_GAP}" if whole.strip() else ""
