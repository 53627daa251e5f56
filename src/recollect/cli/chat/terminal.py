"""Input and output of a chat: a terminal, or a pipe with one line of JSON for each answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.text import Text

from recollect.cli.output import console, print_error, print_text, strip_control_characters, to_json_value, write_raw
from recollect.errors import BadInput

_PROMPT = "you> "
# \001 and \002 keep readline from counting the escapes, or long lines would wrap in the wrong place.
_STYLED_PROMPT = "\001\033[1;36m\002{}\001\033[0m\002"


class ChatTerminal:
    """Reads lines and prints answers; with `as_json` each answer is one line of JSON and nothing else is printed."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.interactive = sys.stdin.isatty() and not as_json
        self._printed: list[str] = []
        self._in_line = False

    def prepare(self, commands: Iterable[str], history: Iterable[str]) -> None:
        """Enable line editing, the history and completion of commands."""
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
        """Return the next line without its end, or None at the end of input."""
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
        """Print secondary information."""
        if not self.as_json:
            self.end_line()
            console.print(Text(strip_control_characters(text), "dim"))

    def print_piece(self, piece: str) -> None:
        """Print a piece of a streamed answer."""
        if self.as_json or not piece:
            return
        write_raw(strip_control_characters(piece))
        self._in_line = not piece.endswith("\n")

    def end_line(self) -> None:
        """End an unfinished line."""
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
        """Print a blank line between turns."""
        if self.interactive:
            console.print()
