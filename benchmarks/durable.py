"""The peers whose steps are timed beside ours: DBOS on SQLite and LangGraph's SqliteSaver, each asked for FULL sync.

A task is the same program everywhere, in each one's own idiom: a state is given at the beginning, every step reads it
and returns a number. Both run synchronously, each call in the thread that makes it: that is the quicker way for them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypedDict

# Nothing leaves the machine while a benchmark runs; read when the peers are imported.
_SILENT = {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false", "OTEL_SDK_DISABLED": "true"}
_INSTALL = "python -m pip install -r benchmarks/requirements.txt"
_SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}

Body = Callable[[Any], int]


class Peer(Protocol):
    name: str
    settings: str
    """The journal and sync that the connection says it has, once open."""

    @property
    def commits(self) -> int:
        """Transactions that changed something, so far."""

    def open(self, path: Path) -> None: ...

    def run(self, task: str, state: dict[str, Any], body: Body) -> None:
        """One task from its beginning to its end; `body` is what each step does."""

    def close(self) -> None: ...


def settings_of(connection: sqlite3.Connection) -> str:
    (journal,) = connection.execute("pragma journal_mode").fetchone()
    (synchronous,) = connection.execute("pragma synchronous").fetchone()
    return f"{journal}, {_SYNCHRONOUS[synchronous]}"


class Dbos:
    """A workflow of durable steps, the system database in a SQLite file.

    DBOS leaves SQLite's rollback journal on. WAL is quicker and what everybody else here has, so it is switched on
    unless it is to run as installed.
    """

    def __init__(self, steps: int, *, wal: bool = True) -> None:
        from dbos import DBOS, SetWorkflowID
        from sqlalchemy import Engine, event

        self.name = "DBOS" if wal else "DBOS as installed"
        self.settings = ""
        self.commits = 0
        self._wal = wal
        self._dbos: Any = DBOS
        self._named: Any = SetWorkflowID
        self._body: Body = lambda state: 0
        # DBOS makes its own engine; what holds for every engine holds for that one, too.
        event.listen(Engine, "connect", self._connected)
        event.listen(Engine, "commit", self._committed)

        def step(state: dict[str, Any]) -> int:
            return self._body(state)

        durable = DBOS.step(name="step")(step)

        def workflow(state: dict[str, Any]) -> int:
            done = 0
            for _ in range(steps):
                done = durable(state)
            return done

        self._workflow: Any = DBOS.workflow(name="workflow")(workflow)

    def open(self, path: Path) -> None:
        if self._wal:  # stays with the file
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("pragma journal_mode = wal")
        url = f"sqlite:///{path}"
        config = {"name": "steps", "system_database_url": url, "log_level": "ERROR", "enable_otlp": False}
        self._dbos(config=config)
        self._dbos.launch()

    def run(self, task: str, state: dict[str, Any], body: Body) -> None:
        self._body = body
        with self._named(task):
            self._workflow(state)

    def close(self) -> None:
        self._dbos.destroy()

    def _connected(self, connection: sqlite3.Connection, record: Any) -> None:
        connection.execute("pragma synchronous = full")
        self.settings = settings_of(connection)

    def _committed(self, connection: Any) -> None:
        changes = connection.connection.dbapi_connection.total_changes
        self.commits += changes != connection.info.get("changes", 0)
        connection.info["changes"] = changes


class _Counting(sqlite3.Connection):
    """Counts its commits that changed something."""

    commits = 0
    _changes = 0

    def commit(self) -> None:
        super().commit()
        self.commits += self.total_changes != self._changes
        self._changes = self.total_changes


class _State(TypedDict):
    text: str
    done: int


class LangGraph:
    """A graph of nodes in a row with SqliteSaver and durability="sync"."""

    name = "LangGraph SqliteSaver"

    def __init__(self, steps: int) -> None:
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.graph import END, START, StateGraph

        self.settings = ""
        self._steps = steps
        self._saver: Any = SqliteSaver
        self._graph: Any = None
        self._connection: _Counting | None = None
        self._body: Body = lambda state: 0

        def node(state: _State) -> dict[str, int]:
            return {"done": self._body(state)}

        self._plan: Any = StateGraph(_State)
        names = [f"step-{number}" for number in range(steps)]
        for name in names:
            self._plan.add_node(name, node)
        for before, after in zip([START, *names], [*names, END], strict=True):
            self._plan.add_edge(before, after)

    @property
    def commits(self) -> int:
        return self._connection.commits if self._connection is not None else 0

    def open(self, path: Path) -> None:
        # The saver guards the connection with a lock of its own.
        self._connection = sqlite3.connect(path, check_same_thread=False, factory=_Counting)
        self._connection.execute("pragma synchronous = full")
        saver = self._saver(self._connection)
        saver.setup()
        self.settings = settings_of(self._connection)
        self._graph = self._plan.compile(checkpointer=saver)

    def run(self, task: str, state: dict[str, Any], body: Body) -> None:
        self._body = body
        config = {"configurable": {"thread_id": task}, "recursion_limit": self._steps + 5}
        self._graph.invoke({**state, "done": 0}, config, durability="sync")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def installed(steps: int, *, wal: bool) -> tuple[list[Peer], list[str]]:
    """The peers that are there, and a line for each that is not."""
    os.environ.update(_SILENT)
    makers: dict[str, Callable[[], Peer]] = {
        "DBOS": lambda: Dbos(steps, wal=wal),
        "LangGraph": lambda: LangGraph(steps),
    }
    there: list[Peer] = []
    missing: list[str] = []
    for name, make in makers.items():
        try:
            there.append(make())
        except ModuleNotFoundError as error:
            missing.append(f"{name} is left out ({error}). To install it: {_INSTALL}")
    return there, missing
