"""What is being said: a session's messages, kept whole in the store and shown to a model within its limits."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, Protocol

from recollect.clock import Clock, aware
from recollect.errors import BadInput
from recollect.guard.instructions import held_back
from recollect.guard.policy import LONG_TO_LOOK_THROUGH, Policy
from recollect.inference.base import called
from recollect.inference.llm import offline
from recollect.inference.offline import importance_of
from recollect.inference.summarise import Count, Passage
from recollect.settings import Settings
from recollect.stores.base import Log
from recollect.stores.ops import Append, Clear, Entry
from recollect.tiers import entrance
from recollect.tiers.entries import checked_content, checked_id, checked_metadata, entire, fresh_id
from recollect.tiers.facts import in_utc
from recollect.tiers.matching import matches
from recollect.tiers.messages import (
    ALSO_KNOWN_AS,
    BLOCKS,
    ROLES,
    Content,
    Message,
    Role,
    Shown,
    TokenCounts,
    checked_blocks,
    message_of,
    passage_of,
    shown_cost,
)
from recollect.tiers.rolled import (
    IN_DOUBT,
    SUMMARY,
    Standing,
    covers,
    entry_of,
    exported,
    imported,
    in_turn,
    moment,
    standing,
    summary_of,
)
from recollect.tiers.semantic import checked_count, checked_query
from recollect.tiers.trust import IN_TOOLS, trust_of
from recollect.tiers.window import Limits, Roll, Room, View, applied, instructions_of, next_roll, rendered
from recollect.values import Scope, Space
from recollect.words.tokens import count_tokens

Summarise = Callable[[list[Message], str | None], Awaitable[str] | str]

FORMAT = 1

_NAMES_OF_ROLES = (*ROLES, *ALSO_KNOWN_AS)

_HEAD = 8
_TRIES = 8


class Index(Protocol):
    """What conversations are found by. It is made of them, behind their back, and never outlives them."""

    async def noted(self, space: Space) -> None:
        """Something was said there; it is looked at soon, and nobody waits for it."""

    async def clear(self, space: Space, *instead: Append) -> None:
        """Empty a log, for what is said `instead`, and let go of all that it was found by."""


class ConversationMemory:
    """The conversation of one session.

    The newest messages are shown word for word and the older ones as a summary that rolls: each new one covers the
    one before. It is an entry of the same log, so that there is nothing to keep in step. `summarise` makes it from
    the messages and the summary before; without one, or when it fails, the sentences that matter most do.
    """

    def __init__(  # noqa: PLR0913 - the front door fixes these
        self,
        store: Log,
        *,
        scope: Scope,
        settings: Settings,
        clock: Clock,
        max_messages: int = 50,
        max_tokens: int = 10_000,
        summarize_threshold: int = 30,
        summarise: Summarise | None = None,
        summarise_timeout: float = 30.0,
        count: Count = count_tokens,
        ids: Callable[[], str] = fresh_id,
        index: Index | None = None,
    ) -> None:
        self._store = store
        self._index = index
        self._clock = clock
        self._limits = Limits(max_messages, max_tokens, summarize_threshold)
        self._summarise = summarise
        self._timeout = summarise_timeout
        self._count = TokenCounts(count)
        self._ids = ids
        self._max_content = settings.max_content
        self._policy = Policy.of(settings)
        self._space = scope.space("conversation")
        self._rolling = asyncio.Lock()
        self._room = Room()
        self._overlooked = False
        self.fault: str | None = None
        """Why the newest summary was made offline although there is a summariser; None when all is well."""

    @property
    def space(self) -> Space:
        return self._space

    async def add_message(
        self, role: Role | Literal["developer"], content: Content | None, *, id: str | None = None, **metadata: Any
    ) -> Message:
        """Keep what was said, and sum up older messages when there are too many to show.

        Content is a text, or a list of blocks such as `tool_use` and `tool_result`, which comes back as it was, or
        None beside `tool_calls`. Said again under its `id` it is the same message, which stays as it was.
        """
        if isinstance(content, str) and len(content) > LONG_TO_LOOK_THROUGH:
            append = await asyncio.to_thread(self.drafted, role, content, metadata=metadata, id=id)
        else:
            append = self.drafted(role, content, metadata=metadata, id=id)
        kept = None
        if id is None:
            await self._store.write(append)
        else:
            [kept] = await self._store.append(append)
        await self.settle(append)
        return message_of(kept or append.entry)

    def drafted(
        self,
        role: Role | Literal["developer"],
        content: Content | None,
        *,
        metadata: Mapping[str, Any] | None = None,
        at: datetime | None = None,
        id: str | None = None,
    ) -> Append:
        """What `add_message` would write, for whoever writes it together with something else and settles then.

        The same id again is the same message.
        """
        if role not in _NAMES_OF_ROLES:
            raise BadInput(f"a role is one of {', '.join(_NAMES_OF_ROLES)}, not {role!r:.80}")
        given = checked_metadata(metadata)
        if BLOCKS in given:
            raise BadInput(f"{BLOCKS!r} is where a message keeps its own blocks; give your metadata another name")
        if isinstance(content, list | tuple):
            text, blocks = checked_blocks(content, self._max_content)
            given = {**given, BLOCKS: blocks}
        else:
            # A message that only calls tools says nothing else, and a tool may have nothing to say.
            silent = role == "tool" or (role == "assistant" and bool(given.get("tool_calls")))
            said = "" if content is None and role == "assistant" and silent else content
            text = checked_content(said, self._max_content, may_be_empty=silent)
        entry = Entry(
            id=self._ids() if id is None else checked_id(id),
            kind=ALSO_KNOWN_AS.get(role, role),
            content=text,
            at=aware(self._clock()) if at is None else in_utc("at", at),
            metadata=given,
            importance=importance_of(text),
        )
        return Append(space=self.space, entry=entrance.message(self._policy, entry))

    async def get_messages_for_llm(self) -> list[Shown]:
        """Instructions, summary and newest messages, as dicts with `role` and `content`, within the limits.

        What was shown once is shown the same, byte for byte, until a summary rolls.
        """
        async with self._rolling:
            for _ in range(_TRIES):
                view = await self._view()
                roll = next_roll(view, self._limits, self._count)
                if roll is None:
                    break
                await self._roll(view, roll)
            else:
                # Others say more than can be summed up; the limits hold all the same.
                view = await self._view()
                while (roll := next_roll(view, self._limits, self._count)) is not None:
                    view = applied(view, roll, view.summary.text if view.summary is not None else "")
        return rendered(view, self._limits, self._count)

    async def settle(self, *said: Append) -> None:
        """Sum up what must be; if that is under way already, there is nothing to wait for.

        Whoever names what was `said` since the last time spares a look at all that is shown, while there is room.
        """
        if self._index is not None:
            await self._index.noted(self.space)
        if self._rolling.locked():
            self._overlooked = True
            return
        left = self._room.after((message_of(one.entry) for one in said), self._count) if said else None
        self._room, self._overlooked = left or Room(), False
        if left is not None:
            return
        async with self._rolling:
            for _ in range(_TRIES):
                view = await self._view()
                roll = next_roll(view, self._limits, self._count)
                if roll is None:
                    if not self._overlooked:
                        self._room = Room.left_in(view, self._limits, self._count)
                    return
                await self._roll(view, roll)

    async def search(self, query: str, limit: int = 5) -> list[Message]:
        """The messages of the whole history that share the most telling words with the query, best first."""
        query, limit = checked_query(query), checked_count(limit)
        said = [entry for entry in await entire(self._store, self.space) if entry.kind in ROLES]
        return [message_of(found.entry) for found in await matches(query, said, limit, aware(self._clock()))]

    async def get_last_n(self, n: int) -> list[Message]:
        """The newest messages, newest last."""
        newest = await self._store.recent(self.space, limit=checked_count(n), kinds=ROLES)
        return [message_of(entry) for entry in newest]

    async def summary(self) -> str | None:
        """What stands for the messages that are no longer shown; None while all of them are."""
        for entry in await self._summaries():
            if covers(entry) == 0 or await self._has(covers(entry)):
                return entry.content or None
        return None

    async def trust(self) -> float:
        """How far what a model is shown is trusted: as far as the least of it, word for word or summed up."""
        view = await self._view()
        summed_up = 1.0 if view.summary is None else view.summary.trust
        return min([summed_up, *map(trust_of, (*view.instructions, *view.live))])

    async def clear(self) -> None:
        """Forget the whole conversation, its summary too."""
        async with self._rolling:
            await self._empty()

    async def export(self) -> dict[str, Any]:
        """The whole conversation as JSON data that `import_from` takes."""
        summary = (await self._view()).summary
        said = [message_of(entry) for entry in await entire(self._store, self.space) if entry.kind in ROLES]
        return {
            "format": FORMAT,
            "messages": [
                {
                    "id": one.id,
                    "role": one.role,
                    "content": one.content if one.blocks is None else list(one.blocks),
                    "timestamp": one.timestamp.isoformat(),
                    "metadata": dict(one.metadata),
                }
                for one in said
            ],
            "summary": None if summary is None else summary.text,
            "rolled": None if summary is None else exported(summary, said),
        }

    async def import_from(self, data: Mapping[str, Any]) -> None:
        """Make the conversation what an export says, in place of what was here; all of it or nothing."""
        if not isinstance(data, Mapping) or not isinstance(data.get("messages", []), list | tuple):
            raise BadInput("import_from takes what export() gave: a dict with a list of 'messages'")
        if data.get("format", FORMAT) != FORMAT:
            raise BadInput(f"the export has the format {data['format']!r}; this version reads {FORMAT}")
        appends = [self._imported(one, at) for at, one in enumerate(data.get("messages", []))]
        ids = {append.entry.id for append in appends}
        if len(ids) < len(appends):
            raise BadInput("two messages of the export have the same id; each message has an id of its own, or none")
        writes = [*appends]
        if (text := data.get("summary")) is not None:
            checked = checked_content(text, self._max_content, may_be_empty=True)
            told = await self._bounded(self._policy.text("summary", checked).value)
            covered, summary = imported(told, data.get("rolled"), len(appends), self._limits.most)
            # Orders of a stranger are not taken over; what they stood for is summed up anew. One of our own tells who
            # said what, which reads like another's voice, and was here before.
            if summary.trust >= IN_TOOLS or not held_back(told, summary.trust):
                made = entry_of(summary, aware(self._clock()), self.fault)
                # Right behind what it covers: its own place in the log says how far it reaches.
                place = {name: value for name, value in made.metadata.items() if name != "covers"}
                entry = replace(made, id=self._ids(), metadata=place)
                writes.insert(covered, Append(space=self.space, entry=entry))
        async with self._rolling:
            await self._empty(*writes)
        await self.settle()

    async def _empty(self, *instead: Append) -> None:
        if self._index is None:
            await self._store.write(Clear(self.space), *instead)
        else:
            await self._index.clear(self.space, *instead)

    def _imported(self, given: Any, at: int) -> Append:
        if not isinstance(given, Mapping) or "role" not in given or "content" not in given:
            raise BadInput(f"message {at} of the export is not a dict with a 'role' and a 'content'")
        said_at = moment(given.get("timestamp"), f"message {at}")
        return self.drafted(
            given["role"], given["content"], metadata=given.get("metadata"), at=said_at, id=given.get("id")
        )

    async def _view(self) -> View:
        """The conversation as it is now. What its end tells, and of a short one that is all, is read at once."""
        newest = await self._store.recent(self.space, limit=self._limits.newest)
        whole = len(newest) < self._limits.newest
        head = newest[:_HEAD] if whole else await self._store.read(self.space, limit=_HEAD)
        told = [message_of(entry) for entry in head if entry.kind in ROLES]
        instructions = instructions_of(told, self._limits, self._count)
        pinned = {message.seq for message in instructions}
        summary, entries = standing(newest, self._limits.most, whole=whole) or await self._standing()
        live = [message_of(one) for one in entries if one.kind in ROLES and one.seq not in pinned]
        return View(instructions, summary, live)

    async def _standing(self) -> Standing:
        """What stands, by as much of the log as it takes to tell."""
        for entry in await self._summaries():
            reach = covers(entry)
            entries = await entire(self._store, self.space, after=max(0, reach - 1))
            if reach == 0 or (entries and entries[0].seq == reach):
                return summary_of(entry, self._limits.most), [one for one in entries if one.seq > reach]
        return None, await entire(self._store, self.space)

    async def _summaries(self) -> list[Entry]:
        return in_turn(await self._store.recent(self.space, limit=IN_DOUBT, kinds=(SUMMARY,)))

    async def _has(self, seq: int) -> bool:
        """Whether there is an entry at a place."""
        return [entry.seq for entry in await self._store.read(self.space, after=seq - 1, limit=1)] == [seq]

    async def _roll(self, view: View, roll: Roll) -> None:
        before = view.summary.text if view.summary is not None else ""
        text = await self._told(view.live[: roll.covered], before)
        after = applied(view, roll, text).summary
        assert after is not None
        entry = entry_of(after, aware(self._clock()), self.fault)
        await self._store.write(Append(space=self.space, entry=entry))

    async def _told(self, messages: Sequence[Message], before: str) -> str:
        """The summary that covers these messages and the summary before them, within its bound."""
        text = before
        self.fault = None
        for some in self._portions(messages):
            told = None
            # A summariser that has failed once is not waited for again and again.
            if self._summarise is not None and self.fault is None:
                told = await self._asked(self._summarise, some, text)
            if told is None:
                passages = [*([Passage(text)] if text else []), *map(passage_of, some)]
                told = await offline(passages, self._limits.summary_tokens, self._count)
            text = told
        return await self._bounded(text)

    async def _bounded(self, text: str) -> str:
        most = self._limits.summary_tokens
        return text if self._count(text) <= most else await offline([Passage(text)], most, self._count)

    async def _asked(self, summarise: Summarise, messages: list[Message], before: str) -> str | None:
        try:
            async with asyncio.timeout(self._timeout):
                if inspect.iscoroutinefunction(summarise):
                    told = await summarise(messages, before or None)
                else:
                    told = await called(lambda given: summarise(*given), (messages, before or None), None)
        except Exception as error:  # noqa: BLE001 - whatever a model does, what was said is summed up without it
            self.fault = type(error).__name__
            return None
        if not isinstance(told, str) or not told.strip():
            self.fault = "the summariser gave no text"
            return None
        return told.replace("\x00", "").encode("utf-8", "replace").decode()

    def _portions(self, messages: Sequence[Message]) -> Iterator[list[Message]]:
        """As much at a time as is shown to a model at most; an import may bring thousands at once."""
        some: list[Message] = []
        left = self._limits.max_tokens
        for message in messages:
            left -= shown_cost(message, self._limits.most, self._count)
            if some and left < 0:
                yield some
                some, left = [], self._limits.max_tokens
            some.append(message)
        if some:
            yield some
