"""The commands of a chat: everything that begins with a slash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from difflib import get_close_matches

from recollect.errors import BadInput, NotFound
from recollect.interfaces.cli.chat.screen import Screen
from recollect.interfaces.cli.chat.talk import Talk
from recollect.interfaces.cli.counting import stats_lines
from recollect.interfaces.cli.output import item_line
from recollect.interfaces.cli.short_ids import whole_id
from recollect.values import MemoryItem

_PAGE = 20
_SHORT = 8


@dataclass(slots=True)
class Session:
    """A chat under way: the talk, what it is shown on, how to come back, and the facts that were shown by short ids."""

    talk: Talk
    screen: Screen
    again: str
    shown: dict[str, str] = field(default_factory=dict)

    def fact_line(self, item: MemoryItem, before: str = "") -> str:
        self.shown[item.id[:_SHORT]] = item.id
        return f"{item.id[:_SHORT]}  {before}{item_line(item)}"


Act = Callable[[Session, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Command:
    usage: str
    help: str
    act: Act


async def show_help(session: Session, _: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"{command.usage:<{width}}  {command.help}" for command in COMMANDS.values()]
    session.screen.say("\n".join([*lines, f"{'/quit':<{width}}  leave; so does Ctrl-D. Ctrl-C stops an answer."]))


async def remember(session: Session, text: str) -> None:
    item = await session.talk.memory.remember(_needed(text, "/remember", "I am allergic to nuts."))
    session.screen.say(f"remembered {session.fact_line(item)}")


async def recall(session: Session, query: str) -> None:
    context = await session.talk.memory.recall(_needed(query, "/recall", "what am I allergic to?"))
    session.talk.last = context
    for hit in context:
        line = session.fact_line(hit.item) if hit.tier == "semantic" else f"{hit.tier:>8}  {item_line(hit.item)}"
        session.screen.say(f"{hit.relevance:.2f}  {line}")
    if not context:
        session.screen.say("nothing relevant is remembered")


async def forget(session: Session, id: str) -> None:
    given = _needed(id, "/forget", "3f2a91c0, an id that /memories shows")
    memory = session.talk.memory
    if not await memory.forget(session.shown.get(given) or await whole_id(memory, given)):
        raise NotFound(f"there is no fact {given}; /memories lists them")
    session.shown.pop(given[:_SHORT], None)
    session.screen.say(f"forgot {given}")


async def why(session: Session, _: str) -> None:
    last = session.talk.last
    session.screen.say("nothing was asked yet" if last is None else last.explain())


async def memories(session: Session, after: str) -> None:
    memory = session.talk.memory
    start = session.shown.get(after) or await whole_id(memory, after) if after else None
    items = await memory.semantic.page(_PAGE, after=start)
    for item in items:
        session.screen.say(session.fact_line(item, f"{item.created_at:%Y-%m-%d}  "))
    if len(items) == _PAGE:
        session.screen.hint(f"for the next page: /memories {items[-1].id[:_SHORT]}")
    if not items:
        session.screen.say("no facts yet; /remember keeps one, /learn takes them from what was said")


async def show_session(session: Session, _: str) -> None:
    memory = session.talk.memory
    said = await memory.conversation.get_last_n(_PAGE)
    session.screen.say(f"session {memory.scope.session} of {memory.scope.user}; to go on with it: {session.again}")
    for message in said:
        session.screen.say(f"  {message.role}: {' '.join(message.content.split())}")


async def stats(session: Session, _: str) -> None:
    session.screen.say("\n".join((await stats_lines(session.talk.memory))[1]))


async def learn(session: Session, _: str) -> None:
    session.screen.say(str(await session.talk.memory.lifecycle.run_once()))


COMMANDS: dict[str, Command] = {
    "/help": Command("/help", "this list", show_help),
    "/remember": Command("/remember TEXT", "keep a fact", remember),
    "/recall": Command("/recall QUERY", "show what is known about something", recall),
    "/forget": Command("/forget ID", "drop a fact; ids are shown by /memories and /recall", forget),
    "/why": Command("/why", "what was recalled for your last line, why, and what was left out", why),
    "/memories": Command("/memories [ID]", "list the facts, newest first; those after ID", memories),
    "/session": Command("/session", "what was said in this session, and how to go on with it", show_session),
    "/stats": Command("/stats", "how much is remembered, and what models have cost", stats),
    "/learn": Command("/learn", "turn what was said into facts that last, as `recollect lifecycle` does", learn),
}
LEAVING = ("/quit", "/exit")
NAMES = (*COMMANDS, *LEAVING)


async def obey(session: Session, line: str) -> None:
    """Do what a line that begins with a slash asks for."""
    name, _, rest = line.partition(" ")
    command = COMMANDS.get(name.lower())
    if command is None:
        meant = get_close_matches(name, NAMES, 1)
        raise BadInput(f"there is no {name}; " + (f"did you mean {meant[0]}?" if meant else "/help lists the commands"))
    await command.act(session, rest.strip())


def _needed(text: str, name: str, example: str) -> str:
    if not text:
        raise BadInput(f"{name} needs something behind it, as in: {name} {example}")
    return text
