"""What a statement claims, in plain words: nobody who asks where they live has "No, I moved to Porto." in mind."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from recollect.lifecycle.claims import clauses_of
from recollect.lifecycle.statements import fingerprint
from recollect.lifecycle.wordings import plain
from recollect.tiers.indexing import PLAINLY
from recollect.values import MemoryItem


def worded(item: MemoryItem) -> MemoryItem:
    """The item with its plain wording, which is indexed with it; without one where its own words are plain.

    What was said stays the text. Of an item that is left of another, that one's wording is not taken over.
    """
    told = {name: value for name, value in item.metadata.items() if name != PLAINLY}
    sentences = in_plain_words(item.content)
    if sentences:
        told[PLAINLY] = "\n".join(sentences)
    return item if told == item.metadata else replace(item, metadata=MappingProxyType(told))


def in_plain_words(text: str) -> list[str]:
    """A sentence for each claim that was made in other words."""
    told = ((clause.claim.plainly.rstrip(" .!"), plain(clause.text)) for clause in clauses_of(text))
    return [plainly for plainly, said in told if fingerprint(plainly) != fingerprint(said)]
