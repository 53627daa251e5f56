"""After a process was killed in a directory: index files that may be torn are thrown away, for nothing is in them."""

from __future__ import annotations

import shutil
from pathlib import Path

from recollect.stores.chroma.address import Address
from recollect.stores.chroma.cells import PREFIX
from recollect.stores.chroma.collections import Collections

_SIGN = "header.bin"


def mended(address: Address, *, patience: float) -> Collections:
    """Open a directory whose last user was killed. Chroma makes an index anew where it finds none."""
    collections = Collections.open(address, patience=patience)
    directory = address.directory
    if directory is None or not all(name.startswith(PREFIX) for name in collections.names("")):
        return collections  # what others keep here may be nowhere but in an index
    collections.close()
    for sign in directory.glob(f"*/{_SIGN}"):
        shutil.rmtree(Path(sign).parent)
    return Collections.open(address, patience=patience)
