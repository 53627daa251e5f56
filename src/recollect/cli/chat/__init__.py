"""`recollect chat`: a remembered conversation, with any model or with none."""

from __future__ import annotations

from typing import Annotated

import typer

from recollect.cli.context import CliContext


def chat(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="The model: anthropic:NAME, openai:NAME, or openai:NAME@URL for your own server. "
            "Default: the setting `llm`.",
        ),
    ] = None,
    caller: CliContext,
) -> None:
    """Chat with memory: every line recalls what is relevant to it, and is stored.

    At its start and end a chat learns facts from what was said, as `recollect lifecycle` does. Without a model the
    answer is what memory recalls. In the chat /help lists the commands, /why explains what was recalled, Ctrl-C stops
    an answer and Ctrl-D leaves. A chat is a new session unless --session names an existing one. Lines can also be
    piped in; with --json every answer is a line of JSON.
    """
    from recollect.cli.chat.repl import run_chat

    run_chat(caller, model)
