"""The house rules that no linter knows: modules' size, sentences and names, and what they may import."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "recollect"
MODULES = sorted(SOURCE.rglob("*.py"))
LOCKS = sorted(ROOT.glob("requirements*.lock"))

LONGEST = 400
# module → (lines granted, reason). Grow by splitting first; a grant is for what would read worse in two pieces.
GRANTED: dict[str, tuple[int, str]] = {}

NAMES_THAT_SAY_NOTHING = {
    "utils",
    "util",
    "common",
    "core",
    "helpers",
    "helper",
    "managers",
    "services",
    "misc",
    "base_classes",
}


def name_of(module: Path) -> str:
    return module.relative_to(SOURCE).as_posix()


def length_of(module: Path) -> int:
    return len(module.read_text(encoding="utf-8").splitlines())


def outside_packages(tree: ast.AST) -> set[str]:
    """The packages a module imports that are neither ours nor Python's."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name.split(".")[0] for alias in aliases}
            case ast.ImportFrom(module=str(module), level=0):
                names.add(module.split(".")[0])
    return names - sys.stdlib_module_names - {"recollect"}


def test_there_are_modules_to_look_at():
    assert MODULES, f"no modules under {SOURCE}: these tests would pass without looking"


def test_every_directory_of_modules_is_a_package():
    assert {name_of(module.parent) for module in MODULES if not (module.parent / "__init__.py").is_file()} == set()


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_is_short_enough_to_read_in_one_sitting(module: Path):
    allowed, _ = GRANTED.get(name_of(module), (LONGEST, ""))
    assert length_of(module) <= allowed, f"split {name_of(module)} into a package of the same name"


def test_a_grant_is_withdrawn_once_it_is_not_needed():
    for name, (granted, reason) in GRANTED.items():
        assert reason, f"the grant for {name} must say why"
        assert LONGEST < length_of(SOURCE / name) <= granted, f"delete the grant for {name}"


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_opens_with_one_sentence(module: Path):
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    assert docstring, f"{name_of(module)} must say in one sentence what it is for"
    first = docstring.split("\n\n")[0].strip()
    assert first.endswith((".", "?")), f"{name_of(module)} must open with a whole sentence, not {first!r}"
    assert len(first) <= 200, f"the first sentence of {name_of(module)} is {len(first)} characters long"


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_is_named_by_what_it_serves(module: Path):
    vague = NAMES_THAT_SAY_NOTHING.intersection(module.relative_to(SOURCE).with_suffix("").parts)
    assert not vague, f"{vague} says nothing: a function lives with the noun it serves"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_pins_by_hash_and_names_no_place(lock: Path):
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^--?(index-url|extra-index-url|find-links|i |f )", text, re.MULTILINE)
    pins = re.split(r"\n(?=[A-Za-z0-9])", text.strip())
    assert pins
    assert [pin.split()[0] for pin in pins if "==" not in pin or "--hash=sha256:" not in pin] == []


# Packages whose module has another name.
MODULE_OF = {"apsw_sqlite3mc": "apsw"}


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_what_a_module_imports_is_declared(module: Path):
    """The developer's environment has more in it than a user's: an undeclared import fails only there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    names = [re.split(r"[^\w-]", line)[0].replace("-", "_") for line in [*project["dependencies"], *extras]]
    declared = {MODULE_OF.get(name, name) for name in names}
    assert outside_packages(ast.parse(module.read_text(encoding="utf-8"))) - declared == set()


def test_the_core_stays_small():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    packages = {
        line.split("==")[0] for line in lines if re.match(r"[a-z]", line) and "sys_platform == 'win32'" not in line
    }
    assert len(packages) <= 20, f"{len(packages)} packages: {sorted(packages)}"


def test_the_architecture_can_be_read_in_one_go():
    assert length_of(ROOT / "docs" / "ARCHITECTURE.md") <= 150
