"""`recollect demo`: remember in one process, recall by meaning in another."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from recollect.errors import RecollectError
from recollect.interfaces.cli.output import say

_FACTS = (
    "Ada prefers metric units in every report.",
    "The staging database listens on port 6432; production uses 5432.",
    "Never deploy on Fridays: the on-call engineer is alone.",
    "Ada's daughter Mina started school in Lisbon in September.",
    "The invoice export times out above 10,000 rows; split it by month.",
)
_QUESTIONS = (
    "Should distances be in miles or kilometres?",
    "How do I export a large number of invoices?",
    "Is it a good idea to ship before the weekend?",
    "What is the capital of Mongolia?",
)


def demo() -> None:
    """A first look: facts stored by one process are found, by meaning, by another. Offline, no key."""
    with tempfile.TemporaryDirectory(prefix="recollect-demo-") as directory:
        store = str(Path(directory) / "agent.db")
        say("One process remembers:\n")
        for fact in _FACTS:
            say(f"  + {fact}")
        began = time.perf_counter()
        _run(_REMEMBER, store, *_FACTS)
        say(f"\n  {len(_FACTS)} facts in one file, {time.perf_counter() - began:.1f} s with loading the local model")
        say("\nThat process is gone. Another one, with other words, asks:\n")
        say(_run(_RECALL, store, *_QUESTIONS))
        say('\nNext: `recollect remember "…"`, `recollect recall "…"`, and the README for the library.')


def _run(program: str, *arguments: str) -> str:
    """A program in a process of its own, so that nothing is carried over but the file."""
    done = subprocess.run(  # our own interpreter and our own constant program
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["the demo failed"]
        raise RecollectError(re.sub(r"^recollect\.errors\.\w+: ", "", said[-1]))
    return done.stdout.rstrip()


_REMEMBER = """
import sys
from recollect.sync import AgentMemory

with AgentMemory.open(sys.argv[1], user="ada") as memory:
    memory.semantic.add_many([{"content": fact} for fact in sys.argv[2:]])
"""

_RECALL = """
import sys
from recollect.sync import AgentMemory

with AgentMemory.open(sys.argv[1], user="ada") as memory:
    for question in sys.argv[2:]:
        print(f"  ? {question}")
        context = memory.recall(question, n=1)
        for hit in context:
            print(f"    {hit.relevance:.2f}  {hit.item.content}   ({hit.why})")
        if not context:
            print("    nothing relevant is remembered")
"""
