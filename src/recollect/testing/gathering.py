"""What a store promises of evidence: complete, exact, filtered, of one moment and of one model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recollect.errors import EmbeddingModelMismatch
from recollect.stores.base import Records
from recollect.stores.evidence import Ask, Evidence, Glance
from recollect.stores.ops import Delete, Embed
from recollect.testing.samples import ADA_ELSEWHERE, EVERYTHING, MODEL, OTHER_MODEL, SPACE, put, turn, vector

EAST = vector(1, 0, 0, 0)


async def evidence(store: Records, **options: Any) -> Evidence:
    asked: dict[str, Any] = {"where": EVERYTHING, "vector": EAST, "terms": (), "limit": 10, "reach": 0, "model": MODEL}
    return await store.gather(Ask(**{**asked, **options}), lambda found, lookup: found)


def names(found: Evidence) -> list[str]:
    return [brief.id for brief in found.briefs]


class GatheringContract:
    """Evidence for ranking."""

    pytestmark = pytest.mark.asyncio

    async def test_every_candidate_has_both_kinds_of_evidence(self, store: Records) -> None:
        await store.write(
            put("near", [1, 0, 0, 0], terms="plum"),
            put("far", [0, 1, 0, 0], terms="apple pear"),
            put("neither", [0, 0, 1, 0], terms="fig"),
            put("dumb", terms="apple"),
        )
        found = await evidence(store, terms=("apple", "pear"), limit=2)
        assert names(found) == ["dumb", "far", "near"]
        assert np.isnan(found.cosines[0])
        assert found.cosines[1:].tolist() == pytest.approx([0.0, 1.0], abs=1e-3)
        matches = await store.matching(EVERYTHING, ("apple", "pear"))
        parts = {one.brief.id: one.parts for one in matches.found}
        assert found.parts.T.tolist() == [pytest.approx(parts.get(name, (0.0, 0.0))) for name in names(found)]
        assert found.weights.tolist() == pytest.approx(list(matches.weights))

    async def test_what_is_written_is_found_where_nothing_was_before(self, store: Records) -> None:
        for _ in range(2):
            assert names(await evidence(store, terms=("apple",))) == []
            assert names(await evidence(store, terms=("apple",))) == []
            await store.write(put("new", [1, 0, 0, 0], terms="apple"))
            assert names(await evidence(store, terms=("apple",))) == ["new"]
            await store.write(Delete(SPACE, "new"))

    async def test_an_item_is_as_near_as_its_best_passage(self, store: Records) -> None:
        await store.write(put("long", [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]]), put("short", [0.6, 0.8, 0, 0]))
        found = await evidence(store)
        assert names(found) == ["long", "short"]
        assert found.cosines.tolist() == pytest.approx([1.0, 0.6], abs=1e-3)
        assert [brief.passages for brief in found.briefs] == [3, 1]

    async def test_an_item_of_many_passages_keeps_nobody_out(self, store: Records) -> None:
        # Mutant: an answer is taken that the passages of one item have filled.
        near = [[1.0, n / 1000, 0, 0] for n in range(60)]
        await store.write(put("book", near), put("note", [0.6, 0.8, 0, 0]), put("stone", [0, 0, 1, 0]))
        found = await evidence(store, limit=2)
        assert names(found) == ["book", "note"]
        assert found.cosines.tolist() == pytest.approx([1.0, 0.6], abs=1e-3)

    async def test_after_a_change_of_models_the_new_vectors_are_asked(self, store: Records) -> None:
        # Mutant: a generation of vectors that is taken for granted.
        await store.write(put("a", [1, 0, 0, 0]), put("b", [0, 1, 0, 0]))
        turned = {"a": vector(0, 1, 0), "b": vector(1, 0, 0)}
        await store.write(
            *(
                Embed(SPACE, item.id, turned[item.id][None], OTHER_MODEL, item.version)
                for item in await store.unembedded(OTHER_MODEL)
            )
        )
        await store.switch(OTHER_MODEL)
        found = await evidence(store, vector=vector(1, 0, 0), model=OTHER_MODEL, limit=1)
        assert (names(found), found.cosines.tolist()) == (["b"], pytest.approx([1.0], abs=1e-3))

    async def test_turns_around_a_candidate_come_with_it(self, store: Records) -> None:
        places = [("s", n) for n in range(6)] + [("t", n) for n in range(6)]
        await store.write(
            *(
                turn(f"{session}{n}", session, n, "Ada", vector=[0, 1, 0, n], terms="apple" if n == 4 else "fig")
                for session, n in places
            ),
            turn("s9", "s", 2, "Bo", vector=[1, 0, 0, 0], terms="fig"),
        )
        found = await evidence(store, limit=1, reach=1)
        assert names(found) == ["s1", "s2", "s9", "s3"]
        assert not np.isnan(found.cosines).any()
        assert found.speakers == {"Ada", "Bo"}

    async def test_a_filter_holds_for_neighbours_too(self, store: Records) -> None:
        await store.write(
            turn("a", "s", 0, vector=[0, 1, 0, 0], importance=0.1),
            turn("b", "s", 1, vector=[1, 0, 0, 0], importance=0.9),
            turn("c", "s", 2, vector=[0, 1, 0, 0], importance=0.9),
        )
        found = await evidence(store, where=replace(EVERYTHING, min_importance=0.5), limit=1, reach=2)
        assert names(found) == ["b", "c"]

    async def test_evidence_stays_within_its_space(self, store: Records) -> None:
        await store.write(
            put("a", [0, 1, 0, 0], terms="apple"),
            put("b", [1, 0, 0, 0], terms="apple apple", scope=ADA_ELSEWHERE),
            turn("c", "s", 1, "Eve", vector=[1, 0, 0, 0], scope=ADA_ELSEWHERE),
        )
        found = await evidence(store, terms=("apple",))
        assert names(found) == ["a"]
        assert found.speakers == frozenset()

    async def test_an_empty_space_has_no_evidence(self, store: Records) -> None:
        found = await evidence(store, terms=("apple",))
        assert (len(found), found.parts.shape, found.weights.tolist()) == (0, (1, 0), [0.0])

    async def test_who_is_not_worth_a_look_may_be_left_out(self, store: Records) -> None:
        """What is told of the candidates is true of all of them, and who they are told as nobody else sees."""
        await store.write(
            put("near", [0.8, 0.6, 0, 0], terms="plum"),
            put("far", [0, 1, 0, 0], terms="apple"),
            put("dumb", terms="fig"),
        )
        seen: list[Glance] = []

        def looked_at(glance: Glance) -> bool:
            seen.append(glance)
            return len(seen) > 1

        terms = ("apple", "fig", "pear")
        every = await evidence(store, terms=terms)
        left = await evidence(store, terms=terms, worth_it=looked_at)
        assert names(left) in ([], names(every))
        assert left.speakers == every.speakers
        assert left.weights.tolist() == pytest.approx(every.weights.tolist())
        assert names(await evidence(store, terms=terms, worth_it=looked_at)) == names(every) == ["dumb", "far", "near"]
        for glance in (every.glance, *seen):
            assert glance.nearest == pytest.approx(0.8, abs=1e-3)
            assert glance.held == [True, True, False]
            assert glance.weights == pytest.approx(every.weights.tolist())

    async def test_words_alone_need_no_vector(self, store: Records) -> None:
        await store.write(put("a", [1, 0, 0, 0], terms="apple"), put("b", [1, 0, 0, 0], terms="fig"))
        found = await evidence(store, vector=None, model=None, terms=("apple",))
        assert names(found) == ["a"]
        assert np.isnan(found.cosines).all()

    async def test_a_vector_of_another_model_is_refused(self, store: Records) -> None:
        await store.write(put("a", [1, 0, 0, 0]))
        with pytest.raises(EmbeddingModelMismatch, match="reembed"):
            await evidence(store, vector=vector(1, 0, 0), model=OTHER_MODEL)

    async def test_the_judge_reads_items_and_words_of_the_same_moment(self, store: Records) -> None:
        await store.write(put("a", [1, 0, 0, 0], "fig apple fig"), put("b", [1, 0, 0, 0]))
        ask = Ask(EVERYTHING, EAST, (), 10, 0, MODEL)
        items, terms = await store.gather(
            ask, lambda found, lookup: (lookup.items(["b", "none", "a"]), lookup.terms(["b", "none", "a"]))
        )
        assert items == {item.id: item for item in await store.get(SPACE, "a", "b")}
        assert terms == {"a": "fig apple fig", "b": ""}
