"""The two ends of a chat: lines from a person or a pipe, and what they are shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.text import Text

from recollect.errors import BadInput
from recollect.interfaces.cli.output import clean, complain, console, plain_value, say, write

_PROMPT = "you> "
# Between these, readline counts nothing as part of the line: without them long lines wrap in the wrong place.
_HIDDEN = "\001\033[1;36m\002{}\001\033[0m\002"


class Screen:
    """What is read and shown. For a program nothing is shown: each answer is written as one line of JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.interactive = sys.stdin.isatty() and not as_json
        self._said: list[str] = []
        self._in_line = False

    def prepare(self, commands: Iterable[str], history: Iterable[str]) -> None:
        """Line editing, the arrow keys for what was said before, and Tab for commands."""
        if not self.interactive:
            return
        try:
            import readline
        except ImportError:  # not on every system; the terminal's own editing has to do
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

    def read(self) -> str | None:
        """The next line, without its end; None when there are no more."""
        try:
            if self.interactive:
                coloured = console.is_terminal and not console.no_color
                return input(_HIDDEN.format(_PROMPT) if coloured else _PROMPT)
            line = sys.stdin.readline()
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise BadInput("this line is not UTF-8, and was not taken") from error
        return line.rstrip("\r\n") if line else None

    def say(self, text: str) -> None:
        self.end_line()
        self._said.append(text) if self.as_json else say(text)

    def hint(self, text: str) -> None:
        """Something by the way; not for a program."""
        if not self.as_json:
            self.end_line()
            console.print(Text(clean(text), "dim"))

    def hear(self, piece: str) -> None:
        """A piece of an answer as it comes."""
        if self.as_json or not piece:
            return
        write(clean(piece))
        self._in_line = not piece.endswith("\n")

    def end_line(self) -> None:
        """Whatever is shown next begins on a line of its own."""
        if self._in_line:
            write("\n")
            self._in_line = False

    def complain(self, text: str) -> None:
        self.end_line()
        if not self.as_json:
            complain(text)

    def tell(self, **told: Any) -> None:
        """For a program: what came of a line, together with what was said meanwhile."""
        if self.as_json:
            said, self._said = self._said, []
            given = {**told, "text": "\n".join(said)} if said else told
            write(json.dumps(given, default=plain_value) + "\n")

    def new_line(self) -> None:
        """Some air between the turns, and after a key that leaves the cursor behind the prompt."""
        if self.interactive:
            console.print()
