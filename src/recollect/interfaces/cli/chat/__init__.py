"""`recollect chat`: a conversation that is remembered, with any model, or with none."""

from __future__ import annotations

from typing import Annotated

import typer

from recollect.interfaces.cli.opening import Caller


def chat(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Who answers: anthropic:NAME, openai:NAME, or openai:NAME@URL for a server of yours. "
            "When not given, the setting `llm`.",
        ),
    ] = None,
    caller: Caller,
) -> None:
    """Talk, and be remembered. Every line recalls what matters for it, and is kept.

    When it begins and when it is left, a chat learns facts from what was said, as `recollect lifecycle` does.
    Without a model nothing is made up: the answer is what memory recalls. Within the chat /help lists the commands,
    /why says what was recalled and why, Ctrl-C stops an answer and Ctrl-D leaves. A chat is a new session unless
    --session names one to go on with. Lines can also be piped in; with --json every answer is a line of JSON.
    """
    from recollect.interfaces.cli.chat.repl import run

    run(caller, model)
