"""A chat that remembers: what you say is kept, and what matters for your next line is recalled.

    python examples/minimal_chat.py                                       offline: it answers with what it recalls
    python examples/minimal_chat.py --model anthropic:claude-haiku-4-5    a model answers, with the same memory

Type a line, or pipe some in; an empty line ends it. Each run is a session of its own, and the next one still knows what
was said in this one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import closing

from recollect.sync import AgentMemory, AgentWithMemory


def lines() -> Iterator[str]:
    """What is typed or piped in, up to an empty line."""
    prompt = "you> " if sys.stdin.isatty() else ""
    try:
        while line := input(prompt).strip():
            yield line
    except (EOFError, KeyboardInterrupt):
        return


def from_memory(memory: AgentMemory) -> Callable[[str], str]:
    """No model, no key, no network: the answer is what a model would be shown."""

    def answer(line: str) -> str:
        context = memory.recall(line, n=3)
        memory.record_turn(line)
        return str(context) or "(nothing yet; it is kept now)"

    return answer


def talk(memory: AgentMemory, model: str | None) -> None:
    if model is None:
        answer = from_memory(memory)
        for line in lines():
            print(answer(line), flush=True)
        return
    # The agent recalls before it answers, and records what was said on both sides.
    with closing(AgentWithMemory(memory, model=model)) as agent:
        for line in lines():
            print(agent.run(line), flush=True)


def main(store: str, user: str, model: str | None) -> None:
    with AgentMemory.open(store, user=user) as memory:
        session = f"chat-{len(memory.episodic.sessions()) + 1}"
        talk(memory.scoped(session=session), model)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--store", default="chat.db")
    arguments.add_argument("--user", default="you")
    arguments.add_argument("--model", help="as in anthropic:claude-haiku-4-5 or openai:gpt-5-mini")
    given = arguments.parse_args()
    main(given.store, given.user, given.model)
