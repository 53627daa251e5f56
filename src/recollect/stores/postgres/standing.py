"""What a space holds, as far as every search has to know: told with the search itself, or asked before it."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.stores.bm25 import Corpus
from recollect.stores.postgres import index, models
from recollect.stores.postgres.journey import Rows, Statement, Values
from recollect.stores.postgres.models import Models
from recollect.stores.postgres.rows import named
from recollect.stores.postgres.text import given
from recollect.values import Space

# From each speaker to the next one, so that a space of many turns and few speakers is not read through.
STANDING = f"""
    select json_build_object(
        'models', {models.AS_JSON},
        'number', s.id,
        'items', s.items,
        'words', s.words,
        'indexed',
            case when s.items >= %(large)s then {index.WHOLE.format(generation=models.GENERATION, dim=models.DIM)} end,
        'speakers', array(
            with recursive known (speaker) as (
                (
                    select r.speaker
                    from recollect.records r
                    where r.tenant = %(tenant)s and r.space = s.id and r.speaker is not null
                    order by r.speaker
                    limit 1
                )
                union all
                select (
                    select r.speaker
                    from recollect.records r
                    where r.tenant = %(tenant)s and r.space = s.id and r.speaker > known.speaker
                    order by r.speaker
                    limit 1
                )
                from known
                where known.speaker is not null
            )
            select speaker from known where speaker is not null
        )
    )
    from (select) always
    left join recollect.spaces s on s.tenant = %(tenant)s and s.handle = %(space)s
"""  # noqa: S608 - constant clauses


@dataclass(frozen=True, slots=True)
class Standing:
    """What a space holds, and which model its vectors are of."""

    models: Models
    number: int | None
    corpus: Corpus
    speakers: frozenset[str]
    indexed: bool | None = None
    """Whether it has an index by meaning; None when it is too small for one."""


def first_of(space: Space) -> Statement:
    """What a transaction in which a space is searched begins with; `standing` reads the answer."""
    return Statement(STANDING, values_of(space))


def values_of(space: Space) -> Values:
    return {**named(space), "large": index.LARGE}


def standing(first: Rows) -> Standing:
    [(told,)] = first
    items, words = told["items"], told["words"]
    corpus = Corpus(items, words / items) if items else Corpus(0, 0.0)
    indexed = bool(told["indexed"]) if items and items >= index.LARGE else None
    speakers = frozenset(map(given, told["speakers"]))
    return Standing(models.known(told["models"]), told["number"], corpus, speakers, indexed)
