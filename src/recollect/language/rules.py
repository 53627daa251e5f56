"""Rules that read statements in one natural language. English is the default and the only implementation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from recollect.language import claims, novelty, promotion_rules, sentences
from recollect.language.claims import ClaimClause, SlotClaim
from recollect.language.promotion_rules import PromotableStatement
from recollect.language.sentences import Statement
from recollect.types import MemoryItem


class LanguageRules(Protocol):
    """The questions that the lifecycle and retrieval ask about a text.

    A rule that does not understand a text returns nothing. A statement that is missed can still be found in its
    conversation; a wrong fact would be kept.
    """

    def parse_statements(self, message: str) -> list[Statement]:
        """Return the sentences that the sender may be stating."""

    def find_promotable_statements(self, message: str) -> list[PromotableStatement]:
        """Return the statements that are worth keeping, with the rule that each satisfies."""

    def find_declarations(self, message: str) -> list[str]:
        """Return the statements that are worth keeping once they were repeated."""

    def parse_clauses(self, sentence: str, by_user: bool = True) -> tuple[ClaimClause, ...]:
        """Return the clauses of a sentence with their claims about the user; empty if one is not understood."""

    def extract_claims(self, text: str) -> tuple[SlotClaim, ...]:
        """Return the claims of a user's statement; empty if one is not understood."""

    def build_plain_sentences(self, text: str) -> list[str]:
        """Return a plain sentence for each claim that is worded differently."""

    def is_redundant(self, text: str, item: MemoryItem) -> bool:
        """Return True if the item already says what the text says."""

    def is_already_claimed(self, text: str, items: Iterable[MemoryItem]) -> bool:
        """Return True if the items make every claim of the text."""

    def is_off_the_record(self, text: str) -> bool:
        """Return True if the sender asks not to keep the text."""

    def is_about_past(self, query: str) -> bool:
        """Return True if the query asks how something was before."""


class EnglishRules:
    """English statement rules."""

    parse_statements = staticmethod(sentences.parse_statements)
    find_promotable_statements = staticmethod(promotion_rules.find_promotable_statements)
    find_declarations = staticmethod(promotion_rules.find_declarations)
    extract_claims = staticmethod(claims.extract_claims)
    build_plain_sentences = staticmethod(novelty.build_plain_sentences)
    is_redundant = staticmethod(novelty.is_redundant)
    is_already_claimed = staticmethod(novelty.is_already_claimed)
    is_off_the_record = staticmethod(sentences.is_off_the_record)
    is_about_past = staticmethod(sentences.is_about_past)

    def parse_clauses(self, sentence: str, by_user: bool = True) -> tuple[ClaimClause, ...]:
        return claims.parse_clauses(sentences.rewrite_as_user(sentence, by_user))


ENGLISH: LanguageRules = EnglishRules()
