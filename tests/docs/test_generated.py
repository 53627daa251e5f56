"""What is generated says what the code says: the picture of the tiers, and the reference of the settings."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from itertools import product
from xml.etree import ElementTree

import click
import pytest

from recollect.settings import TIERS, Settings
from scripts import reference, tiers_picture

SVG = "{http://www.w3.org/2000/svg}"


def texts() -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(tiers_picture.picture()).iter(f"{SVG}text"))


def test_the_picture_is_the_one_that_would_be_drawn_now():
    # Mutant: another lifetime or cap in TIERS.
    assert tiers_picture.PICTURE.read_text(encoding="utf-8") == tiers_picture.picture()


def test_the_picture_shows_every_tier_with_its_bounds():
    shown = " ".join(text.text or "" for text in texts())
    for tier in TIERS:
        assert tier.name in shown
        assert ", ".join(tiers_picture.bounds(tier)) in shown


def test_every_text_in_the_picture_is_in_its_box():
    """In a wide typeface (DejaVu) a letter takes 0.55 of the size on the average, and 0.6 where all are as wide."""
    for text in texts():
        kind, words, x = text.get("class", ""), text.text or "", int(text.get("x", 0))
        width = len(words) * (17 * 0.6 if "name" in kind else 13 * 0.6 if "code" in kind else 14 * 0.55)
        if "middle" in kind:
            room = 2 * min(x, tiers_picture.WIDTH - x)
        else:
            column = (x - tiers_picture.EDGE) // (tiers_picture.CARD + tiers_picture.GAP)
            room = tiers_picture.EDGE + column * (tiers_picture.CARD + tiers_picture.GAP) + tiers_picture.CARD - x
        assert width <= room, f"{words!r} takes {width:.0f} of {room}"


@pytest.mark.parametrize("at", [0, 1], ids=["light", "dark"])
def test_the_picture_can_be_read_in_light_and_in_dark(at: int):
    """4.5 to 1 is what the guidelines for accessible content ask of small text."""
    scheme = (tiers_picture.LIGHT, tiers_picture.DARK)[at]
    inks = [scheme["text"], scheme["quiet"], *(accent[at] for accent in tiers_picture.ACCENTS)]
    for ink, paper in product(inks, (scheme["ground"], scheme["card"])):
        assert contrast(ink, paper) >= 4.5, f"{ink} on {paper}"


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_page_of_settings_has_every_option_with_its_variable_its_default_and_its_reason():
    # Mutant: an option left out of the page, or one whose range is not told.
    rows = dict(re.findall(r"^\| `(\w+)` (\|.*)$", reference.settings(), re.MULTILINE))
    for option in fields(Settings):
        if option.name == "tiers":
            continue
        default, extent, variable, why = (cell.strip() for cell in rows[option.name].strip("|").split("|")[:4])
        assert variable == f"`RECOLLECT_{option.name.upper()}`"
        assert default
        assert why == option.metadata["why"]
        assert extent if type(option.default) in (int, float) else extent in ("text", "a key")
    assert [tier.name for tier in TIERS] == [name for name in rows if name in {tier.name for tier in TIERS}]


def test_the_reference_of_the_api_is_the_same_in_every_process_and_says_how_things_are_made():
    page = reference.api()
    assert not re.search(r"0x[0-9a-f]{6}", page)
    for name in reference.CONSTRUCTED:
        assert f"\n`{name}(" in page


def test_the_reference_of_the_api_has_the_parts_of_a_memory_and_all_that_is_met_through_them():
    # Mutant: a type that a call gives back, and that the page does not describe.
    page = reference.api()
    memory = page.partition("\n## AgentMemory\n")[2].partition("\n## ")[0]
    for part in ("working", "conversation", "episodic", "semantic", "procedural", "checkpoints", "lifecycle"):
        assert f"| `{part}: " in memory
    assert "| `quarantine: Quarantine` |" in memory
    known = set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    met = set(re.findall(r"-> (?:\w+\[)?(\w+)", memory)) - {"Opening", "None", "bool", "str", "int"}
    assert met - known == set()
    assert {"StepContext", "Quarantine", "Quarantined", "Verification", "SourceForgotten", "ErasureReceipt"} <= known


def test_every_command_has_its_place_in_the_help():
    # Mutant: a command that is not in ORDER, with which `recollect --help` ends in a traceback.
    from typer.main import get_command

    from recollect.interfaces.cli.app import app
    from recollect.interfaces.cli.grouping import ORDER

    known = get_command(app)
    assert isinstance(known, click.Group)
    assert sorted(ORDER) == sorted(known.commands)


def test_a_default_of_every_option_is_within_the_range_that_is_told():
    from recollect.settings import _RANGES

    numbers = {option.name for option in fields(Settings) if type(option.default) in (int, float)}
    assert {name for name, _, _ in _RANGES} == numbers
    for name, low, high in _RANGES:
        assert low <= getattr(Settings(), name) <= high


@pytest.mark.parametrize("script", ["tiers_picture.py"])
def test_a_generator_says_when_its_page_is_stale(script: str, tmp_path, monkeypatch):
    checked = [sys.executable, str(reference.ROOT / "scripts" / script), "--check"]
    assert subprocess.run(checked, capture_output=True, timeout=60, check=False).returncode == 0
    stale = tmp_path / "tiers.svg"
    stale.write_text("<svg/>", encoding="utf-8")
    monkeypatch.setattr(tiers_picture, "PICTURE", stale)
    monkeypatch.setattr(tiers_picture, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["tiers_picture.py", "--check"])
    with pytest.raises(SystemExit, match=r"stale: tiers\.svg"):
        tiers_picture.main()
    assert stale.read_text(encoding="utf-8") == "<svg/>"
