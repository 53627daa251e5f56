"""A process that gives a store one key after the other, until somebody kills it."""

from __future__ import annotations

import sys
from itertools import cycle
from pathlib import Path

from recollect.stores.sqlite import Key
from recollect.stores.sqlite import rekeying as product
from recollect.stores.sqlite.file import is_as
from tests.crash import mutants
from tests.crash.ledger import note

KEYS = {"first": Key("1f" * 32), "second": Key("2e" * 32), "none": None}


def rekey(path: Path, notes: int) -> None:
    """From whichever it has to the next: encrypted, with another key, and decrypted again."""
    names = cycle(KEYS)
    while not is_as(path, KEYS[name := next(names)]):
        pass
    while True:
        old, name = name, next(names)
        note(notes, old, name)
        product.change_key(path, KEYS[old], KEYS[name])


def main(arguments: list[str]) -> None:
    mutants.apply()
    path, notes = arguments
    rekey(Path(path), int(notes))


if __name__ == "__main__":
    main(sys.argv[1:])
