"""The URL of a database, and in it what is not the driver's business: where receipts of erasures are kept."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

from recollect.errors import BadSettings

_RECEIPTS = "receipts="


def parted(url: str) -> tuple[str, Path | None]:
    """The URL as the driver takes it, and the file of receipts if one is named."""
    address, _, query = url.partition("?")
    options = query.split("&") if query else []
    named = [option for option in options if option.startswith(_RECEIPTS)]
    others = [option for option in options if option not in named]
    if not named:
        return url, None
    path = unquote(named[-1].removeprefix(_RECEIPTS))
    if not path.strip():
        raise BadSettings("receipts= in the URL names no file; write ?receipts=/PATH/TO/erasures.jsonl")
    return address + ("?" + "&".join(others) if others else ""), Path(os.path.abspath(os.path.expanduser(path)))
