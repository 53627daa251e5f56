"""Provable erasure of a tenant, a user, an agent or a session from every store."""

from recollect.erasure.eraser import Eraser, Verification
from recollect.erasure.subject import ErasureSubject

__all__ = ["Eraser", "ErasureSubject", "Verification"]
