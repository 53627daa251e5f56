"""Generator of the code map, from the first sentence of each module, and of the list of decisions.

The packages are drawn in docs/ARCHITECTURE.md, and every module in docs/map.md.

python scripts/map.py           write them
python scripts/map.py --check   fail when one no longer says what the files say
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "recollect"
ARCHITECTURE = ROOT / "docs" / "ARCHITECTURE.md"
MAP = ROOT / "docs" / "map.md"
DECISIONS = ROOT / "docs" / "decisions" / "README.md"
COLUMN = 30


def drawing(deepest: int) -> str:
    return "\n".join(lines(PACKAGE, 0, deepest))


def lines(package: Path, depth: int, deepest: int) -> Iterator[str]:
    """Yield a line for each module, then for each package (from its __init__.py), in alphabetical order."""
    yield entry(f"{package.name}/", package / "__init__.py", depth)
    if depth == deepest:
        return
    children = sorted(child for child in package.iterdir() if not child.name.startswith(("_", ".")))
    for module in children:
        if module.suffix == ".py":
            yield entry(module.name, module, depth + 1)
    for child in children:
        if (child / "__init__.py").is_file():
            yield from lines(child, depth + 1, deepest)


def entry(name: str, module: Path, depth: int) -> str:
    return f"{'  ' * depth + name:<{COLUMN}}{sentence(module)}".rstrip()


def sentence(module: Path) -> str:
    """Return the first paragraph of a module's docstring, on one line."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def decisions() -> str:
    """Return a line for each decision except the template, by number."""
    return "\n".join(f"- [{title(page)}]({page.name})" for page in sorted(DECISIONS.parent.glob("[0-9]*.md"))[1:])


def title(page: Path) -> str:
    return page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def filled(document: Path, name: str, text: str) -> str:
    """Return the document with `text` between the markers `<!-- NAME: … -->` and `<!-- end of NAME -->`."""
    markers = re.compile(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    whole, found = markers.subn(lambda match: f"{match[1]}{text}\n{match[2]}", document.read_text(encoding="utf-8"))
    if not found:
        raise SystemExit(f"{document.name} has lost its markers <!-- {name}: … --> and <!-- end of {name} -->")
    return whole


def main() -> None:
    # A page for reading in one go, and one for looking things up.
    pages = {
        ARCHITECTURE: filled(ARCHITECTURE, "map", f"```text\n{drawing(deepest=1)}\n```"),
        MAP: filled(MAP, "map", f"```text\n{drawing(deepest=99)}\n```"),
        DECISIONS: filled(DECISIONS, "list", decisions()),
    }
    stale = [page for page, text in pages.items() if page.read_text(encoding="utf-8") != text]
    if stale and "--check" in sys.argv[1:]:
        raise SystemExit(f"stale: {', '.join(page.name for page in stale)}; run `make fix`")
    for page in stale:
        page.write_text(pages[page], encoding="utf-8")


if __name__ == "__main__":
    main()
