"""The README and the docs do what they say: every Python block and command is run, every link is followed."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.docs.blocks import Block, Command, anchors, blocks, commands, links, says

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = sorted([*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md")])
PAGES = sorted({*RUN, *ROOT.glob("*.md")})
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
COMMANDS = {"bash", "sh", "console"}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


class Reader:
    """Follows one page from top to bottom in a directory of its own, as somebody trying it out would."""

    def __init__(self, page: Path, directory: Path) -> None:
        self.page = page
        self.directory = directory
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.printed = ""

    def follow(self, runner: asyncio.Runner) -> None:
        for block in blocks(self.page):
            if block.kind == "python":
                self.run_python(block, runner)
            elif block.kind in COMMANDS:
                self.run_commands(block)
            elif block.kind == "output":
                assert says(self.printed, block.text), (
                    f"{self.at(block.line)} expects\n{block.text}but got\n{self.printed}"
                )

    def run_python(self, block: Block, runner: asyncio.Runner) -> None:
        # Blank lines in front, so that a traceback names the line of the page.
        source = "\n" * (block.line - 1) + block.text
        code = compile(source, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with redirect_stdout(StringIO()) as printed:
            answer = eval(code, self.names)  # noqa: S307  the page is ours
            if inspect.iscoroutine(answer):
                runner.run(answer)
        self.printed = printed.getvalue()

    def run_commands(self, block: Block) -> None:
        self.printed = ""
        for command in commands(block):
            words = command.text.split()
            if words[0] == "make":
                unknown = [word for word in words[1:] if "=" not in word and word not in TARGETS]
                assert not unknown, f"{self.at(command.line)} the Makefile has no target {unknown}"
            elif words[0] == "recollect":
                self.run_command(command)

    def run_command(self, command: Command) -> None:
        done = subprocess.run(
            command.text,
            shell=True,  # as typed: quotes, pipes and all
            cwd=self.directory,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "COLUMNS": "120",
            },
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


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: asyncio.Runner):
    monkeypatch.chdir(tmp_path)
    Reader(page, tmp_path).follow(runner)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path):
    for link in links(page):
        target, _, anchor = link.partition("#")
        destination = (page.parent / target).resolve() if target else page
        assert destination.exists(), f"{name_of(page)} links to {link}, which is not there"
        if anchor and destination.suffix == ".md":
            assert anchor in anchors(destination), f"{name_of(page)} links to {link}, but there is no such heading"


@pytest.mark.parametrize(
    "text",
    [
        "```python\nraise AssertionError\n```\n",
        "```python\nprint(1)\n```\n\n```output\n2\n```\n",
        "```bash\nmake nonsense\n```\n",
        "```bash\nrecollect nonsense\n```\n",
        "```console\n$ recollect --help\nnothing of the kind\n```\n",
    ],
)
def test_the_runner_sees_a_page_that_is_wrong(text: str, tmp_path: Path, runner: asyncio.Runner):
    page = tmp_path / "wrong.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError):
        Reader(page, tmp_path).follow(runner)
