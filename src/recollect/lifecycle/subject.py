"""Who is to be erased: a tenant, a user, an agent or a session, told apart from all others by one rule."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from recollect.errors import BadInput
from recollect.values import MemoryItem, Scope, Space

PARTS = ("tenant", "user", "agent", "session")

Reach = Literal["all", "some", "none"]


@dataclass(frozen=True, slots=True)
class Subject:
    """The parts of a scope that were named; those that were not stand for any."""

    tenant: str
    user: str | None = None
    agent: str | None = None
    session: str | None = None

    @classmethod
    def named(
        cls, here: Scope, *, tenant: str | None, user: str | None, agent: str | None, session: str | None
    ) -> Subject:
        """As somebody at a scope names it: a session is theirs with this agent, a user or an agent this tenant's."""
        if tenant is None and user is None and agent is None and session is None:
            raise BadInput("erase needs to know whom: name a user, a session, an agent or a tenant")
        if session is not None:
            user, agent = here.user if user is None else user, here.agent if agent is None else agent
        named = {"tenant": here.tenant if tenant is None else tenant, "user": user, "agent": agent, "session": session}
        Scope(**{part: name for part, name in named.items() if name is not None})  # which refuses what is no name
        return cls(**named)  # type: ignore[arg-type]

    @classmethod
    def shaped(cls, parts: Iterable[str], names: Scope | Space) -> Subject | None:
        """Somebody of whom the same parts are named; None where there is no name for one."""
        told = {part: getattr(names, part) for part in parts}
        return cls(**told) if all(told.values()) else None

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part in PARTS if getattr(self, part) is not None)

    def digest(self, salt: bytes) -> str:
        """Who it is, to be recognised by whoever has the key and by nobody else."""
        told = json.dumps([getattr(self, part) for part in PARTS])
        return hmac.new(salt, told.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def reach(self, space: Space) -> Reach:
        """How much of a space is theirs. One that does not say whose it is in some respect may hold some of it."""
        reach: Reach = "all"
        for part in PARTS:
            wanted, held = getattr(self, part), getattr(space, part)
            if wanted is None or wanted == held:
                continue
            if held:
                return "none"
            reach = "some"
        return reach

    def covers(self, scope: Scope) -> bool:
        """Whether what was kept under a scope is theirs."""
        return all(getattr(self, part) in (None, getattr(scope, part)) for part in PARTS)

    def owns(self, item: MemoryItem) -> bool:
        """Whether an item is theirs: by its scope, or as a turn of the session."""
        if self.covers(item.scope):
            return True
        if self.session is None or item.turn is None or item.turn.session != self.session:
            return False
        return item.scope.session is None and self.covers(_within(item.scope, self.session))


def _within(scope: Scope, session: str) -> Scope:
    return Scope(scope.tenant, scope.user, scope.agent, session)
