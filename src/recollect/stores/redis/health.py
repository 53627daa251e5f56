"""Checks of a server: version, durability settings, memory and connections."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recollect.clock import from_micros
from recollect.errors import Unsupported
from recollect.stores.health import DurabilityRisk, ResourceUsage, StoreStats

MIN_VERSION = (6, 2)
_FSYNC_ALWAYS = "CONFIG SET appendfsync always"

_logger = logging.getLogger("recollect.stores")

ServerInfo = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RedisNode:
    """The status of one server; `fsync` is None if it denies CONFIG."""

    info: ServerInfo
    fsync: str | None
    time_micros: int


def build_stats(nodes: Sequence[RedisNode]) -> StoreStats:
    """Return the stats of a server, or of a cluster by its worst node."""
    risks = [risk for node in nodes for risk in _find_setting_risks(node)]
    if any(str(node.info.get("aof_last_write_status", "ok")) != "ok" for node in nodes):
        problem = "the last write to the append-only file failed"
        risks.append(DurabilityRisk(problem, "free space on the server's disk"))
    first = nodes[0]
    return StoreStats(
        engine=_get_engine_name(first.info),
        versions={_get_engine_name(first.info): min((_get_version(node.info) for node in nodes), key=_parse_version)},
        durability="a crash of its processes" if risks else "power loss",
        durability_risks=tuple(dict.fromkeys(risks)),
        now=from_micros(first.time_micros),
        bytes=sum(_read_int(node.info, "used_memory") for node in nodes),
        blocked_by="",
        resource_usage=tuple(usage for node in nodes for usage in _read_usage(node.info)),
    )


def _find_setting_risks(node: RedisNode) -> list[DurabilityRisk]:
    found = []
    policy = str(node.info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        problem = f"maxmemory-policy is {policy}: data is evicted when memory is full"
        found.append(DurabilityRisk(problem, "CONFIG SET maxmemory-policy noeviction"))
    if not _read_int(node.info, "aof_enabled"):
        problem = "appendonly is no: a crash loses all writes since the last snapshot"
        found.append(DurabilityRisk(problem, "CONFIG SET appendonly yes"))
    if node.fsync is None:
        problem = "appendfsync is not readable: unless it is always, a power loss may lose the last checkpoints"
        found.append(DurabilityRisk(problem, _FSYNC_ALWAYS, is_severe=False))
    elif node.fsync != "always":
        problem = f"appendfsync is {node.fsync}: a power loss loses the last writes"
        found.append(DurabilityRisk(problem, _FSYNC_ALWAYS, is_severe=node.fsync != "everysec"))
    return found


def _read_usage(info: ServerInfo) -> list[ResourceUsage]:
    return [
        ResourceUsage("memory", _read_int(info, "used_memory"), _read_int(info, "maxmemory")),
        ResourceUsage("connections", _read_int(info, "connected_clients"), _read_int(info, "maxclients")),
    ]


def _get_engine_name(info: ServerInfo) -> str:
    return "Valkey" if "valkey_version" in info else "Redis"


def _get_version(info: ServerInfo) -> str:
    return str(info.get("valkey_version") or info.get("redis_version", "0"))


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _read_int(info: ServerInfo, name: str) -> int:
    return int(str(info.get(name, 0) or 0))


def check_version(address: str, info: ServerInfo) -> None:
    """Raise Unsupported below MIN_VERSION. Valkey reports the Redis version that it is compatible with."""
    version = str(info.get("redis_version", "0"))
    if _parse_version(version)[:2] < MIN_VERSION:
        raise Unsupported(f"{address} runs Redis {version}; upgrade it to {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer")


def check_durability(address: str, node: RedisNode) -> None:
    """Raise Unsupported for a server that loses acknowledged writes; warn if a power loss may lose the last ones."""
    for risk in _find_setting_risks(node):
        if risk.is_severe:
            raise Unsupported(f"{address}: {risk.problem}; run: {risk.fix}")
        _logger.warning("%s: %s; run: %s", address, risk.problem, risk.fix)
