"""What no module may do with text: run it, revive objects from it, hand it to a shell, or make SQL of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")])

REVIVING = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
RUNNING = {
    *("eval", "exec", "compile", "builtins.eval", "builtins.exec", "builtins.compile", "code.interact"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen", "pty.spawn"),
    *("subprocess.getoutput", "subprocess.getstatusoutput", "pandas.read_pickle", "torch.load"),
    *("asyncio.create_subprocess_shell", "ctypes.CDLL", "runpy.run_path", "runpy.run_module"),
}
IMPORTING = {"__import__", "importlib.import_module", "import_module"}
# Imports by a name that is not written there, and where that name comes from.
IMPORTED_BY_NAME = {
    "src/recollect/__init__.py:__getattr__": "looked up in our own table of public names",
    "scripts/reference.py:api": "our own public names, to write the reference of them",
}

SQL = re.compile(
    r"^\s*(with|select|insert into|update|delete from|create|alter|drop|attach|pragma|vacuum|reindex|set local)\b"
    r"|\bselect .{1,80} from\b"
    r"|\b(from|into|join) recollect\.|\b(where|and) [a-z.]+ (=|in|is|between)|\border by [a-z]",
    re.IGNORECASE,
)
STATEMENTS = {"execute", "executemany", "executescript", "rows", "row", "pragma"}
CONSTANT = re.compile(r"(\w+\.)?_?[A-Z][A-Z0-9_]*")
# Statements that are put together when they are asked for: where, and of what. Never of anything that came in.
PUT_TOGETHER = {
    "postgres/batch.py": "a question that holdings.py has put together",
    "postgres/health.py": "constants, and a command that is shown and not run",
    "postgres/holdings.py": "the three clauses above it, of those kinds that a batch has",
    "postgres/index.py": "names and numbers through psycopg.sql, which quotes them",
    "postgres/locks.py": "a number: a hash of a space and a task",
    "postgres/log_files.py": "constants of this module",
    "postgres/look.py": "filters and our own clauses",
    "postgres/migrations/__init__.py": "our own files",
    "postgres/models.py": "constants of this module",
    "postgres/plan.py": "our own clauses by name",
    "postgres/scanning.py": "constants of this module",
    "postgres/search.py": "what look.py has put together",
    "postgres/server.py": "hands on what it is given; the tenant through psycopg.sql, which quotes it",
    "postgres/settling.py": "our own tables and indexes through psycopg.sql, which quotes them",
    "postgres/standing.py": "constants of this module, and clauses of two others",
    "postgres/statistics.py": "our own tables through psycopg.sql, which quotes them",
    "postgres/wiped.py": "constants of this module",
    "postgres/wiping.py": "our own tables by name, and constants of this module",
    "sqlite/filters.py": "clauses of our own for each condition; paths and values are bound",
    "sqlite/gather.py": "filters",
    "sqlite/generations.py": "one of two generations, by its letter",
    "sqlite/health.py": "a table of our own statements",
    "sqlite/lexicon.py": "one of two constants",
    "sqlite/matrix.py": "one of two generations",
    "sqlite/migrations/__init__.py": "our own files",
    "sqlite/moving.py": "one of two generations",
    "sqlite/physical.py": "a table of our own statements",
    "sqlite/records.py": "one of two generations",
    "sqlite/search.py": "filters",
    "sqlite/soundness.py": "one of two generations",
    "sqlite/wiping.py": "a table of our own statements",
    "sqlite/writer.py": "one of two constants",
}


def name_of(module: Path) -> str:
    return module.relative_to(ROOT).as_posix()


def dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            return f"{dotted(value)}.{attribute}"
        case _:
            return "?"


def aliases(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: `from os import system as run` is `os.system` all the same."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found.update({one.asname: one.name for one in names if one.asname})
            case ast.ImportFrom(module=str(module), names=names):
                found.update({one.asname or one.name: f"{module}.{one.name}" for one in names})
    return found


def called(node: ast.expr, known: dict[str, str]) -> str:
    head, dot, rest = dotted(node).partition(".")
    return known.get(head, head) + dot + rest


def running(tree: ast.AST, place: str = "") -> list[str]:
    """Everything by which a text could become running code."""
    known, found = aliases(tree), list[str]()
    within = {id(node): function.name for function in _functions(tree) for node in ast.walk(function)}
    for node in ast.walk(tree):
        line = f"line {getattr(node, 'lineno', 0)}"
        match node:
            case ast.Import(names=names):
                found += [f"{line}: import {one.name}" for one in names if one.name.split(".")[0] in REVIVING]
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in REVIVING:
                found.append(f"{line}: from {module}")
            case ast.Name(id=name) if name in RUNNING:  # also when it is only passed on
                found.append(f"{line}: {name}")
            case ast.Call(func=function, args=args):
                name = called(function, known)
                if name in RUNNING:
                    found.append(f"{line}: {name}(…)")
                named = f"{place}:{within.get(id(node), '')}" in IMPORTED_BY_NAME
                if name in IMPORTING and not named and not (args and isinstance(args[0], ast.Constant)):
                    found.append(f"{line}: {name} of a name that is not written there")
            case ast.keyword(arg="shell" | "allow_pickle" | "weights_only" as name, value=value) if not (
                isinstance(value, ast.Constant) and value.value is (name == "weights_only")
            ):
                found.append(f"{line}: {name}={ast.unparse(value)}")
    return found


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def made_of_text(tree: ast.AST) -> list[str]:
    """SQL that is put together of anything but constants, and statements that are run without being written there."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=values) if SQL.search(_literal(node)):
                parts = [ast.unparse(one.value) for one in values if isinstance(one, ast.FormattedValue)]
                if not all(map(CONSTANT.fullmatch, parts)):
                    found.append(f"line {node.lineno}: {ast.unparse(node):.80}")
            case ast.BinOp(op=ast.Add() | ast.Mod()) if SQL.search(_literal(node)):
                found.append(f"line {node.lineno}: {ast.unparse(node):.80}")
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format" | "join")) if (
                SQL.search(text)
            ):
                found.append(f"line {node.lineno}: {ast.unparse(node):.80}")
            case ast.Call(func=ast.Attribute(attr=attribute), args=[statement, *_]) if attribute in STATEMENTS:
                if not _is_written(statement):
                    found.append(f"line {node.lineno}: {ast.unparse(node):.80}")
    return found


def _literal(node: ast.AST) -> str:
    return "".join(one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _is_written(statement: ast.expr) -> bool:
    """A text, or a constant by its name; what is asked of a connection is no statement yet."""
    return (
        isinstance(statement, ast.Constant)
        or CONSTANT.fullmatch(dotted(statement).replace("connection", "C")) is not None
    )


def speaks_sql(module: Path) -> bool:
    # Chroma's file is SQLite's: an erasure writes it anew.
    places = ("/stores/sqlite/", "/stores/postgres/", "/stores/chroma/physical.py")
    return any(place in module.as_posix() for place in places)


def test_there_are_modules_to_look_at():
    assert len(MODULES) > 300
    assert len(list(filter(speaks_sql, MODULES))) > 50


@pytest.mark.parametrize("part", ["src", "scripts"])
def test_no_text_becomes_code(part: str):
    bad = {
        name_of(module): uses
        for module in MODULES
        if name_of(module).startswith(part) and (uses := running(ast.parse(module.read_text("utf-8")), name_of(module)))
    }
    assert bad == {}


def test_no_sql_is_made_of_text_but_where_the_reason_is_known():
    trees = {module: ast.parse(module.read_text("utf-8")) for module in MODULES}
    spoken = {module: made_of_text(tree) for module, tree in trees.items() if speaks_sql(module)}
    put_together = {name_of(module).split("/stores/")[1]: uses for module, uses in spoken.items() if uses}
    assert {name: uses for name, uses in put_together.items() if name not in PUT_TOGETHER} == {}
    assert sorted(PUT_TOGETHER) == sorted(put_together), "take out what is no longer put together"
    assert not any("sqlite3" in dict.values(aliases(tree)) for tree in trees.values())


def test_nobody_else_speaks_sql():
    """Statements are in the stores: nothing above them has any, of text or not."""
    statement = re.compile(r"^\s*(select .+ from|insert into|update \w+ set|delete from|create table)\b", re.IGNORECASE)
    found = [
        f"{name_of(module)}:{node.lineno}"
        for module in MODULES
        if "/src/" in module.as_posix() and not speaks_sql(module)
        for node in ast.walk(ast.parse(module.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and statement.search(node.value)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        *("import pickle", "from marshal import loads as read", "import shelve", "import dill", "import joblib as j"),
        *("eval(text)", "map(eval, texts)", "exec(text)", "compile(text, '', 'exec')", "builtins.eval(text)"),
        *("import yaml\nyaml.load(text)", "from yaml import load\nload(text)", "import yaml as y\ny.load(text)"),
        *("__import__(name)", "import importlib\nimportlib.import_module(name)", "import os\nos.system(text)"),
        *("import subprocess\nsubprocess.run(text, shell=True)", "subprocess.run(text, shell=maybe)"),
        *("from os import popen as p\np(text)", "numpy.load(path, allow_pickle=True)", "torch.load(path)"),
        *("asyncio.create_subprocess_shell(text)", "torch.load(path, weights_only=False)"),
    ],
)
def test_the_ban_sees_what_it_bans(line: str):
    assert running(ast.parse(line))


@pytest.mark.parametrize(
    "line",
    [
        "connection.execute(f'select * from {table}')",
        "connection.execute('select * from records where id = ' + id)",
        "connection.execute('select * from records where id = %s' % id)",
        "connection.execute('select {}'.format(name))",
        "connection.execute(statement)",
        "connection.executemany(make(name), rows)",
        "work.rows(f'select {COLUMNS} from recollect.records where {clause}', values)",
        "QUERY = f'delete from {table}'",
        "QUERY = 'select ' + ', '.join(names)",
        "', '.join(['delete from records']).format(name)\nx = 'insert into {}'.format(name)",
    ],
)
def test_the_ban_on_sql_of_text_sees_it(line: str):
    assert made_of_text(ast.parse(line))


@pytest.mark.parametrize(
    "line",
    [
        "connection.execute('select id from records where space = ?', (space,))",
        "connection.execute(_FIND, (space,))",
        "_FIND = f'select {ITEM} from records where space = ?'",
        "raise BadInput(f'where has {count} conditions')",
        "import re\nre.compile(text)",
        "import importlib\nimportlib.import_module('json')",
    ],
)
def test_and_leaves_alone_what_is_harmless(line: str):
    assert made_of_text(ast.parse(line)) == running(ast.parse(line)) == []
