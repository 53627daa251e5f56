"""A runner of documentation pages: every block is run, loaded or checked, from top to bottom."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from recollect.settings import CONFIG_FILE, Settings
from tests.docs.blocks import Block, Command, answers, blocks, commands, says
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer
from tests.wire.server import Wire

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
COMMANDS = {"bash", "sh", "console"}
# Blocks of these kinds are only shown. All others are run, and an unknown kind is an error.
SHOWN = {"text", "json", "jsonl"}
INSTALL = re.compile(r"^(?:python3? -m )?(?:uv )?(?:pip|pipx|tool|add) ?(?:install)? (?P<what>.+)$")
# The distribution or the checkout. The project named `recollect` on PyPI is a different one.
OURS = re.compile(r"(?:\.|recollect-memory)(?:\[(?P<extras>[\w,-]+)\])?")


class Reader:
    """A page, run in a temporary directory with the examples, and with models that answer as the page scripts."""

    def __init__(self, page: Path, directory: Path) -> None:
        self.page = page
        self.directory = directory
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.printed = ""

    def follow(self, runner: asyncio.Runner) -> None:
        (self.directory / "examples").symlink_to(ROOT / "examples")
        with Wire(*answers(self.page)) as wire, pytest.MonkeyPatch.context() as machine:
            machine.chdir(self.directory)
            # Every provider of a page is this local server.
            for name, value in (("ANTHROPIC", wire.anthropic), ("OPENAI", wire.openai)):
                machine.setenv(f"{name}_API_KEY", "not-a-key")
                machine.setenv(f"{name}_BASE_URL", value)
            machine.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
            machine.setenv("COLUMNS", "120")
            with ExitStack() as servers:
                for name, url in self.servers(servers):
                    machine.setenv(name, url)
                for block in blocks(self.page):
                    self.take(block, runner)
            assert wire.unexpected == 0, f"{self.page.name} sends more model requests than it scripts answers"
            asked = [request for request in wire.requests if "messages" in request.body]
            assert len(asked) == len(answers(self.page)), f"{self.page.name} scripts answers that no request uses"

    def servers(self, running: ExitStack) -> Iterator[tuple[str, str]]:
        """Start an empty server for each URL variable that the page mentions, and yield the variable and URL."""
        text = self.page.read_text(encoding="utf-8")
        if "POSTGRES_URL" in text:
            postgres = Server()
            running.callback(postgres.close)
            yield "POSTGRES_URL", postgres.create("docs")
        if "REDIS_URL" in text:
            redis = RedisServer(self.directory / "redis").start()
            running.callback(redis.kill)
            yield "REDIS_URL", redis.url

    def take(self, block: Block, runner: asyncio.Runner) -> None:
        if block.kind == "python":
            self.run_python(block, runner)
        elif block.kind in COMMANDS:
            self.run_commands(block)
        elif block.kind == "output":
            assert says(self.printed, block.text), f"{self.at(block.line)} expects\n{block.text}but got\n{self.printed}"
        elif block.kind == "toml":
            self.load_settings(block)
        else:
            assert block.kind in SHOWN, f"{self.at(block.line)} has an unknown block kind {block.kind!r}"

    def run_python(self, block: Block, runner: asyncio.Runner) -> None:
        # Blank lines in front make a traceback name the line of the page.
        source = "\n" * (block.line - 1) + block.text
        code = compile(source, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with redirect_stdout(StringIO()) as printed:
            answer = eval(code, self.names)  # noqa: S307 - pages of this repository
            if inspect.iscoroutine(answer):
                runner.run(answer)
        self.printed = printed.getvalue()

    def load_settings(self, block: Block) -> None:
        """Load a block as `recollect.toml` in a separate directory, so that it does not affect later blocks."""
        with TemporaryDirectory() as place:
            (Path(place) / CONFIG_FILE).write_text(block.text, encoding="utf-8")
            Settings.load(environ={}, directory=Path(place))

    def run_commands(self, block: Block) -> None:
        self.printed = ""
        for command in commands(block):
            if command.text.startswith("make "):
                unknown = [word for word in command.text.split()[1:] if "=" not in word and word not in TARGETS]
                assert not unknown, f"{self.at(command.line)} the Makefile has no target {unknown}"
            elif command.text.startswith("uvx --from recollect-memory recollect "):
                continue  # needs the released package
            elif installed := INSTALL.match(command.text):
                self.look_up(installed["what"].strip("'\""), command)
            else:
                self.run_command(command)

    def look_up(self, requirement: str, command: Command) -> None:
        """Check that an install command names this project and existing extras, without running it."""
        ours = OURS.fullmatch(requirement)
        assert ours, f"{self.at(command.line)} installs {requirement!r}, which is not this project"
        extras = set((ours["extras"] or "").split(",")) - {""}
        unknown = extras - set(PROJECT["optional-dependencies"])
        assert not unknown, f"{self.at(command.line)} there is no extra {sorted(unknown)}"

    def run_command(self, command: Command) -> None:
        done = subprocess.run(
            command.text,
            shell=True,  # the command may have quotes and pipes
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )
        where = self.at(command.line)
        assert done.returncode == 0, (
            f"{where} `{command.text}` ended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
        assert says(done.stdout, command.output), f"{where} expects\n{command.output}\nbut got\n{done.stdout}"
        self.printed += done.stdout

    def at(self, line: int) -> str:
        return f"{self.page.name}:{line}"
