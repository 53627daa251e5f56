"""The loop of a chat: its turns, its slash commands, and its terminal or pipe."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import typer
from rich.text import Text

from recollect.agent.prompt import build_history, build_system_prompt, exclude_session
from recollect.cli.context import FAILED, CliContext, resolve_id
from recollect.cli.output import (
    collect_redactions,
    console,
    count_current_facts,
    format_item,
    format_redactions,
    load_stats_lines,
    print_error,
    print_text,
    strip_control_characters,
    to_json_value,
    write_raw,
)
from recollect.clock import system_clock
from recollect.errors import BadInput, ModelFailed, NotFound, RecollectError
from recollect.memory import AgentMemory
from recollect.models.chat import ChatMessage, ChatModel
from recollect.models.factory import open_chat
from recollect.settings import Settings
from recollect.tiers.log_entries import generate_id
from recollect.types import Context, LeftOut, MemoryItem
from recollect.validation import format_count

_PROMPT = "you> "
# \001 and \002 keep readline from counting the escapes, or long lines would wrap in the wrong place.
_STYLED_PROMPT = "\001\033[1;36m\002{}\001\033[0m\002"
_PAGE_SIZE = 20
_SHORT_ID_LENGTH = 8
_HISTORY_LINES = 100
# About 30 recalled lines, one page of a prompt.
_RECALL_BUDGET = 1500
# The user waits for this at the start and at the end; what is left is learned the next time.
_LEARN_TIMEOUT = 10.0
_EXIT_COMMANDS = ("/quit", "/exit")
_STOP_MESSAGES = {
    "refusal": "the model declined to answer",
    "length": "the answer was cut: the model ran out of room",
}
_SYSTEM_PROMPT = """\
You are talking with a user in a terminal. Answer in their language, plainly and briefly, without markup. Use what \
is remembered where it helps, without announcing that you do. If neither it nor the conversation answers a question \
about them, say that you do not know."""


def run_chat(caller: CliContext, model_name: str | None) -> None:
    """Chat until the end of input. Exit code 3 if a piped line could not be answered."""
    settings = Settings.load()
    session = caller.session or f"chat-{system_clock():%Y%m%d-%H%M%S}-{generate_id()[:4]}"
    resume_command = _build_resume_command(caller, session, model_name)
    model_name = model_name or settings.llm
    if model_name:
        open_chat(model_name, settings)  # an invalid name fails before a store is created

    async def open_memory() -> AgentMemory:
        return await AgentMemory.open(
            caller.store, tenant=caller.tenant, user=caller.user, agent=caller.agent, session=session
        )

    # One run for each turn: between turns this thread waits for input, and Ctrl-C ends a turn, not the chat.
    with asyncio.Runner() as runner:
        memory = runner.run(open_memory())
        engine, model = memory._engine, None
        if model_name:  # the model shares the memory's usage ledger and spend limit
            model = open_chat(model_name, engine.settings, ledger=engine.usage, clock=engine.clock)
        chat = Chat(memory, model, ChatTerminal(as_json=caller.as_json), resume_command)
        try:
            runner.run(learn_from_conversation(memory, chat.terminal))  # from earlier sessions, too
            runner.run(_greet(chat))
            failures = _read_lines(chat, runner)
        finally:
            runner.run(chat.close())
    if failures and not chat.terminal.interactive:
        raise typer.Exit(FAILED)


def _build_resume_command(caller: CliContext, session: str, model: str | None) -> str:
    words = ["recollect", "chat", "--session", session]
    options = {"--model": model, "--store": caller.store}
    options |= {f"--{part}": getattr(caller, part) for part in ("user", "agent", "tenant")}
    for option, value in options.items():
        if value and (value != "default" or option == "--store"):
            words += [option, value]
    return shlex.join(words)


class ChatTerminal:
    """Reads lines and prints answers; with `as_json` each answer is one line of JSON and nothing else is printed."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.interactive = sys.stdin.isatty() and not as_json
        self._printed: list[str] = []
        self._in_line = False

    def prepare(self, commands: Iterable[str], history: Iterable[str]) -> None:
        if not self.interactive:
            return
        try:
            import readline
        except ImportError:  # not available on every system
            return
        known = sorted(commands)

        def complete(text: str, state: int) -> str | None:
            found = [name for name in known if name.startswith(text)] if text.startswith("/") else []
            return f"{found[state]} " if state < len(found) else None

        readline.set_completer_delims(" \t\n")
        readline.set_completer(complete)
        readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
        for line in history:
            readline.add_history(line)

    def read_line(self) -> str | None:
        try:
            if self.interactive:
                is_colored = console.is_terminal and not console.no_color
                return input(_STYLED_PROMPT.format(_PROMPT) if is_colored else _PROMPT)
            line = sys.stdin.readline()
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise BadInput("this line is not UTF-8 and was ignored") from error
        return line.rstrip("\r\n") if line else None

    def print_text(self, text: str) -> None:
        self.end_line()
        self._printed.append(text) if self.as_json else print_text(text)

    def print_hint(self, text: str) -> None:
        if not self.as_json:
            self.end_line()
            console.print(Text(strip_control_characters(text), "dim"))

    def print_piece(self, piece: str) -> None:
        if self.as_json or not piece:
            return
        write_raw(strip_control_characters(piece))
        self._in_line = not piece.endswith("\n")

    def end_line(self) -> None:
        if self._in_line:
            write_raw("\n")
            self._in_line = False

    def print_error(self, text: str) -> None:
        self.end_line()
        if not self.as_json:
            print_error(text)

    def print_json_line(self, **outcome: Any) -> None:
        """Print the outcome of a line, with the texts printed meanwhile."""
        if self.as_json:
            printed, self._printed = self._printed, []
            if printed:
                outcome["text"] = "\n".join(printed)
            write_raw(json.dumps(outcome, default=to_json_value) + "\n")

    def print_blank_line(self) -> None:
        if self.interactive:
            console.print()


class Chat:
    """A running chat."""

    def __init__(
        self, memory: AgentMemory, model: ChatModel | None, terminal: ChatTerminal, resume_command: str
    ) -> None:
        self.memory = memory
        self.model = model
        self.terminal = terminal
        self.resume_command = resume_command
        self.last_context: Context | None = None

    async def close(self) -> None:
        try:
            if self.model is not None:
                await self.model.close()
        finally:
            await self.memory.close()

    async def run_turn(self, message: str) -> dict[str, Any]:
        """Print and store the answer to a message, and return the turn as JSON.

        The message is stored before the model is asked, so that a crash loses no line. Without a model, the recalled
        memories are the answer.
        """
        recalled = await self.memory.recall(message, budget=_RECALL_BUDGET)
        memories, hits = exclude_session(recalled, self.memory.scope.session)
        reason = "this session, which the model sees"
        if self.model is None:
            query = _fold_text(recalled.query)
            hits = [hit for hit in recalled if _fold_text(hit.item.content) != query]
            reason = "the question itself"
        left_out = [LeftOut(hit.item, reason) for hit in recalled if hit not in hits]
        self.last_context = context = replace(recalled, hits=tuple(hits), left_out=(*left_out, *recalled.left_out))
        found = f"recalled {format_count(len(hits), 'memory', 'memories')}; /why" if hits else "recalled nothing"
        self.terminal.print_hint(" · ".join([found, *context.warnings]))
        outcome: dict[str, Any] = {"said": message, "answer": None, "recalled": context.hits}
        if self.model is None:
            await self.memory.record_turn(message)
            for hit in context:
                role = f"{hit.item.metadata['role']}: " if "role" in hit.item.metadata else ""
                self.terminal.print_text(f"  {role}{format_item(hit.item)}")
            if not hits:
                self.terminal.print_text("  Stored. No earlier message is relevant.")
        else:
            outcome["answer"], error = await self._ask_model(self.model, message, memories)
            if error is not None:
                outcome["message"] = error
                self.terminal.print_error(error)
                self.terminal.print_hint("what you said is kept")
        self.terminal.end_line()
        return outcome

    async def _ask_model(self, model: ChatModel, message: str, memories: str) -> tuple[str | None, str | None]:
        """Store the message, stream and store the answer, and return its text and its error."""
        # Loaded before the message is stored, or it would be in the prompt twice.
        summary, messages = build_history(await self.memory.conversation.get_messages_for_llm())
        turn_id = (await self.memory.record_turn(message)).id
        pieces: list[str] = []

        def add_piece(piece: str) -> None:
            pieces.append(piece)
            self.terminal.print_piece(piece)

        try:
            reply = await model.reply(
                [*messages, ChatMessage("user", message)],
                system=build_system_prompt(memories, _SYSTEM_PROMPT, summary),
                on_text=add_piece,
            )
        except (ModelFailed, asyncio.CancelledError) as error:
            if partial := "".join(pieces).strip():
                await self.memory.record_turn(assistant=f"{partial} …", id=turn_id)
            if isinstance(error, ModelFailed):
                return None, str(error)
            raise
        if not pieces:  # the model does not stream
            add_piece(reply.text)
        text = reply.text.strip()
        if text:
            await self.memory.record_turn(assistant=text, id=turn_id)
        return text, _STOP_MESSAGES.get(reply.stop, None if text else "the model answered nothing")


def _format_fact(item: MemoryItem, prefix: str = "") -> str:
    return f"{item.id[:_SHORT_ID_LENGTH]}  {prefix}{format_item(item)}"


def _fold_text(text: str) -> str:
    return " ".join(text.lower().split())


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


async def _greet(chat: Chat) -> None:
    memory, model, terminal = chat.memory, chat.model, chat.terminal
    earlier = [message.content for message in await memory.conversation.get_last_n(_HISTORY_LINES)]
    terminal.prepare((*_COMMANDS, *_EXIT_COMMANDS), [line for line in earlier if "\n" not in line])
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


def _read_lines(chat: Chat, runner: asyncio.Runner) -> int:
    terminal, failures = chat.terminal, 0
    while True:
        line = None
        try:
            line = terminal.read_line()
            if line is None or line.strip().lower() in _EXIT_COMMANDS:
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
    runner.run(learn_from_conversation(chat.memory, terminal))
    terminal.print_hint(f"Stored. To continue this session: {chat.resume_command}")
    return failures


async def _answer_line(chat: Chat, line: str) -> bool:
    with collect_redactions() as redacted:
        if line.startswith("/"):
            await _run_command(chat, line)
            outcome: dict[str, Any] = {"said": line}
        else:
            outcome = await chat.run_turn(line)
    if redacted:
        chat.terminal.print_hint(format_redactions(redacted))
        outcome["redacted"] = redacted
    chat.terminal.print_json_line(**outcome)
    return "message" not in outcome or outcome["answer"] is not None


async def _run_command(chat: Chat, line: str) -> None:
    name, _, argument = line.partition(" ")
    if name.lower() not in _COMMANDS:
        match = get_close_matches(name, (*_COMMANDS, *_EXIT_COMMANDS), 1)
        raise BadInput(f"there is no {name}; " + (f"did you mean {match[0]}?" if match else "/help lists the commands"))
    run, _, _ = _COMMANDS[name.lower()]
    await run(chat, argument.strip())


async def _show_help(chat: Chat, _: str) -> None:
    rows = [(f"{name} {argument}", help) for name, (_, argument, help) in _COMMANDS.items()]
    rows.append(("/quit", "leave; so does Ctrl-D. Ctrl-C stops an answer."))
    width = max(len(usage.rstrip()) for usage, _ in rows)
    chat.terminal.print_text("\n".join(f"{usage:<{width}}  {help}" for usage, help in rows))


async def _remember(chat: Chat, text: str) -> None:
    item = await chat.memory.remember(_require_argument(text, "/remember", "I am allergic to nuts."))
    chat.terminal.print_text(f"remembered {_format_fact(item)}")


async def _recall(chat: Chat, query: str) -> None:
    context = await chat.memory.recall(_require_argument(query, "/recall", "what am I allergic to?"))
    chat.last_context = context
    for hit in context:
        line = _format_fact(hit.item) if hit.tier == "semantic" else f"{hit.tier:>8}  {format_item(hit.item)}"
        chat.terminal.print_text(f"{hit.relevance:.2f}  {line}")
    if not context:
        chat.terminal.print_text("nothing relevant is remembered")


async def _forget(chat: Chat, argument: str) -> None:
    prefix = _require_argument(argument, "/forget", "3f2a91c0, an id that /memories shows")
    if not await chat.memory.forget(await resolve_id(chat.memory, prefix)):
        raise NotFound(f"there is no fact {prefix}; /memories lists them")
    chat.terminal.print_text(f"forgot {prefix}")


async def _explain_recall(chat: Chat, _: str) -> None:
    last = chat.last_context
    chat.terminal.print_text("nothing was asked yet" if last is None else last.explain())


async def _list_memories(chat: Chat, after: str) -> None:
    start = await resolve_id(chat.memory, after) if after else None
    items = await chat.memory.semantic.page(_PAGE_SIZE, after=start)
    for item in items:
        chat.terminal.print_text(_format_fact(item, f"{item.created_at:%Y-%m-%d}  "))
    if len(items) == _PAGE_SIZE:
        chat.terminal.print_hint(f"for the next page: /memories {items[-1].id[:_SHORT_ID_LENGTH]}")
    if not items:
        chat.terminal.print_text("no facts yet; /remember adds one, /learn takes them from what was said")


async def _show_session(chat: Chat, _: str) -> None:
    memory, terminal = chat.memory, chat.terminal
    scope = memory.scope
    terminal.print_text(f"session {scope.session} of {scope.user}; to go on with it: {chat.resume_command}")
    for message in await memory.conversation.get_last_n(_PAGE_SIZE):
        terminal.print_text(f"  {message.role}: {' '.join(message.content.split())}")


async def _show_stats(chat: Chat, _: str) -> None:
    chat.terminal.print_text("\n".join((await load_stats_lines(chat.memory))[1]))


async def _learn(chat: Chat, _: str) -> None:
    chat.terminal.print_text(str(await chat.memory.lifecycle.run_once()))


def _require_argument(text: str, name: str, example: str) -> str:
    if not text:
        raise BadInput(f"{name} needs an argument, as in: {name} {example}")
    return text


# The function, the argument and the help of each command.
_COMMANDS: dict[str, tuple[Callable[[Chat, str], Awaitable[None]], str, str]] = {
    "/help": (_show_help, "", "this list"),
    "/remember": (_remember, "TEXT", "add a fact"),
    "/recall": (_recall, "QUERY", "show what is known about something"),
    "/forget": (_forget, "ID", "delete a fact; /memories and /recall show the ids"),
    "/why": (_explain_recall, "", "what was recalled for your last line, why, and what was left out"),
    "/memories": (_list_memories, "[ID]", "list the facts, newest first; those after ID"),
    "/session": (_show_session, "", "what was said in this session, and how to go on with it"),
    "/stats": (_show_stats, "", "how much is remembered, and what models have cost"),
    "/learn": (_learn, "", "turn what was said into lasting facts, as `recollect lifecycle` does"),
}
