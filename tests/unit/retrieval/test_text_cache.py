"""Cache of values computed from texts, without the texts."""

from __future__ import annotations

from recollect.tiers.messages import TextCache


class RecordingCache:
    """Cache of whether a text contains an x, which records the computed texts."""

    def __init__(self, most: int = 8) -> None:
        self.computed: list[str] = []
        self.cache = TextCache(self._compute, most)

    def _compute(self, text: str) -> bool:
        self.computed.append(text)
        return "x" in text


def test_text_is_computed_once():
    recorder = RecordingCache()
    assert [recorder.cache.get(text) for text in ("axe", "saw", "axe", "saw")] == [True, False, True, False]
    assert recorder.computed == ["axe", "saw"]


def test_find_missing_returns_uncached_texts():
    cache = RecordingCache().cache
    assert cache.find_missing(["axe", "saw"]) == ["axe", "saw"]
    cache.get("axe")
    assert cache.find_missing(["axe", "saw", ""]) == ["saw", ""]


def test_cache_size_is_bounded():
    cache = RecordingCache(most=3).cache
    texts = [f"text {number}" for number in range(20)]
    for text in texts:
        cache.get(text)
        assert len(texts) - len(cache.find_missing(texts)) <= 3
    assert cache.find_missing(texts[-1:]) == []


def test_cache_does_not_store_the_texts():
    cache: TextCache[str, bool] = TextCache(str.isspace, 8)
    cache.get("the combination is 4711")
    assert "combination" not in str(vars(cache))
