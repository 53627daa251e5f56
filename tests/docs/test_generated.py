"""Generated docs match the code: the picture of the tiers, and the references of settings, API and commands."""

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


def test_tiers_picture_is_up_to_date():
    # Mutant: a different TTL or cap in TIERS.
    assert tiers_picture.PICTURE.read_text(encoding="utf-8") == tiers_picture.picture()


def test_tiers_picture_shows_every_tier_with_its_bounds():
    shown = " ".join(text.text or "" for text in texts())
    for tier in TIERS:
        assert tier.name in shown
        assert ", ".join(tiers_picture.bounds(tier)) in shown


def test_tiers_picture_texts_fit_their_boxes():
    """The average letter of a wide font (DejaVu) is 0.55 of the font size; a monospaced one is 0.6."""
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
def test_tiers_picture_contrast_is_sufficient(at: int):
    """WCAG 2 requires a contrast of 4.5 to 1 for small text."""
    scheme = (tiers_picture.LIGHT, tiers_picture.DARK)[at]
    inks = [scheme["text"], scheme["quiet"], *(accent[at] for accent in tiers_picture.ACCENTS)]
    for ink, paper in product(inks, (scheme["ground"], scheme["card"])):
        assert contrast(ink, paper) >= 4.5, f"{ink} on {paper}"


def contrast(first: str, second: str) -> float:
    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_settings_page_lists_every_option_with_default_and_reason():
    # Mutant: an option or its range is missing on the page.
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


def test_api_reference_is_deterministic_and_shows_constructors():
    page = reference.api()
    assert not re.search(r"0x[0-9a-f]{6}", page)
    for name in reference.CONSTRUCTED:
        assert f"\n`{name}(" in page


def test_api_reference_describes_memory_parts_and_returned_types():
    # Mutant: the page does not describe a type that a call returns.
    page = reference.api()
    memory = page.partition("\n## AgentMemory\n")[2].partition("\n## ")[0]
    for part in ("working", "conversation", "episodic", "semantic", "procedural", "checkpoints", "lifecycle"):
        assert f"| `{part}: " in memory
    assert "| `quarantine: Quarantine` |" in memory
    known = set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    met = set(re.findall(r"-> (?:\w+\[)?(\w+)", memory)) - {"Opening", "None", "bool", "str", "int"}
    assert met - known == set()
    assert {
        "StepContext",
        "Quarantine",
        "QuarantinedItem",
        "Verification",
        "SourceForgotten",
        "ErasureReceipt",
    } <= known


def test_every_command_is_in_command_order():
    # Mutant: a command is missing in COMMANDS, and `recollect --help` fails with a traceback.
    from typer.main import get_command

    from recollect.cli.app import COMMANDS, app

    known = get_command(app)
    assert isinstance(known, click.Group)
    assert sorted(name for _, name, _ in COMMANDS) == sorted(known.commands)


def test_option_defaults_are_within_documented_limits():
    limits = {option.name: found for option in fields(Settings) if (found := option.metadata.get("limits"))}
    assert {*limits} == {option.name for option in fields(Settings) if type(option.default) in (int, float)}
    for name, (low, high) in limits.items():
        assert low <= getattr(Settings(), name) <= high


@pytest.mark.parametrize("script", ["tiers_picture.py"])
def test_generator_check_fails_for_a_stale_page(script: str, tmp_path, monkeypatch):
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
