"""A real PgBouncer for tests, in transaction mode: each transaction may use another server connection."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from tests.servers.ports import free_port
from tests.servers.postgres import OWNER, PASSWORD, Server

_STAND_IN = "nobody"
_PATIENCE_SECONDS = 60.0
# Installed by `scripts/pgbouncer.sh`; a system-wide pgbouncer has precedence.
_FETCHED = Path(__file__).parents[2] / ".venv" / "pgbouncer"

# Few connections with round robin, so that consecutive transactions of a client rarely share one.
_CONFIG = """
[databases]
* = host=127.0.0.1 port={server} user={owner} password='{password}'

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = 3
server_round_robin = 1
max_client_conn = 200
"""


class Pooler:
    """A running PgBouncer; `close` deletes its files."""

    def __init__(self, server: Server) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="recollect-pgbouncer-"))
        self.port = free_port()
        users, config = self._home / "users.txt", self._home / "pgbouncer.ini"
        users.write_text(f'"{OWNER}" "{PASSWORD}"\n')
        config.write_text(
            _CONFIG.format(server=server.port, owner=OWNER, password=PASSWORD, port=self.port, users=users)
        )
        other: dict[str, object] = {}
        if os.geteuid() == 0:  # PgBouncer refuses to run as root
            for path in (self._home, users, config):
                shutil.chown(path, _STAND_IN)
            self._home.chmod(0o755)
            other = {"user": _STAND_IN, "group": pwd.getpwnam(_STAND_IN).pw_gid, "extra_groups": []}
        program, libraries = _program(self._home)
        self._process = subprocess.Popen(  # type: ignore[call-overload]
            [str(program), "-q", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath, "LD_LIBRARY_PATH": libraries},
            start_new_session=True,
            **other,
        )

    def url(self, database: str) -> str:
        """Return the URL of a database through the pooler, once the pooler accepts connections."""
        url = f"postgresql://{OWNER}@127.0.0.1:{self.port}/{database}"
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                psycopg.connect(url, connect_timeout=5).close()
                return url
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_PATIENCE_SECONDS)
        shutil.rmtree(self._home, ignore_errors=True)


def _program(home: Path) -> tuple[Path, str]:
    """Return the program and the path of its libraries, copied to a directory that other users can read."""
    if found := shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin:/usr/local/sbin"):
        return Path(found), ""
    assert _FETCHED.exists(), "pgbouncer is missing: run `sh scripts/pgbouncer.sh`"
    shutil.copytree(_FETCHED, home / "pgbouncer")
    libraries = {str(path.parent) for path in (home / "pgbouncer").rglob("*.so*")}
    return home / "pgbouncer" / "usr" / "sbin" / "pgbouncer", ":".join(sorted(libraries))
