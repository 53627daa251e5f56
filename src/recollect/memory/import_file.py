"""An export being read: line by line, each checked, with the number of the line in every complaint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from recollect.errors import BadInput, RecollectError, SchemaTooNew, SecretRefused
from recollect.guard.policy import Policy
from recollect.memory.export_file import MARK
from recollect.memory.export_lines import FORMAT, entry_of, item_of, moment, session_of
from recollect.stores.ops import Entry
from recollect.tiers import entrance
from recollect.tiers.conversation import FORMAT as CONVERSATION
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.entries import checked_content
from recollect.tiers.messages import message_of
from recollect.tiers.outcomes import from_json
from recollect.tiers.procedure import changed, procedure_of
from recollect.tiers.procedure_input import LEAST_TRUST
from recollect.tiers.rolled import imported
from recollect.tiers.trust import TRUST, trust_in_episode, trust_of
from recollect.tiers.working import WorkingMemory
from recollect.values import MemoryItem, Scope

_TOGETHER = 200
# Besides the text there are metadata, which may be longer, and escapes.
_LONGEST_LINE = 64 << 20
# How many messages a summary covers is known at the end of its session.
_ANY_NUMBER = 1 << 62


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a conversation, or what is `about` it."""

    session: str
    told: Mapping[str, Any]
    about: bool


@dataclass(frozen=True, slots=True)
class Happened:
    """An episode of a session."""

    session: str
    entry: Entry


Line = MemoryItem | Happened | Said | WorkingMemory


class ImportFile:
    """The lines of one file as values in the target's scope. Its methods block; call them in a thread."""

    def __init__(
        self,
        file: BinaryIO,
        target: Scope,
        *,
        longest: int,
        trust: float | None,
        policy: Policy,
        conversation: Callable[[str], ConversationMemory],
        working: Callable[[Mapping[str, Any]], WorkingMemory],
    ) -> None:
        self._file = file
        self._target = target
        self._longest = longest
        self._trust = trust
        self._policy = policy
        self._conversation = conversation
        self._working = working
        self._number = 0
        self._seen = 0
        self._ended = False
        self.source = target
        self.untrusted = 0

    def close(self) -> None:
        self._file.close()

    def rewind(self) -> None:
        """To the first line behind the header."""
        self._file.seek(0)
        self._number, self._seen, self._ended, self.untrusted = 0, 0, False, 0
        header = self._line(self._file.readline(_LONGEST_LINE))
        version = None if header is None else header.get(MARK)
        if header is None or isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise BadInput("line 1: this is not a file that `export` wrote")
        if version > FORMAT:
            raise SchemaTooNew(
                f"the export has format {version}, and this Recollect reads up to {FORMAT}; upgrade to import it"
            )
        scope = header.get("scope")
        with _named(1):
            if not isinstance(scope, Mapping) or set(scope) != {"tenant", "user", "agent"}:
                raise BadInput("the header does not say whose memory this is")
            self.source = Scope(**scope)

    def some(self) -> list[tuple[int, Line]]:
        """The next lines with their numbers; none when the file is at its end, as it says itself."""
        found: list[tuple[int, Line]] = []
        while len(found) < _TOGETHER and not self._ended:
            raw = self._file.readline(_LONGEST_LINE + 8 * self._longest)
            line = self._line(raw)
            if line is None:
                raise BadInput(f"line {self._number}: the file ends early; export it again")
            if "end" in line:
                self._end(line)
            else:
                self._seen += 1
                with _named(self._number):
                    value = self._read(line)
                if value is None:
                    self.untrusted += 1
                else:
                    found.append((self._number, value))
        return found

    @property
    def seen(self) -> int:
        return self._seen

    def _line(self, raw: bytes) -> dict[str, Any] | None:
        self._number += 1
        if not raw:
            return None
        if not raw.endswith(b"\n"):
            raise BadInput(f"line {self._number}: the file ends early, or the line is too long; export it again")
        try:
            line = json.loads(raw, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"line {self._number}: this is not a line of JSON") from error
        if not isinstance(line, dict):
            raise BadInput(f"line {self._number}: a line is a JSON object")
        return line

    def _end(self, line: Mapping[str, Any]) -> None:
        if line != {"end": self._seen}:
            raise BadInput(
                f"line {self._number}: the file says that it has {line['end']!r:.40} lines, not {self._seen}"
            )
        if self._file.read(1):
            raise BadInput(f"line {self._number + 1}: there is something behind the end")
        self._ended = True

    def _value(self, line: dict[str, Any]) -> Line:
        match line.get("tier"):
            case "semantic" | "procedural" | "lifecycle" | "quarantine" as tier:
                return item_of(line, tier, self.source, self._target, self._longest)
            case "episodic":
                return Happened(session_of(line), entry_of(line, self._longest))
            case "conversation":
                return self._said(line)
            case "working" if set(line) == {"tier", "snapshot"} and isinstance(line["snapshot"], dict):
                return self._working(line["snapshot"])
            case other:
                raise BadInput(f"there is no tier {other!r:.80} in an export")

    def _read(self, line: dict[str, Any]) -> Line | None:
        """A line, trusted first and looked through then: what is trusted less is looked at more closely."""
        trusted = self._trusted(self._value(line))
        return None if trusted is None else self._clean(trusted)

    def _clean(self, line: Line) -> Line:
        """The line as it may be kept; messages pass the door of their conversation."""
        match line:
            case MemoryItem() if line.tier == "procedural":
                return self._clean_procedure(line)
            case MemoryItem() if line.tier != "lifecycle":
                text, about = self._policy.text("content", line.content), self._policy.plain("metadata", line.metadata)
                return replace(line, content=text.value, metadata=about.value) if text.kinds or about.kinds else line
            case Happened():
                return replace(line, entry=entrance.episode(self._policy, line.entry))
            case _:
                return line

    def _clean_procedure(self, line: MemoryItem) -> MemoryItem:
        """Its text has its description for a heading, so that both are written anew."""
        known = procedure_of(line)
        body, said = self._policy.text("body", known.body), self._policy.text("description", known.description)
        tried = self._policy.plain("outcomes", line.metadata["outcomes"])
        if not (body.kinds or said.kinds or tried.kinds):
            return line
        clean = replace(known, body=body.value, description=said.value, outcomes=from_json(tried.value))
        return changed(line, clean)

    def _trusted(self, line: Line) -> Line | None:
        """The line, trusted no more than the file is; None for a procedure that nobody should follow then."""
        match line:
            case _ if self._trust is None:
                return line
            case MemoryItem() if line.tier == "procedural" and self._trust < LEAST_TRUST:
                return None
            case MemoryItem():
                return replace(line, trust=min(line.trust, self._trust))
            case Happened():
                return replace(line, entry=self._doubted(line.entry))
            case _:
                return line  # messages were, when they were read

    def _doubted(self, entry: Entry) -> Entry:
        """An episode that is learned from no further than the file is trusted."""
        given = entry.metadata.get("given", {})
        worth = min(trust_in_episode(entry.kind, given), 1.0 if self._trust is None else self._trust)
        return replace(entry, metadata={**entry.metadata, "given": {**given, TRUST: worth}})

    def _about(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """What is said of a conversation, looked at as its own import will: by then much has been written."""
        summary, rolled = about.get("summary"), about.get("rolled")
        if not isinstance(summary, str | None) or not isinstance(rolled, dict | None):
            raise BadInput("a conversation has a summary that is a text, or none")
        if about.get("format", CONVERSATION) != CONVERSATION:
            raise BadInput(
                f"the conversation has the format {about['format']!r:.40}; this version reads {CONVERSATION}"
            )
        if summary is None:
            return {}
        checked_content(summary, self._longest, may_be_empty=True)
        _, known = imported(summary, rolled, _ANY_NUMBER, _ANY_NUMBER)
        worth = known.trust if self._trust is None else min(known.trust, self._trust)
        return {"summary": summary, "rolled": {**(rolled or {}), TRUST: worth}}

    def _said(self, line: Mapping[str, Any]) -> Said:
        session = session_of(line)
        match line:
            case {"about": dict(about)} if len(line) == 3:
                return Said(session, self._about(about), about=True)
            case {"message": {"role": role, "content": content, "id": str(id)} as message} if len(line) == 3:
                # Only to see whether it could be kept, and what it is worth.
                draft = self._conversation(session).drafted(
                    role,
                    content,
                    metadata=message.get("metadata"),
                    at=moment("timestamp", message.get("timestamp")),
                    id=id,
                )
                if self._trust is not None:
                    worth = min(trust_of(message_of(draft.entry)), self._trust)
                    message = {**message, "metadata": {**(message.get("metadata") or {}), TRUST: worth}}
                return Said(session, message, about=False)
            case _:
                raise BadInput("a line of a conversation holds a message with its id, role and content")


@contextmanager
def _named(number: int) -> Iterator[None]:
    """Say in which line it is."""
    try:
        yield
    except RecollectError as error:
        kind = SecretRefused if isinstance(error, SecretRefused) else BadInput
        raise kind(f"line {number}: {error}") from error


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
