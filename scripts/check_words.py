"""Word check of the prose: banned words and docstring openings, in src/, docs/ and README.md.

    python scripts/check_words.py [PATH ...]     print each finding as path:line: message; exit 1 if there is one

Exceptions are in scripts/words_allowed.txt: at most 20 lines of `path word reason`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "scripts" / "words_allowed.txt"
MAX_ALLOWED = 20

BANNED = re.compile(
    r"\b(whoever|whosever|somebody|nobody|everybody|anew|told of|called off|put right|mend(?:s|ed|ing)?|held up"
    r"|look(?:s|ed|ing)? after|who only)\b",
    re.IGNORECASE,
)
OPENINGS = ("What", "Who", "Whether", "How", "Of", "Which")
# Decision records quote measurements and names of their time, and are checked like every other page.
SUFFIXES = {".py", ".md", ".sql", ".lua", ".toml"}


def find_banned(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the banned word for each occurrence in a file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for match in BANNED.finditer(line):
            yield number, match[0].lower()


def find_openings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the first word of each docstring, also of an attribute, that starts with a banned opening."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            words = node.value.value.split()
            if words and words[0].rstrip(":,") in OPENINGS:
                yield node.lineno, words[0].rstrip(":,")


def load_allowed() -> set[tuple[str, str]]:
    """Return the allowed pairs of path and word; exit if there are more than 20 or one has no reason."""
    pairs = set()
    lines = [line for line in ALLOWED.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    if len(lines) > MAX_ALLOWED:
        raise SystemExit(f"{ALLOWED.name} has {len(lines)} lines; at most {MAX_ALLOWED} are allowed")
    for line in lines:
        path, word, reason = [*line.split(maxsplit=2), "", ""][:3]
        if not reason:
            raise SystemExit(f"{ALLOWED.name}: {line!r} has no reason")
        pairs.add((path, word.replace("_", " ")))
    return pairs


def list_files(arguments: list[str]) -> list[Path]:
    """Return the files below the given paths, or all that are checked."""
    starts = [ROOT / argument for argument in arguments] or [ROOT / "src", ROOT / "docs", ROOT / "README.md"]
    files = [start for start in starts if start.is_file()]
    for start in starts:
        files += [path for path in sorted(start.rglob("*")) if path.is_file()]
    return [path for path in files if path.suffix in SUFFIXES]


def main() -> None:
    allowed, used, findings = load_allowed(), set(), []
    for path in list_files(sys.argv[1:]):
        name = path.relative_to(ROOT).as_posix()
        for number, word in find_banned(path):
            if (name, word) in allowed:
                used.add((name, word))
            else:
                findings.append(f"{name}:{number}: banned word {word!r}")
        if path.suffix == ".py":
            findings += [f"{name}:{number}: docstring starts with {word!r}" for number, word in find_openings(path)]
    if not sys.argv[1:]:
        findings += [f"{ALLOWED.name}: {path} {word} is not needed" for path, word in sorted(allowed - used)]
    print("\n".join(findings) if findings else "words: clean")
    raise SystemExit(bool(findings))


if __name__ == "__main__":
    main()
