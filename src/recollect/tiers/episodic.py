"""Episodic memory: recent turns, tool calls, decisions, errors and outcomes of a session, kept for a limited time."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from recollect.clock import Clock, to_utc
from recollect.language.extractive_summary import extract_text
from recollect.language.importance import score_importance
from recollect.security.redaction import RedactionPolicy
from recollect.settings import Settings
from recollect.stores.base import Log
from recollect.stores.writes import Append, Entry
from recollect.tiers.facts import check_metadata
from recollect.tiers.indexing import call_with_text, check_limit, check_query
from recollect.tiers.log_entries import check_id, generate_id, read_all_entries, search_entries
from recollect.tiers.messages import mark_episode, sanitize_episode
from recollect.types import EMPTY_MAPPING, Scope, Space
from recollect.validation import check_choice, check_fraction, check_text, check_utc

EpisodeKind = Literal["turn", "tool_call", "decision", "error", "outcome"]
EPISODE_KINDS: tuple[EpisodeKind, ...] = get_args(EpisodeKind)

# Kinds whose long content is stored as an extract. What people say is stored whole.
_VERBOSE_KINDS: tuple[EpisodeKind, ...] = ("tool_call", "error")
_MAX_WHOLE_CHARS = 2000
# About as much text as _MAX_WHOLE_CHARS.
_EXTRACT_TOKENS = 500
# Characters. The extract is far below max_content.
_MAX_TOOL_OUTPUT = 100_000_000


@dataclass(frozen=True, slots=True)
class OriginalText:
    """Size in bytes and sha256 of the text that an extract was taken from."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """An event of a session. `whole` describes the original text if `content` is an extract."""

    id: str
    content: str
    kind: EpisodeKind
    at: datetime
    session: str | None
    importance: float
    metadata: Mapping[str, Any] = field(default_factory=lambda: EMPTY_MAPPING)
    expires_at: datetime | None = None
    whole: OriginalText | None = None


class EpisodicMemory:
    """Episodes of a user with an agent, by session. `session=None` is the session of the scope."""

    def __init__(
        self, store: Log, *, scope: Scope, settings: Settings, clock: Clock, ids: Callable[[], str] = generate_id
    ) -> None:
        self._store = store
        self._scope = scope
        self._clock = clock
        self._generate_id = ids
        self._tier = settings.tier("episodic")
        self._max_content = settings.max_content
        self._policy = RedactionPolicy.from_settings(settings)
        self._space = scope.space("episodic")

    async def store(
        self,
        content: str,
        *,
        kind: EpisodeKind = "turn",
        importance: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        session: str | None = None,
        at: datetime | None = None,
        id: str | None = None,
    ) -> Episode:
        """Store an episode until it expires or newer episodes replace it.

        `importance` is from 0 to 1; by default it is scored from the text. `at` is when it happened. An episode whose
        `id` is stored already is returned as it is. The lifetime counts from now, whatever `at` is.
        """
        append = await self._build_append(
            content, kind=kind, importance=importance, metadata=metadata, session=session, at=at, id=id
        )
        if id is None:
            await self._store.write(append)
            return parse_episode(append.space, append.entry)
        [stored] = await self._store.append(append)
        return parse_episode(append.space, stored or append.entry)

    async def get_recent(self, n: int = 10, *, session: str | None = None) -> list[Episode]:
        """Return the newest episodes, newest last, in the order they were stored."""
        space = self._find_space(session)
        return [parse_episode(space, entry) for entry in await self._store.recent(space, limit=check_limit(n))]

    async def search(self, query: str, n: int = 5, *, session: str | None = None) -> list[Episode]:
        """Return the episodes that match the terms of the query best, best first; of equals the newer one."""
        query, n, space = check_query(query), check_limit(n), self._find_space(session)
        matches = await search_entries(query, await read_all_entries(self._store, space), n, to_utc(self._clock()))
        return [parse_episode(space, entry) for entry in matches]

    async def sessions(self) -> list[str]:
        """Return the sessions of this user and agent that have episodes, newest last; "" is the unnamed session."""
        return [space.session for space in await self._store.logs(self._space)]

    def _find_space(self, session: str | None = None) -> Space:
        return self._space if session is None else replace(self._scope, session=session or None).space("episodic")

    async def _build_append(
        self,
        content: str,
        *,
        kind: EpisodeKind = "turn",
        importance: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        session: str | None = None,
        at: datetime | None = None,
        id: str | None = None,
    ) -> Append:
        kind = check_choice("kind", kind, EPISODE_KINDS)
        # The caller's metadata is nested, so that its keys cannot collide with ours.
        given = check_metadata(metadata)
        envelope: dict[str, Any] = {"given": given} if given else {}
        is_verbose = kind in _VERBOSE_KINDS
        max_length = max(self._max_content, _MAX_TOOL_OUTPUT) if is_verbose else self._max_content
        text = check_text("content", content, max_length=max_length)
        if is_verbose and len(text) > _MAX_WHOLE_CHARS:
            text, whole = await asyncio.to_thread(_extract, text)
            envelope |= {"whole": asdict(whole)} if whole else {}
        now = to_utc(self._clock())
        entry = Entry(
            id=self._generate_id() if id is None else check_id(id),
            kind=kind,
            content=text,
            at=now if at is None else check_utc("at", at),
            metadata=envelope,
            importance=score_importance(text, kind) if importance is None else check_fraction("importance", importance),
            expires_at=_compute_expiry(now, self._tier.ttl_seconds),
        )
        entry = await call_with_text(len(text), sanitize_episode, self._policy, entry)
        return Append(space=self._find_space(session), entry=entry, cap=self._tier.max_items)

    def _build_append_from_message(self, message: Entry, metadata: Mapping[str, Any]) -> Append:
        """Return the write of a message as an episode. Its content is checked, redacted and scored already."""
        expires_at = _compute_expiry(message.at, self._tier.ttl_seconds)
        given = {"given": dict(metadata)} if metadata else {}
        entry = mark_episode(replace(message, kind="turn", metadata=given, expires_at=expires_at))
        return Append(space=self._space, entry=entry, cap=self._tier.max_items)


def parse_episode(space: Space, entry: Entry) -> Episode:
    """Return an entry of an episodic log as an episode."""
    original = entry.metadata.get("whole")
    return Episode(
        id=entry.id,
        content=entry.content,
        kind=entry.kind,  # type: ignore[arg-type]  # checked when it was written
        at=entry.at,
        session=space.session or None,
        importance=entry.importance,
        metadata=entry.metadata.get("given", EMPTY_MAPPING),
        expires_at=entry.expires_at,
        whole=None if original is None else OriginalText(**original),
    )


def _extract(text: str) -> tuple[str, OriginalText | None]:
    short, data = extract_text(text, _EXTRACT_TOKENS), text.encode()
    return short, None if short == text else OriginalText(len(data), hashlib.sha256(data).hexdigest())


def _compute_expiry(start: datetime, seconds: int | None) -> datetime | None:
    if seconds is None:
        return None
    try:
        return start + timedelta(seconds=seconds)
    except OverflowError:
        return None  # beyond the year 9999
