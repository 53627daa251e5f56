"""What a server has to be set to before memory is trusted to it, and the commands that set it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from recollect.errors import Unsupported

_log = logging.getLogger("recollect.stores")

OLDEST = (6, 2)


def check_version(place: str, info: Mapping[str, object]) -> None:
    """Valkey tells the version of Redis that it is compatible with."""
    version = str(info.get("redis_version", "0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        raise Unsupported(
            f"{place} runs Redis {version}, which is too old; upgrade it to {OLDEST[0]}.{OLDEST[1]} or newer"
        )


def check_promise(place: str, info: Mapping[str, object], config: Mapping[str, str] | None) -> None:
    """Refuse a server that loses what it acknowledged. `config` is None where nobody may ask for it."""
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        raise Unsupported(
            f"{place} drops what was written when its memory is full (maxmemory-policy {policy}), without a word; "
            "set it with: CONFIG SET maxmemory-policy noeviction"
        )
    if not int(str(info.get("aof_enabled", 0))):
        raise Unsupported(
            f"{place} keeps nothing between snapshots (appendonly no): a crash loses all since the last one; set it "
            "with: CONFIG SET appendonly yes, then CONFIG SET appendfsync always"
        )
    if config is None:
        _log.warning(
            "%s does not tell its configuration; see that appendfsync is `always`, or a power cut costs the last "
            "moment of checkpoints as well",
            place,
        )
        return
    match config.get("appendfsync"):
        case "always":
            return
        case "everysec":
            _log.warning(
                "%s is set to appendfsync everysec: what is promised durable, checkpoints above all, survives the "
                "death of any process, but a power cut may cost the last second or two; set it with: "
                "CONFIG SET appendfsync always",
                place,
            )
        case other:
            raise Unsupported(
                f"{place} leaves it to its system when the log reaches the disk (appendfsync {other}); set it with: "
                "CONFIG SET appendfsync always"
            )
