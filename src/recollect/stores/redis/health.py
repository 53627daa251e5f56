"""Checks of a server: version, durability settings, memory and connections."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recollect.clock import from_micros
from recollect.errors import Unsupported
from recollect.stores.health import DurabilityRisk, ResourceUsage, StoreStats

MIN_VERSION = (6, 2)
_FSYNC_ALWAYS = "CONFIG SET appendfsync always"

_logger = logging.getLogger("recollect.stores")

ServerInfo = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RedisNode:
    """The status of one server; `fsync` is None if it denies CONFIG."""

    info: ServerInfo
    fsync: str | None
    time_micros: int

    @property
    def version(self) -> str:
        return str(self.info.get("valkey_version") or self.info.get("redis_version", "0"))


def build_stats(nodes: Sequence[RedisNode]) -> StoreStats:
    """Return the stats of a server, or of a cluster by its worst node."""
    risks = [risk for node in nodes for risk in _find_setting_risks(node)]
    if any(node.info.get("aof_last_write_status", "ok") != "ok" for node in nodes):
        problem = "the last write to the append-only file failed"
        risks.append(DurabilityRisk(problem, "free space on the server's disk"))
    engine = "Valkey" if "valkey_version" in nodes[0].info else "Redis"
    limits = (("memory", "used_memory", "maxmemory"), ("connections", "connected_clients", "maxclients"))
    return StoreStats(
        engine=engine,
        versions={engine: min((node.version for node in nodes), key=_parse_version)},
        durability="a crash of its processes" if risks else "power loss",
        durability_risks=tuple(dict.fromkeys(risks)),
        now=from_micros(nodes[0].time_micros),
        bytes=sum(_read_int(node, "used_memory") for node in nodes),
        blocked_by="",
        resource_usage=tuple(
            ResourceUsage(resource, _read_int(node, used), _read_int(node, limit))
            for node in nodes
            for resource, used, limit in limits
        ),
    )


def _find_setting_risks(node: RedisNode) -> list[DurabilityRisk]:
    found = []
    policy = node.info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        problem = f"maxmemory-policy is {policy}: data is evicted when memory is full"
        found.append(DurabilityRisk(problem, "CONFIG SET maxmemory-policy noeviction"))
    if not _read_int(node, "aof_enabled"):
        problem = "appendonly is no: a crash loses all writes since the last snapshot"
        found.append(DurabilityRisk(problem, "CONFIG SET appendonly yes"))
    if node.fsync is None:
        problem = "appendfsync is not readable: unless it is always, a power loss may lose the last checkpoints"
        found.append(DurabilityRisk(problem, _FSYNC_ALWAYS, is_severe=False))
    elif node.fsync != "always":
        problem = f"appendfsync is {node.fsync}: a power loss loses the last writes"
        found.append(DurabilityRisk(problem, _FSYNC_ALWAYS, is_severe=node.fsync != "everysec"))
    return found


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _read_int(node: RedisNode, name: str) -> int:
    return int(node.info.get(name) or 0)


def check_version(address: str, info: ServerInfo) -> None:
    """Raise Unsupported below MIN_VERSION. Valkey reports the Redis version that it is compatible with."""
    version = str(info.get("redis_version", "0"))
    if _parse_version(version)[:2] < MIN_VERSION:
        raise Unsupported(f"{address} runs Redis {version}; upgrade it to {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer")


def check_nodes(address: str, nodes: Sequence[RedisNode]) -> None:
    """Raise Unsupported for an old server or one that loses acknowledged writes; warn if it may lose the last ones."""
    for node in nodes:
        check_version(address, node.info)
        for risk in _find_setting_risks(node):
            if risk.is_severe:
                raise Unsupported(f"{address}: {risk.problem}; run: {risk.fix}")
            _logger.warning("%s: %s; run: %s", address, risk.problem, risk.fix)
