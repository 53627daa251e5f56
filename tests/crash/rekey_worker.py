"""A process that changes the key of a store repeatedly until it is killed."""

from __future__ import annotations

import sys
from itertools import cycle
from pathlib import Path

from recollect.stores.sqlite import EncryptionKey
from recollect.stores.sqlite import backup as product
from recollect.stores.sqlite.connection import is_encrypted_with
from tests.crash import mutants
from tests.crash.acknowledgments import note

KEYS = {"first": EncryptionKey("1f" * 32), "second": EncryptionKey("2e" * 32), "none": None}


def rekey(path: Path, notes: int) -> None:
    """Change the key in a cycle, from the current one on: first key, second key, no encryption."""
    names = cycle(KEYS)
    while not is_encrypted_with(path, KEYS[name := next(names)]):
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
