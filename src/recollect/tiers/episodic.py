"""What happened lately: the turns, tool calls, decisions, errors and outcomes of a session, for a day."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack, get_args

from recollect.clock import Clock, aware
from recollect.errors import BadInput
from recollect.guard.policy import LONG_TO_LOOK_THROUGH, Policy
from recollect.inference.offline import importance_of
from recollect.inference.summarise import extract
from recollect.settings import Settings
from recollect.stores.base import Log
from recollect.stores.ops import Append, Entry
from recollect.tiers import entrance
from recollect.tiers.entries import (
    checked_content,
    checked_id,
    checked_importance,
    checked_metadata,
    entire,
    fresh_id,
)
from recollect.tiers.facts import in_utc
from recollect.tiers.matching import Match, matches
from recollect.tiers.semantic import checked_count, checked_query
from recollect.values import NOTHING, Scope, Space

Kind = Literal["turn", "tool_call", "decision", "error", "outcome"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Machines say these, at length; what people say is kept word for word.
_VERBOSE: tuple[Kind, ...] = ("tool_call", "error")

# A screenful is kept whole, and of what is longer about as much.
_WHOLE_UP_TO = 2000
_EXTRACT_TOKENS = 500
# The longest tool output that is read for its extract. What is kept of it is far below max_content.
_LONGEST_OUTPUT = 100_000_000


@dataclass(frozen=True, slots=True)
class Whole:
    """What an extract was taken from: bytes in UTF-8, and their sha256 in hex."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Something that happened in a session. `whole` tells of the text that `content` is an extract of."""

    id: str
    content: str
    kind: Kind
    at: datetime
    session: str | None
    importance: float
    metadata: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    expires_at: datetime | None = None
    whole: Whole | None = None


class EpisodeOptions(TypedDict, total=False):
    """What may be said of an episode besides its content; `id` is the caller's name for it."""

    kind: Kind
    importance: float | None
    metadata: Mapping[str, Any] | None
    session: str | None
    at: datetime | None
    id: str | None


@dataclass(frozen=True, slots=True)
class EpisodeMatch:
    """An episode with the reasons why it was found: see `Match`."""

    episode: Episode
    score: float
    share: float
    matched: tuple[str, ...]


class EpisodicMemory:
    """The episodes of a user with an agent, by session. `session=None` is the session of the scope."""

    def __init__(
        self, store: Log, *, scope: Scope, settings: Settings, clock: Clock, ids: Callable[[], str] = fresh_id
    ) -> None:
        self._store = store
        self._scope = scope
        self._clock = clock
        self._ids = ids
        tier = settings.tier("episodic")
        self._most = tier.max_items
        self._lifetime = tier.ttl_seconds
        self._max_content = settings.max_content
        self._policy = Policy.of(settings)
        self._space = scope.space("episodic")

    def space(self, session: str | None = None) -> Space:
        """Where the episodes of a session are kept; the session without a name is the empty text."""
        if session is None:
            return self._space
        return replace(self._scope, session=session or None).space("episodic")

    async def store(self, content: str, **options: Unpack[EpisodeOptions]) -> Episode:
        """Keep what happened, until its time is up or newer episodes have taken its place.

        The same id again is the same episode, as it was first told. The lifetime counts from now, whatever `at` says.
        """
        append = await self.drafted(content, **options)
        if options.get("id") is None:
            await self._store.write(append)
            return episode_of(append.space, append.entry)
        # The entry that has this id: this one, or the one that was there before it.
        [held] = await self._store.append(append)
        return episode_of(append.space, held or append.entry)

    async def drafted(
        self,
        content: str,
        *,
        kind: Kind = "turn",
        importance: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        session: str | None = None,
        at: datetime | None = None,
        id: str | None = None,
    ) -> Append:
        """What `store` would write, for whoever writes it together with something else."""
        if kind not in KINDS:
            raise BadInput(f"kind is one of {', '.join(KINDS)}, not {kind!r:.80}")
        space = self.space(session)
        text, whole = await self._kept(content, kind)
        given = checked_metadata(metadata)
        now = aware(self._clock())
        entry = Entry(
            id=self._ids() if id is None else checked_id(id),
            kind=kind,
            content=text,
            at=now if at is None else in_utc("at", at),
            metadata=_enveloped(given, whole),
            importance=importance_of(text, kind) if importance is None else checked_importance(importance),
            expires_at=_later(now, self._lifetime),
        )
        if len(text) > LONG_TO_LOOK_THROUGH:
            entry = await asyncio.to_thread(entrance.episode, self._policy, entry)
        else:
            entry = entrance.episode(self._policy, entry)
        return Append(space=space, entry=entry, cap=self._most)

    def retold(self, said: Entry, metadata: Mapping[str, Any]) -> Append:
        """A message as the episode that it is: it was checked, treated and weighed when it was said."""
        entry = Entry(
            id=said.id,
            kind="turn",
            content=said.content,
            at=said.at,
            metadata=_enveloped(metadata, None),
            importance=said.importance,
            expires_at=_later(said.at, self._lifetime),
        )
        return Append(space=self._space, entry=entrance.retold(entry), cap=self._most)

    async def get_recent(self, n: int = 10, *, session: str | None = None) -> list[Episode]:
        """The newest episodes, newest last, in the order they were recorded."""
        space = self.space(session)
        return [episode_of(space, entry) for entry in await self._store.recent(space, limit=checked_count(n))]

    async def search(self, query: str, n: int = 5, *, session: str | None = None) -> list[Episode]:
        """The episodes that share the most telling words with the query, best first; of equals the newer one."""
        return [found.episode for found in await self.matching(query, n, session=session)]

    async def matching(self, query: str, n: int = 5, *, session: str | None = None) -> list[EpisodeMatch]:
        """What `search` finds, with the reasons."""
        query, n, space = checked_query(query), checked_count(n), self.space(session)
        found = await matches(query, await entire(self._store, space), n, aware(self._clock()))
        return [_found(space, one) for one in found]

    async def sessions(self) -> list[str]:
        """The sessions of this user and agent that have episodes, newest last; one without a name is the empty text."""
        return [space.session for space in await self._store.logs(self.space())]

    async def _kept(self, content: Any, kind: Kind) -> tuple[str, Whole | None]:
        if kind not in _VERBOSE:
            return checked_content(content, self._max_content), None
        text = checked_content(content, max(self._max_content, _LONGEST_OUTPUT))
        return (text, None) if len(text) <= _WHOLE_UP_TO else await asyncio.to_thread(_extracted, text)


def _extracted(text: str) -> tuple[str, Whole | None]:
    short = extract(text, _EXTRACT_TOKENS)
    if short == text:
        return text, None
    raw = text.encode()
    return short, Whole(len(raw), hashlib.sha256(raw).hexdigest())


def episode_of(space: Space, entry: Entry) -> Episode:
    """A line of an episodic log as the episode it stands for."""
    whole = entry.metadata.get("whole")
    return Episode(
        id=entry.id,
        content=entry.content,
        kind=entry.kind,  # type: ignore[arg-type]  # checked when it was written
        at=entry.at,
        session=space.session or None,
        importance=entry.importance,
        metadata=entry.metadata.get("given", NOTHING),
        expires_at=entry.expires_at,
        whole=None if whole is None else Whole(whole["size"], whole["sha256"]),
    )


def _enveloped(given: Mapping[str, Any], whole: Whole | None) -> Mapping[str, Any]:
    """What the caller said and what we add, apart, so that no name of theirs can be taken for one of ours."""
    envelope: dict[str, Any] = {"given": dict(given)} if given else {}
    if whole is not None:
        envelope["whole"] = {"size": whole.size, "sha256": whole.sha256}
    return envelope


def _found(space: Space, match: Match) -> EpisodeMatch:
    return EpisodeMatch(episode_of(space, match.entry), match.score, match.share, match.matched)


def _later(now: datetime, seconds: int | None) -> datetime | None:
    if seconds is None:
        return None
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError:
        return None  # past the end of the calendar is for ever
