"""The README and the docs: every block is run, and every link and picture is checked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import pytest

from recollect.stores.base import Capabilities, Records, get_capabilities
from recollect.stores.chroma import ChromaStore
from recollect.stores.in_memory import InMemoryStore
from recollect.stores.postgres import PostgresStore
from recollect.stores.redis import RedisStore
from recollect.stores.sqlite import SqliteStore
from tests.cases import Case
from tests.docs.blocks import anchors, links, pictures
from tests.docs.reader import ROOT, Reader

RUN = sorted([ROOT / "README.md", ROOT / "examples" / "README.md", *ROOT.glob("docs/**/*.md")])
PAGES = sorted({*RUN, *ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md")})


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_page_blocks_run_and_match_their_output(page: Path, tmp_path: Path, runner: asyncio.Runner):
    Reader(page, tmp_path).follow(runner)


def test_internal_links_resolve():
    failures: list[str] = []
    for page in PAGES:
        for link in links(page):
            target, _, anchor = link.partition("#")
            destination = (page.parent / target).resolve() if target else page
            with Case(failures, name_of(page), link):
                assert destination.exists(), "the target does not exist"
                if anchor and destination.suffix == ".md":
                    assert anchor in anchors(destination), "there is no such heading"
    assert not failures, "\n".join(failures)


def test_pictures_are_valid_svg_with_alt_text():
    failures: list[str] = []
    for page in PAGES:
        for picture in pictures(page):
            with Case(failures, name_of(page), picture.target):
                assert len(picture.says.split()) >= 3, "the alt text needs at least 3 words"
            with Case(failures, name_of(page), picture.target):
                root = ElementTree.parse(page.parent / picture.target).getroot()
                assert root.tag.endswith("svg"), "the file is not an SVG image"
    assert not failures, "\n".join(failures)


def test_table_of_capabilities_matches_the_store_classes():
    # Mutants: a store declares less or more than the table says; a capability has no row.
    section = (ROOT / "docs" / "howto" / "scale.md").read_text("utf-8").partition("## Compare the declared")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE)
    stores: list[type] = [InMemoryStore, SqliteStore, PostgresStore, RedisStore, ChromaStore]
    declared = {
        capability.name: [name_declared(capability.name, store) for store in stores]
        for capability in fields(Capabilities)
    }
    assert {name: cells.split(" | ") for name, cells in rows} == declared


def name_declared(capability: str, store: type) -> str:
    if capability == "exact_search" and Records not in store.__mro__:
        return "–"
    value = getattr(get_capabilities(store), capability)
    return {True: "yes", False: "no"}.get(value, str(value))


def test_every_page_is_linked_from_the_docs_index():
    start = ROOT / "docs" / "README.md"
    listed = {(start.parent / link.partition("#")[0]).resolve() for link in links(start)}
    pages = {page for page in ROOT.glob("docs/**/*.md") if page.parent.name != "decisions"} - {start}
    assert pages - listed == set()


def test_readme_is_at_most_330_lines():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 330


@pytest.mark.parametrize(
    "text",
    [
        "```python\nraise AssertionError\n```\n",
        "```python\nprint(1)\n```\n\n```output\n2\n```\n",
        "```bash\nmake nonsense\n```\n",
        "```bash\nrecollect nonsense\n```\n",
        "```console\n$ recollect --help\nnothing of the kind\n```\n",
        "```bash\npython examples/nonsense.py\n```\n",
        "```bash\nfalse\n```\n",
        "```bash\npip install something-else\n```\n",
        "```bash\npip install recollect\n```\n",
        "```bash\nuv add 'recollect[redis]'\n```\n",
        "```bash\npip install '.[nonsense]'\n```\n",
        "```phyton\nprint(1)\n```\n",
        "```\nprint(1)\n```\n",
        "<!-- the model says Hello. -->\n",
    ],
)
def test_reader_rejects_a_wrong_page(text: str, tmp_path: Path, runner: asyncio.Runner):
    page = tmp_path / "wrong.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError):
        Reader(page, tmp_path).follow(runner)


def test_reader_rejects_wrong_settings(tmp_path: Path, runner: asyncio.Runner):
    from recollect.errors import BadSettings

    page = tmp_path / "wrong.md"
    page.write_text("```toml\nstroe = 'a.db'\n```\n", encoding="utf-8")
    with pytest.raises(BadSettings, match="stroe"):
        Reader(page, tmp_path).follow(runner)
