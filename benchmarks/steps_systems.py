"""Systems that `steps.py` compares with: DBOS on SQLite and LangGraph's SqliteSaver, both with synchronous=FULL.

A task is the same program everywhere, in the idiom of each system: it starts with a state, and each step reads the
state and returns a number. Both run synchronously in the calling thread, which is faster for them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypedDict

# Disables telemetry. The systems read these variables at import.
_NO_TELEMETRY = {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false", "OTEL_SDK_DISABLED": "true"}
_INSTALL = "python -m pip install -r benchmarks/requirements.txt"
_SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}

Body = Callable[[Any], int]


class Peer(Protocol):
    name: str
    settings: str
    """Journal mode and synchronous level, read from the open connection."""

    @property
    def commits(self) -> int:
        """The number of transactions so far that changed rows."""

    def open(self, path: Path) -> None: ...

    def run(self, task: str, state: dict[str, Any], body: Body) -> None:
        """Run a task to its end; each step calls `body` with the state."""

    def close(self) -> None: ...


def read_settings(connection: sqlite3.Connection) -> str:
    (journal,) = connection.execute("pragma journal_mode").fetchone()
    (synchronous,) = connection.execute("pragma synchronous").fetchone()
    return f"{journal}, {_SYNCHRONOUS[synchronous]}"


class Dbos:
    """DBOS workflow with durable steps and its system database in a SQLite file.

    DBOS uses SQLite's rollback journal by default. WAL is faster and all other systems use it, so it is enabled unless
    `wal` is False.
    """

    def __init__(self, steps: int, *, wal: bool = True) -> None:
        from dbos import DBOS, SetWorkflowID
        from sqlalchemy import Engine, event

        self.name = "DBOS" if wal else "DBOS as installed"
        self.settings = ""
        self.commits = 0
        self._wal = wal
        self._dbos: Any = DBOS
        self._set_workflow_id: Any = SetWorkflowID
        self._body: Body = lambda state: 0
        # DBOS creates its own engine, so the listeners are registered for all engines.
        event.listen(Engine, "connect", self._on_connect)
        event.listen(Engine, "commit", self._on_commit)

        def step(state: dict[str, Any]) -> int:
            return self._body(state)

        durable = DBOS.step(name="step")(step)

        def workflow(state: dict[str, Any]) -> int:
            number = 0
            for _ in range(steps):
                number = durable(state)
            return number

        self._workflow: Any = DBOS.workflow(name="workflow")(workflow)

    def open(self, path: Path) -> None:
        if self._wal:  # the mode is stored in the file
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("pragma journal_mode = wal")
        url = f"sqlite:///{path}"
        config = {"name": "steps", "system_database_url": url, "log_level": "ERROR", "enable_otlp": False}
        self._dbos(config=config)
        self._dbos.launch()

    def run(self, task: str, state: dict[str, Any], body: Body) -> None:
        self._body = body
        with self._set_workflow_id(task):
            self._workflow(state)

    def close(self) -> None:
        self._dbos.destroy()

    def _on_connect(self, connection: sqlite3.Connection, record: Any) -> None:
        connection.execute("pragma synchronous = full")
        self.settings = read_settings(connection)

    def _on_commit(self, connection: Any) -> None:
        changes = connection.connection.dbapi_connection.total_changes
        self.commits += changes != connection.info.get("changes", 0)
        connection.info["changes"] = changes


class _CountingConnection(sqlite3.Connection):
    """Connection that counts the commits that changed rows."""

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
    """LangGraph graph with a chain of nodes, SqliteSaver and durability="sync"."""

    name = "LangGraph SqliteSaver"

    def __init__(self, steps: int) -> None:
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.graph import END, START, StateGraph

        self.settings = ""
        self._steps = steps
        self._saver: Any = SqliteSaver
        self._graph: Any = None
        self._connection: _CountingConnection | None = None
        self._body: Body = lambda state: 0

        def node(state: _State) -> dict[str, int]:
            return {"done": self._body(state)}

        self._graph_builder: Any = StateGraph(_State)
        names = [f"step-{number}" for number in range(steps)]
        for name in names:
            self._graph_builder.add_node(name, node)
        for source, target in zip([START, *names], [*names, END], strict=True):
            self._graph_builder.add_edge(source, target)

    @property
    def commits(self) -> int:
        return self._connection.commits if self._connection is not None else 0

    def open(self, path: Path) -> None:
        # The saver protects the connection with its own lock.
        self._connection = sqlite3.connect(path, check_same_thread=False, factory=_CountingConnection)
        self._connection.execute("pragma synchronous = full")
        saver = self._saver(self._connection)
        saver.setup()
        self.settings = read_settings(self._connection)
        self._graph = self._graph_builder.compile(checkpointer=saver)

    def run(self, task: str, state: dict[str, Any], body: Body) -> None:
        self._body = body
        config = {"configurable": {"thread_id": task}, "recursion_limit": self._steps + 5}
        self._graph.invoke({**state, "done": 0}, config, durability="sync")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def load_installed(steps: int, *, wal: bool) -> tuple[list[Peer], list[str]]:
    """Return the installed systems, and a message for each one that is not installed."""
    os.environ.update(_NO_TELEMETRY)
    factories: dict[str, Callable[[], Peer]] = {
        "DBOS": lambda: Dbos(steps, wal=wal),
        "LangGraph": lambda: LangGraph(steps),
    }
    installed: list[Peer] = []
    missing: list[str] = []
    for name, create in factories.items():
        try:
            installed.append(create())
        except ModuleNotFoundError as error:
            missing.append(f"{name} is not measured ({error}). To install it: {_INSTALL}")
    return installed, missing
