"""Rules of the code base that no linter checks: module sizes and names, unique class names, declared imports, locks."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "recollect"
MODULES = sorted(SOURCE.rglob("*.py"))
LOCKS = sorted(ROOT.glob("requirements*.lock"))

MAX_LINES = 800
# A shorter module with a single importer belongs in that importer.
MIN_LINES_OF_A_SINGLE_IMPORTER = 60
MAX_MODULES = 230

VAGUE_NAMES = {
    *("utils", "util", "common", "core", "helpers", "helper", "managers", "services", "misc", "base_classes"),
}
# Distributions whose module has another name.
MODULE_NAMES = {"apsw_sqlite3mc": "apsw", "PyStemmer": "Stemmer"}


@cache
def parse_modules() -> dict[Path, ast.Module]:
    return {module: ast.parse(module.read_text(encoding="utf-8")) for module in MODULES}


def name_of(module: Path) -> str:
    return module.relative_to(SOURCE).as_posix()


def dotted_name(module: Path) -> str:
    parts = ["recollect", *module.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def count_lines(module: Path) -> int:
    return len(module.read_text(encoding="utf-8").splitlines())


def iterate_imports(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted name of every module or name that a module imports."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                yield module
                yield from (f"{module}.{alias.name}" for alias in aliases)


def find_foreign_packages(tree: ast.AST) -> set[str]:
    names = {name.split(".")[0] for name in iterate_imports(tree)}
    return names - sys.stdlib_module_names - {"recollect"}


def test_modules_are_found():
    assert len(MODULES) > 100


def test_every_directory_with_modules_is_a_package():
    assert [name_of(module) for module in MODULES if not (module.parent / "__init__.py").is_file()] == []


def test_modules_are_at_most_800_lines():
    assert {name_of(module): count_lines(module) for module in MODULES if count_lines(module) > MAX_LINES} == {}


def test_module_count_is_bounded():
    assert len(MODULES) <= MAX_MODULES


def test_short_modules_have_several_importers():
    """Exempt: providers, because each SDK is imported in one module only."""
    importers = defaultdict(set)
    for module, tree in parse_modules().items():
        for name in iterate_imports(tree):
            importers[name].add(module)
    short = [
        name_of(module)
        for module in MODULES
        if module.name not in ("__init__.py", "__main__.py")
        and module.parent.name != "providers"
        and count_lines(module) < MIN_LINES_OF_A_SINGLE_IMPORTER
        and len(importers[dotted_name(module)] - {module}) == 1
    ]
    assert short == []


def test_module_docstrings_start_with_a_short_sentence():
    opening = {
        module: (ast.get_docstring(tree) or "").split("\n\n")[0].strip() for module, tree in parse_modules().items()
    }
    assert [name_of(module) for module, text in opening.items() if not text.endswith(".") or len(text) > 200] == []


def test_module_names_are_not_vague():
    assert [
        name_of(module)
        for module in MODULES
        if VAGUE_NAMES.intersection(module.relative_to(SOURCE).with_suffix("").parts)
    ] == []


def test_class_names_are_unique():
    """Exempt: `recollect.sync`, whose classes have the names of those they wrap, and the contract tests."""
    places = defaultdict(list)
    for module, tree in parse_modules().items():
        if name_of(module) != "sync.py" and not name_of(module).startswith("testing/"):
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(name_of(module))
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_imported_packages_are_declared():
    """The development environment has more packages than a user's: an undeclared import fails only there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    names = [re.split(r"[^\w-]", line)[0].replace("-", "_") for line in [*project["dependencies"], *extras]]
    declared = {MODULE_NAMES.get(name, name) for name in names}
    foreign = {name_of(module): find_foreign_packages(tree) - declared for module, tree in parse_modules().items()}
    assert {module: packages for module, packages in foreign.items() if packages} == {}


def test_locks_pin_by_hash_and_name_no_index():
    assert LOCKS
    for lock in LOCKS:
        text = lock.read_text(encoding="utf-8")
        assert "://" not in text
        assert not re.search(r"^--?(index-url|extra-index-url|find-links|i |f )", text, re.MULTILINE)
        pins = re.split(r"\n(?=[A-Za-z0-9])", text.strip())
        assert pins
        assert [pin.split()[0] for pin in pins if "==" not in pin or "--hash=sha256:" not in pin] == []


def test_core_installs_at_most_20_packages():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    packages = {
        line.split("==")[0] for line in lines if re.match(r"[a-z]", line) and "sys_platform == 'win32'" not in line
    }
    assert len(packages) <= 20, f"{len(packages)} packages: {sorted(packages)}"


def test_architecture_page_is_at_most_150_lines():
    assert count_lines(ROOT / "docs" / "ARCHITECTURE.md") <= 150
