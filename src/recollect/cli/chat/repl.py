"""The loop of a chat and its slash commands."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import typer

from recollect.cli.chat.terminal import ChatTerminal
from recollect.cli.chat.turn import ChatAnswer, ChatConversation
from recollect.cli.context import FAILED, CliContext, resolve_id
from recollect.cli.output import (
    collect_redactions,
    count_current_facts,
    format_item,
    format_redactions,
    load_stats_lines,
)
from recollect.clock import system_clock
from recollect.errors import BadInput, NotFound, RecollectError
from recollect.memory import AgentMemory
from recollect.models.factory import open_chat
from recollect.settings import Settings
from recollect.tiers.log_entries import generate_id
from recollect.types import Context, MemoryItem
from recollect.validation import format_count

_PAGE_SIZE = 20
_SHORT_ID_LENGTH = 8
_HISTORY_LINES = 100
# The user waits for this at the start and at the end; what is left is learned the next time.
_LEARN_TIMEOUT = 10.0


@dataclass(slots=True)
class ChatSession:
    """A running chat; the ids it has shown can be given by their first characters."""

    conversation: ChatConversation
    terminal: ChatTerminal
    resume_command: str
    ids_by_prefix: dict[str, str] = field(default_factory=dict)

    def format_fact(self, item: MemoryItem, prefix: str = "") -> str:
        self.ids_by_prefix[item.id[:_SHORT_ID_LENGTH]] = item.id
        return f"{item.id[:_SHORT_ID_LENGTH]}  {prefix}{format_item(item)}"


def run_chat(caller: CliContext, model: str | None) -> None:
    """Chat until the end of input. Exit code 3 if a piped line could not be answered."""
    settings = Settings.load()
    model_name = model or settings.llm
    if model_name:
        open_chat(model_name, settings)  # an invalid name fails before a store is created
    session = caller.session or f"chat-{system_clock():%Y%m%d-%H%M%S}-{generate_id()[:4]}"
    terminal = ChatTerminal(as_json=caller.as_json)
    failures = 0
    # One run for each turn: between turns this thread waits for input, and Ctrl-C ends a turn, not the chat.
    with asyncio.Runner() as runner:
        memory = runner.run(_open_memory(caller, session))
        engine = memory._engine  # the model shares the memory's usage ledger and spend limit
        chat_model = (
            open_chat(model_name, engine.settings, ledger=engine.usage, clock=engine.clock) if model_name else None
        )
        resume_command = _build_resume_command(caller, session, model)
        chat = ChatSession(ChatConversation(memory, chat_model), terminal, resume_command)
        try:
            runner.run(learn_from_conversation(memory, terminal))  # from earlier sessions, too
            runner.run(_greet(chat))
            failures = _read_lines(chat, runner)
        finally:
            runner.run(_close_chat(chat))
    if failures and not terminal.interactive:
        raise typer.Exit(FAILED)


async def _open_memory(caller: CliContext, session: str) -> AgentMemory:
    return await AgentMemory.open(
        caller.store, tenant=caller.tenant, user=caller.user, agent=caller.agent, session=session
    )


async def _close_chat(chat: ChatSession) -> None:
    try:
        if chat.conversation.model is not None:
            await chat.conversation.model.close()
    finally:
        await chat.conversation.memory.close()


def _build_resume_command(caller: CliContext, session: str, model: str | None) -> str:
    words = ["recollect", "chat", "--session", session]
    for option, value, default in (
        ("--model", model or None, None),
        ("--store", caller.store, None),
        ("--user", caller.user, "default"),
        ("--agent", caller.agent, "default"),
        ("--tenant", caller.tenant, "default"),
    ):
        words += [option, value] if value is not None and value != default else []
    return shlex.join(words)


async def learn_from_conversation(memory: AgentMemory, terminal: ChatTerminal, seconds: float = _LEARN_TIMEOUT) -> None:
    """Run the lifecycle for this user; the chat goes on if it fails, because every line is stored already."""
    try:
        async with asyncio.timeout(seconds):
            report = await memory.lifecycle.run_once()
    except TimeoutError:
        terminal.print_hint("not everything that was said is learned yet; `recollect lifecycle` continues")
    except RecollectError as error:
        terminal.print_hint(f"nothing was learned from what was said: {error}")
    else:
        if report.promoted:
            terminal.print_hint(f"learned {format_count(len(report.promoted), 'fact')} from what was said")


async def _greet(chat: ChatSession) -> None:
    memory, model, terminal = chat.conversation.memory, chat.conversation.model, chat.terminal
    earlier = [message.content for message in await memory.conversation.get_last_n(_HISTORY_LINES)]
    terminal.prepare(COMMAND_NAMES, [line for line in earlier if "\n" not in line])
    if terminal.as_json:
        return
    (count, facts), stats = await count_current_facts(memory), await memory.stats()
    sessions = stats.tiers["conversation"].sessions
    newest = await memory.semantic.page(1)
    if count or sessions:
        greeting = f"Welcome back. {facts} and {format_count(sessions, 'conversation')} are remembered."
    else:
        greeting = "Hello. Nothing is remembered of you yet."
    terminal.print_text(greeting + (f" The newest: {format_item(newest[0])}" if newest else ""))
    if model is None:
        terminal.print_text("No model answers here: recalled memories are shown as they are. Use --model NAME.")
    else:
        terminal.print_text(f"{model.name} answers.")
    terminal.print_hint("/help lists the commands, /why says what was recalled and why, Ctrl-D leaves.")


def _read_lines(chat: ChatSession, runner: asyncio.Runner) -> int:
    """Answer all lines of input and return the number of failures."""
    terminal, failures = chat.terminal, 0
    while True:
        line = None
        try:
            line = terminal.read_line()
            if line is None or line.strip().lower() in EXIT_COMMANDS:
                break
            if line.strip():
                failures += not runner.run(_answer_line(chat, line.strip()))
                terminal.print_blank_line()
        except KeyboardInterrupt:
            terminal.end_line()
            terminal.print_blank_line()
            terminal.print_hint("stopped" if line is not None else "Ctrl-D or /quit leaves")
            if not terminal.interactive:
                raise
        except RecollectError as error:
            failures += 1
            terminal.print_error(str(error))
            terminal.print_json_line(said=line, error=type(error).__name__, message=str(error))
    if line is None:
        terminal.print_blank_line()
    runner.run(learn_from_conversation(chat.conversation.memory, terminal))
    terminal.print_hint(f"Stored. To continue this session: {chat.resume_command}")
    return failures


async def _answer_line(chat: ChatSession, line: str) -> bool:
    """Run a command or a turn; return False if the model failed."""
    with collect_redactions() as redacted:
        if line.startswith("/"):
            await run_command(chat, line)
            outcome: dict[str, Any] = {"said": line}
            is_answered = True
        else:
            answer = await _answer_message(chat, line)
            outcome = {"said": line, "answer": answer.text, "recalled": answer.context.hits}
            if answer.error is not None:
                outcome["message"] = answer.error
            is_answered = answer.text is not None or answer.error is None
    if redacted:
        chat.terminal.print_hint(format_redactions(redacted))
        outcome["redacted"] = redacted
    chat.terminal.print_json_line(**outcome)
    return is_answered


async def _answer_message(chat: ChatSession, line: str) -> ChatAnswer:
    terminal = chat.terminal
    answer = await chat.conversation.run_turn(
        line, lambda context: terminal.print_hint(_format_recalled(context)), terminal.print_piece
    )
    if answer.error is not None:
        terminal.print_error(answer.error)
        terminal.print_hint("what you said is kept")
    elif answer.text is None:  # without a model, the recalled memories are the answer
        for hit in answer.context:
            role = f"{hit.item.metadata['role']}: " if "role" in hit.item.metadata else ""
            terminal.print_text(f"  {role}{format_item(hit.item)}")
        if not answer.context.hits:
            terminal.print_text("  Stored. No earlier message is relevant.")
    terminal.end_line()
    return answer


def _format_recalled(context: Context) -> str:
    count = len(context)
    recalled = f"recalled {format_count(count, 'memory', 'memories')}; /why" if count else "recalled nothing"
    return " · ".join([recalled, *context.warnings])


# Slash commands


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A command of the chat."""

    usage: str
    help: str
    run: Callable[[ChatSession, str], Awaitable[None]]


async def run_command(session: ChatSession, line: str) -> None:
    """Run a line that begins with a slash."""
    name, _, argument = line.partition(" ")
    command = SLASH_COMMANDS.get(name.lower())
    if command is None:
        match = get_close_matches(name, COMMAND_NAMES, 1)
        raise BadInput(f"there is no {name}; " + (f"did you mean {match[0]}?" if match else "/help lists the commands"))
    await command.run(session, argument.strip())


async def _show_help(session: ChatSession, _: str) -> None:
    width = max(len(command.usage) for command in SLASH_COMMANDS.values())
    lines = [f"{command.usage:<{width}}  {command.help}" for command in SLASH_COMMANDS.values()]
    lines.append(f"{'/quit':<{width}}  leave; so does Ctrl-D. Ctrl-C stops an answer.")
    session.terminal.print_text("\n".join(lines))


async def _remember(session: ChatSession, text: str) -> None:
    item = await session.conversation.memory.remember(_require_argument(text, "/remember", "I am allergic to nuts."))
    session.terminal.print_text(f"remembered {session.format_fact(item)}")


async def _recall(session: ChatSession, query: str) -> None:
    context = await session.conversation.memory.recall(_require_argument(query, "/recall", "what am I allergic to?"))
    session.conversation.last_context = context
    for hit in context:
        line = session.format_fact(hit.item) if hit.tier == "semantic" else f"{hit.tier:>8}  {format_item(hit.item)}"
        session.terminal.print_text(f"{hit.relevance:.2f}  {line}")
    if not context:
        session.terminal.print_text("nothing relevant is remembered")


async def _forget(session: ChatSession, argument: str) -> None:
    prefix = _require_argument(argument, "/forget", "3f2a91c0, an id that /memories shows")
    memory = session.conversation.memory
    if not await memory.forget(session.ids_by_prefix.get(prefix) or await resolve_id(memory, prefix)):
        raise NotFound(f"there is no fact {prefix}; /memories lists them")
    session.ids_by_prefix.pop(prefix[:_SHORT_ID_LENGTH], None)
    session.terminal.print_text(f"forgot {prefix}")


async def _explain_recall(session: ChatSession, _: str) -> None:
    last = session.conversation.last_context
    session.terminal.print_text("nothing was asked yet" if last is None else last.explain())


async def _list_memories(session: ChatSession, after: str) -> None:
    memory = session.conversation.memory
    start = session.ids_by_prefix.get(after) or await resolve_id(memory, after) if after else None
    items = await memory.semantic.page(_PAGE_SIZE, after=start)
    for item in items:
        session.terminal.print_text(session.format_fact(item, f"{item.created_at:%Y-%m-%d}  "))
    if len(items) == _PAGE_SIZE:
        session.terminal.print_hint(f"for the next page: /memories {items[-1].id[:_SHORT_ID_LENGTH]}")
    if not items:
        session.terminal.print_text("no facts yet; /remember adds one, /learn takes them from what was said")


async def _show_session(session: ChatSession, _: str) -> None:
    memory, terminal = session.conversation.memory, session.terminal
    scope = memory.scope
    terminal.print_text(f"session {scope.session} of {scope.user}; to go on with it: {session.resume_command}")
    for message in await memory.conversation.get_last_n(_PAGE_SIZE):
        terminal.print_text(f"  {message.role}: {' '.join(message.content.split())}")


async def _show_stats(session: ChatSession, _: str) -> None:
    session.terminal.print_text("\n".join((await load_stats_lines(session.conversation.memory))[1]))


async def _learn(session: ChatSession, _: str) -> None:
    session.terminal.print_text(str(await session.conversation.memory.lifecycle.run_once()))


def _require_argument(text: str, name: str, example: str) -> str:
    if not text:
        raise BadInput(f"{name} needs an argument, as in: {name} {example}")
    return text


SLASH_COMMANDS: dict[str, SlashCommand] = {
    "/help": SlashCommand("/help", "this list", _show_help),
    "/remember": SlashCommand("/remember TEXT", "add a fact", _remember),
    "/recall": SlashCommand("/recall QUERY", "show what is known about something", _recall),
    "/forget": SlashCommand("/forget ID", "delete a fact; /memories and /recall show the ids", _forget),
    "/why": SlashCommand("/why", "what was recalled for your last line, why, and what was left out", _explain_recall),
    "/memories": SlashCommand("/memories [ID]", "list the facts, newest first; those after ID", _list_memories),
    "/session": SlashCommand("/session", "what was said in this session, and how to go on with it", _show_session),
    "/stats": SlashCommand("/stats", "how much is remembered, and what models have cost", _show_stats),
    "/learn": SlashCommand("/learn", "turn what was said into lasting facts, as `recollect lifecycle` does", _learn),
}
EXIT_COMMANDS = ("/quit", "/exit")
COMMAND_NAMES = (*SLASH_COMMANDS, *EXIT_COMMANDS)
