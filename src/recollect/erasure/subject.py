"""The subject of an erasure: a tenant, a user, an agent or a session."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass, replace
from typing import Literal

from recollect.errors import BadInput
from recollect.stores.erasure import ErasureRecord
from recollect.types import MemoryItem, Scope, Space

SCOPE_PARTS = ("tenant", "user", "agent", "session")

Coverage = Literal["all", "some", "none"]


@dataclass(frozen=True, slots=True)
class ErasureSubject:
    """The named parts of a scope. A part that is None matches any value."""

    tenant: str
    user: str | None = None
    agent: str | None = None
    session: str | None = None

    @classmethod
    def from_names(
        cls, here: Scope, *, tenant: str | None, user: str | None, agent: str | None, session: str | None
    ) -> ErasureSubject:
        """Return the subject that the names mean at the scope `here`.

        A user or an agent is one of this tenant; a session is one of this user and agent, unless they are named.
        Raises `BadInput` if no part is named.
        """
        if tenant is None and user is None and agent is None and session is None:
            raise BadInput("erase needs a user, a session, an agent or a tenant")
        if session is not None:
            user, agent = here.user if user is None else user, here.agent if agent is None else agent
        names = {"tenant": here.tenant if tenant is None else tenant, "user": user, "agent": agent, "session": session}
        Scope(**{part: name for part, name in names.items() if name is not None})  # validates the names
        return cls(**names)  # type: ignore[arg-type]

    @classmethod
    def match(cls, erasure: ErasureRecord, names: Scope | Space, salt: bytes) -> ErasureSubject | None:
        """Return the subject with the erased parts of `names` if its hash is that of the erasure."""
        parts = {part: getattr(names, part) for part in erasure.parts}
        subject = cls(**parts) if all(parts.values()) else None
        return subject if subject is not None and subject.digest(salt) == erasure.subject else None

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part in SCOPE_PARTS if getattr(self, part) is not None)

    def digest(self, salt: bytes) -> str:
        """Return a hash that identifies the subject only to a holder of the salt."""
        names = json.dumps([getattr(self, part) for part in SCOPE_PARTS])
        return hmac.new(salt, names.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def find_coverage(self, space: Space) -> Coverage:
        """Return how much of a space belongs to the subject; "some" if the space does not name all parts."""
        coverage: Coverage = "all"
        for part in SCOPE_PARTS:
            name, space_name = getattr(self, part), getattr(space, part)
            if name is None or name == space_name:
                continue
            if space_name:
                return "none"
            coverage = "some"
        return coverage

    def covers(self, scope: Scope) -> bool:
        """Return True if data of the scope belongs to the subject."""
        return all(getattr(self, part) in (None, getattr(scope, part)) for part in SCOPE_PARTS)

    def owns(self, item: MemoryItem) -> bool:
        """Return True if the item belongs to the subject, by its scope or as a turn of the session."""
        if self.covers(item.scope):
            return True
        if self.session is None or item.turn is None or item.turn.session != self.session:
            return False
        return item.scope.session is None and self.covers(replace(item.scope, session=self.session))
