"""How a server is: its version, what it keeps, how full it is, and what time it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recollect.clock import from_micros
from recollect.stores.health import Fill, Lapse, Vitals

Info = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Node:
    """What one server says of itself; `fsync` is None where it keeps its configuration to itself."""

    info: Info
    fsync: str | None
    micros: int


def vitals(nodes: Sequence[Node]) -> Vitals:
    """Of a server, or of a cluster as its worst node is."""
    lapses = tuple(dict.fromkeys(lapse for node in nodes for lapse in _lapses(node)))
    first = nodes[0]
    return Vitals(
        engine=_engine(first.info),
        versions={_engine(first.info): min((_version(node.info) for node in nodes), key=_numbers)},
        survives="a crash of its processes" if lapses else "power loss",
        lapses=lapses,
        now=from_micros(first.micros),
        bytes=sum(_number(node.info, "used_memory") for node in nodes),
        locked="",
        fills=tuple(fill for node in nodes for fill in _fills(node.info)),
    )


def _lapses(node: Node) -> list[Lapse]:
    found = []
    policy = str(node.info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        found.append(
            Lapse(
                f"maxmemory-policy is {policy}: what was written goes when memory is full",
                "CONFIG SET maxmemory-policy noeviction",
            )
        )
    if not _number(node.info, "aof_enabled"):
        found.append(Lapse("appendonly is no: a crash loses all since the last snapshot", "CONFIG SET appendonly yes"))
    if str(node.info.get("aof_last_write_status", "ok")) != "ok":
        found.append(Lapse("its log could not be written at the last attempt", "free room on the server's disk"))
    always = "CONFIG SET appendfsync always"
    if node.fsync is None:
        found.append(Lapse("it does not tell its appendfsync", f"see that it is always: {always}", grave=False))
    elif node.fsync != "always":
        found.append(Lapse(f"appendfsync is {node.fsync}: a power cut costs the last moments", always, grave=False))
    return found


def _fills(info: Info) -> list[Fill]:
    return [
        Fill("memory", _number(info, "used_memory"), _number(info, "maxmemory")),
        Fill("connections", _number(info, "connected_clients"), _number(info, "maxclients")),
    ]


def _engine(info: Info) -> str:
    return "Valkey" if "valkey_version" in info else "Redis"


def _version(info: Info) -> str:
    return str(info.get("valkey_version") or info.get("redis_version", "0"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _number(info: Info, name: str) -> int:
    return int(str(info.get(name, 0) or 0))
