"""The loop of a chat: a line, what is recalled, an answer; until there are no more lines."""

from __future__ import annotations

import asyncio
import shlex
from typing import Any

import typer

from recollect.clock import system_clock
from recollect.errors import RecollectError
from recollect.inference.chat import ChatModel
from recollect.inference.connect import connect_chat
from recollect.interfaces.cli.chat.commands import LEAVING, NAMES, Session, obey
from recollect.interfaces.cli.chat.learning import learn_what_was_said
from recollect.interfaces.cli.chat.screen import Screen
from recollect.interfaces.cli.chat.talk import Answer, Talk
from recollect.interfaces.cli.counting import facts_now, told
from recollect.interfaces.cli.left_out import heard_of_secrets, told_of_secrets
from recollect.interfaces.cli.opening import FAILED, Caller
from recollect.interfaces.cli.output import hit_json, item_line
from recollect.memory import AgentMemory
from recollect.settings import Settings
from recollect.tiers.entries import fresh_id
from recollect.values import Context

_OLD_LINES = 100


def run(caller: Caller, model: str | None) -> None:
    """Chat until the end of input. Exit code 3 when a line that was piped in could not be answered."""
    settings = Settings.load()
    named = model or settings.llm
    if named:
        connect_chat(named, settings)  # a name that cannot be meant is refused before a store is made
    session = caller.session or f"chat-{system_clock():%Y%m%d-%H%M%S}-{fresh_id()[:4]}"
    screen = Screen(as_json=caller.as_json)
    failures = 0
    # Not one long run: between the turns this thread waits for a person, and Ctrl-C ends a turn, not the chat.
    with asyncio.Runner() as runner:
        memory = runner.run(_opened(caller, session))
        chat = Session(Talk(memory, _model(named, memory)), screen, _again(caller, session, model))
        try:
            runner.run(learn_what_was_said(memory, screen))  # by whatever ended without learning, too
            runner.run(_greet(chat))
            failures = _loop(chat, runner)
        finally:
            runner.run(_closed(chat))
    if failures and not screen.interactive:
        raise typer.Exit(FAILED)


def _loop(chat: Session, runner: asyncio.Runner) -> int:
    """Line after line; returns how many failed."""
    failures = 0
    while True:
        line = None
        try:
            line = chat.screen.read()
            if line is None or line.strip().lower() in LEAVING:
                break
            if line.strip():
                failures += not runner.run(_answered(chat, line.strip()))
                chat.screen.new_line()
        except KeyboardInterrupt:
            chat.screen.end_line()
            chat.screen.new_line()
            chat.screen.hint("stopped" if line is not None else "Ctrl-D or /quit leaves")
            if not chat.screen.interactive:
                raise
        except RecollectError as error:
            failures += 1
            chat.screen.complain(str(error))
            chat.screen.tell(said=line, error=type(error).__name__, message=str(error))
    if line is None:
        chat.screen.new_line()
    runner.run(learn_what_was_said(chat.talk.memory, chat.screen))
    chat.screen.hint(f"kept; to go on with this session: {chat.again}")
    return failures


async def _answered(chat: Session, line: str) -> bool:
    """Whether a line was answered, one way or another."""
    with heard_of_secrets() as gone:
        outcome, answered = await _taken(chat, line)
    if gone:
        chat.screen.hint(told_of_secrets(gone))
    chat.screen.tell(**outcome, **({"redacted": gone} if gone else {}))
    return answered


async def _taken(chat: Session, line: str) -> tuple[dict[str, Any], bool]:
    """What a program is told of a line, and whether it was answered."""
    screen = chat.screen
    if line.startswith("/"):
        await obey(chat, line)
        return {"said": line}, True
    answer = await chat.talk.turn(line, lambda context: screen.hint(_recalled(context)), screen.hear)
    if answer.text is None and answer.trouble is None:
        _show(chat, answer.context)
    if answer.trouble is not None:
        screen.complain(answer.trouble)
        screen.hint("what you said is kept")
    screen.end_line()
    return _told(line, answer), answer.text is not None or answer.trouble is None


def _show(chat: Session, context: Context) -> None:
    """Without a model: what memory recalls is the answer, as it was said."""
    for hit in context:
        who = f"{hit.item.metadata['role']}: " if "role" in hit.item.metadata else ""
        chat.screen.say(f"  {who}{item_line(hit.item)}")
    if not context.hits:
        chat.screen.say("  Kept. Nothing that was said before has to do with it.")


def _recalled(context: Context) -> str:
    count = len(context)
    said = f"recalled {told(count, 'memory', 'memories')}; /why" if count else "recalled nothing"
    return " · ".join([said, *context.warnings])


def _told(line: str, answer: Answer) -> dict[str, Any]:
    given = {"said": line, "answer": answer.text, "recalled": [hit_json(hit) for hit in answer.context]}
    return given if answer.trouble is None else {**given, "message": answer.trouble}


def _model(named: str, memory: AgentMemory) -> ChatModel | None:
    parts = memory._parts  # what is spent goes into the memory's own ledger, and under its limit
    return connect_chat(named, parts.settings, ledger=parts.ledger, clock=parts.clock) if named else None


async def _opened(caller: Caller, session: str) -> AgentMemory:
    return await AgentMemory.open(
        caller.store, tenant=caller.tenant, user=caller.user, agent=caller.agent, session=session
    )


async def _closed(chat: Session) -> None:
    try:
        if chat.talk.model is not None:
            await chat.talk.model.close()
    finally:
        await chat.talk.memory.close()


async def _greet(chat: Session) -> None:
    talk, screen = chat.talk, chat.screen
    earlier = [message.content for message in await talk.memory.conversation.get_last_n(_OLD_LINES)]
    screen.prepare(NAMES, [line for line in earlier if "\n" not in line])
    if screen.as_json:
        return
    newest = await talk.memory.semantic.page(1)
    screen.say(await _known(talk.memory) + (f" The newest: {item_line(newest[0])}" if newest else ""))
    if talk.model is None:
        screen.say("No model answers here: what memory recalls is shown as it was said. --model NAME asks one.")
    else:
        screen.say(f"{talk.model.name} answers.")
    screen.hint("/help lists the commands, /why says what was recalled and why, Ctrl-D leaves.")


async def _known(memory: AgentMemory) -> str:
    (count, facts), talks = await facts_now(memory), (await memory.stats()).tiers["conversation"].sessions
    if not count and not talks:
        return "Hello. Nothing is remembered of you yet."
    return f"Welcome back. {facts} and {told(talks, 'conversation')} are remembered."


def _again(caller: Caller, session: str, model: str | None) -> str:
    """The command that goes on with this session."""
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
