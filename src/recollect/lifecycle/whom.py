"""Whom a hash means: somebody of whom a store still holds something, found by trying the names that it has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from recollect.lifecycle.doom import authors_of, items_of, tasks_of
from recollect.lifecycle.subject import Subject
from recollect.stores.base import Records, Tasks
from recollect.stores.erasing import Erasing, Erasure
from recollect.values import Scope, Space


async def found(store: Erasing, erasure: Erasure) -> Subject | None:
    """Who is meant by an erasure's hash; None when the store holds nothing of them any more."""
    salt = await store.salt()
    spaces = await store.holdings()
    for names in spaces:
        if subject := _is_meant(erasure, names, salt):
            return subject
    shared = [space for space in spaces if not all(getattr(space, part) for part in erasure.parts)]
    async for scope in _authors(store, shared):
        if subject := _is_meant(erasure, scope, salt):
            return subject
    return None


def _is_meant(erasure: Erasure, names: Scope | Space, salt: bytes) -> Subject | None:
    subject = Subject.shaped(erasure.parts, names)
    return subject if subject is not None and subject.digest(salt) == erasure.subject else None


async def _authors(store: Erasing, spaces: Sequence[Space]) -> AsyncIterator[Scope]:
    """Everybody who is named by what lies in spaces that several share, each once."""
    seen: set[Scope] = set()
    for space in spaces:
        if isinstance(store, Tasks):
            async for task in tasks_of(store, space):
                seen.update(await authors_of(store, space, task))
        if isinstance(store, Records):
            async for item in items_of(store, space):
                seen.add(item.scope)
                if item.turn is not None:
                    seen.add(Scope(item.scope.tenant, item.scope.user, item.scope.agent, item.turn.session or None))
    for scope in seen:
        yield scope
