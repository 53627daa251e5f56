"""Static checks: no module executes text, unpickles objects, uses a shell, or builds SQL from text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")])

UNPICKLING = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
EXECUTING = {
    *("eval", "exec", "compile", "builtins.eval", "builtins.exec", "builtins.compile", "code.interact"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen", "pty.spawn"),
    *("subprocess.getoutput", "subprocess.getstatusoutput", "pandas.read_pickle", "torch.load"),
    *("asyncio.create_subprocess_shell", "ctypes.CDLL", "runpy.run_path", "runpy.run_module"),
}
IMPORTING = {"__import__", "importlib.import_module", "import_module"}
# Imports by a computed name, and the origin of the name.
IMPORTED_BY_NAME = {
    "src/recollect/__init__.py:__getattr__": "looked up in our own table of public names",
    "src/recollect/types.py:__getattr__": "looked up in our own table of public names",
    "scripts/reference.py:api": "our own public names, to write the reference of them",
}

SQL = re.compile(
    r"^\s*(with|select|insert into|update|delete from|create|alter|drop|attach|pragma|vacuum|reindex|set local)\b"
    r"|\bselect .{1,80} from\b"
    r"|\b(from|into|join) recollect\.|\b(where|and) [a-z.]+ (=|in|is|between)|\border by [a-z]",
    re.IGNORECASE,
)
STATEMENTS = {"execute", "executemany", "executescript", "fetch_rows", "fetch_row", "pragma"}
CONSTANT = re.compile(r"(\w+\.)?_?[A-Z][A-Z0-9_]*")
# Functions that build statements, and the parts they use; none is external input.
ALLOWED_BUILDERS = {
    "postgres/connections.py:fetch_rows": "passes on a statement of its caller",
    "postgres/erasure.py:_rewrite_tables": "our own tables and indexes through psycopg.sql, which quotes them",
    "postgres/erasure.py:_stream_data": "our own tables and columns by name, and constants of its callers",
    "postgres/erasure.py:_stream_rows": "passes on a statement of its caller",
    "postgres/erasure.py:_delete_space": "our own tables by name, and constants of this module",
    "postgres/erasure.py:module": "joins column names of this module",
    "postgres/erasure.py:renew_statistics": "our own tables through psycopg.sql, which quotes them",
    "postgres/migrations/__init__.py:migrate": "our own files",
    "postgres/records.py:module": "joins column names of this module",
    "postgres/search.py:build_hnsw_index": "names and numbers through psycopg.sql, which quotes them",
    "postgres/search.py:module": "constants and clauses of this module",
    "postgres/tasks.py:module": "joins column names of this module",
    "postgres/transactions.py:execute": "passes on a statement of its caller; psycopg.sql quotes the tenant",
    "postgres/transactions.py:module": "constants and clauses of this module",
    "postgres/transactions.py:switch_tenant": "passes on a statement of its caller; psycopg.sql quotes the tenant",
    "sqlite/erasure.py:_join_live_values": "a table of our own statements",
    "sqlite/erasure.py:module": "joins column names of this module, and the tables of its rows by name",
    "sqlite/store.py:check_integrity": "one of two generations",
    "sqlite/migrations/__init__.py:_migrate": "our own files",
    "sqlite/records.py:_delete_vectors": "one of two generations",
    "sqlite/records.py:_embed": "one of two generations",
    "sqlite/records.py:_insert_vectors": "one of two generations",
    "sqlite/records.py:module": "joins column names of this module",
    "sqlite/records.py:prepare_model": "one of two generations, by its letter",
    "sqlite/records.py:switch_model": "one of two generations, by its letter",
    "sqlite/search.py:_build_condition": "clauses of our own for each condition; paths and values are bound",
    "sqlite/search.py:_find_allowed_places": "filters",
    "sqlite/search.py:_find_items": "filters",
    "sqlite/search.py:_load_briefs": "passes on a statement of its caller",
    "sqlite/search.py:_load_full_items": "one of two generations",
    "sqlite/search.py:find_unembedded": "one of two generations",
    "sqlite/search_cache.py:load_new_rows": "one of two constants",
    "sqlite/search_cache.py:_load_rows": "one of two generations",
    "sqlite/search_cache.py:iterate_vectors": "one of two generations",
    "sqlite/tasks.py:module": "joins column names of this module",
    "sqlite/threads.py:_set_synchronous": "one of two constants",
}


def name_of(module: Path) -> str:
    return module.relative_to(ROOT).as_posix()


def get_dotted_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            return f"{get_dotted_name(value)}.{attribute}"
        case _:
            return "?"


def aliases(tree: ast.AST) -> dict[str, str]:
    """Return the full name of each imported name: `from os import system as run` maps `run` to `os.system`."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found.update({alias.asname: alias.name for alias in names if alias.asname})
            case ast.ImportFrom(module=str(module), names=names):
                found.update({alias.asname or alias.name: f"{module}.{alias.name}" for alias in names})
    return found


def resolve_name(node: ast.expr, known: dict[str, str]) -> str:
    head, dot, rest = get_dotted_name(node).partition(".")
    return known.get(head, head) + dot + rest


def find_execution(tree: ast.AST, place: str = "") -> list[str]:
    """Return all uses that can execute a text as code."""
    known, found = aliases(tree), list[str]()
    within = {id(node): function.name for function in _functions(tree) for node in ast.walk(function)}
    for node in ast.walk(tree):
        line = f"line {getattr(node, 'lineno', 0)}"
        match node:
            case ast.Import(names=names):
                found += [f"{line}: import {alias.name}" for alias in names if alias.name.split(".")[0] in UNPICKLING]
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in UNPICKLING:
                found.append(f"{line}: from {module}")
            case ast.Name(id=name) if name in EXECUTING:  # also if it is passed as an argument
                found.append(f"{line}: {name}")
            case ast.Call(func=function, args=args):
                name = resolve_name(function, known)
                if name in EXECUTING:
                    found.append(f"{line}: {name}(…)")
                named = f"{place}:{within.get(id(node), '')}" in IMPORTED_BY_NAME
                if name in IMPORTING and not named and not (args and isinstance(args[0], ast.Constant)):
                    found.append(f"{line}: {name} of a computed name")
            case ast.keyword(arg="shell" | "allow_pickle" | "weights_only" as name, value=value) if not (
                isinstance(value, ast.Constant) and value.value is (name == "weights_only")
            ):
                found.append(f"{line}: {name}={ast.unparse(value)}")
    return found


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def find_built_sql(tree: ast.AST) -> dict[str, list[str]]:
    """Return the statements that are not constants, by the function that builds or runs them."""
    within = {id(node): function.name for function in _functions(tree) for node in ast.walk(function)}
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        uses: list[str] = []
        match node:
            case ast.JoinedStr(values=values) if SQL.search(_literal(node)):
                parts = [ast.unparse(part.value) for part in values if isinstance(part, ast.FormattedValue)]
                if not all(map(CONSTANT.fullmatch, parts)):
                    uses.append(f"line {node.lineno}: {ast.unparse(node):.80}")
            case ast.BinOp(op=ast.Add() | ast.Mod()) if SQL.search(_literal(node)):
                uses.append(f"line {node.lineno}: {ast.unparse(node):.80}")
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format" | "join")) if (
                SQL.search(text)
            ):
                uses.append(f"line {node.lineno}: {ast.unparse(node):.80}")
            case ast.Call(func=ast.Attribute(attr=attribute), args=[statement, *_]) if attribute in STATEMENTS:
                if not _is_written(statement):
                    uses.append(f"line {node.lineno}: {ast.unparse(node):.80}")
        if uses:
            found.setdefault(within.get(id(node), "module"), []).extend(uses)
    return found


def _literal(node: ast.AST) -> str:
    return "".join(
        part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )


def _is_written(statement: ast.expr) -> bool:
    """Return True for a literal, a named constant, or a method of a connection."""
    return (
        isinstance(statement, ast.Constant)
        or CONSTANT.fullmatch(get_dotted_name(statement).replace("connection", "C")) is not None
    )


def is_sql_module(module: Path) -> bool:
    return any(place in module.as_posix() for place in ("/stores/sqlite/", "/stores/postgres/"))


def test_modules_are_found():
    assert len(MODULES) > 150
    assert len(list(filter(is_sql_module, MODULES))) > 20


@pytest.mark.promise("S2")
@pytest.mark.parametrize("part", ["src", "scripts"])
def test_modules_do_not_execute_text(part: str):
    bad = {
        name_of(module): uses
        for module in MODULES
        if name_of(module).startswith(part)
        and (uses := find_execution(ast.parse(module.read_text("utf-8")), name_of(module)))
    }
    assert bad == {}


@pytest.mark.promise("S3")
def test_sql_is_built_only_by_listed_functions():
    trees = {module: ast.parse(module.read_text("utf-8")) for module in MODULES}
    built_sql = {module: find_built_sql(tree) for module, tree in trees.items() if is_sql_module(module)}
    builders = {
        f"{name_of(module).split('/stores/')[1]}:{function}": uses
        for module, built in built_sql.items()
        for function, uses in built.items()
    }
    assert {name: uses for name, uses in builders.items() if name not in ALLOWED_BUILDERS} == {}
    assert sorted(ALLOWED_BUILDERS) == sorted(builders), "remove entries that no longer build statements"
    assert not any("sqlite3" in dict.values(aliases(tree)) for tree in trees.values())


def test_sql_is_only_in_the_stores():
    """Code above the stores contains no SQL."""
    statement = re.compile(r"^\s*(select .+ from|insert into|update \w+ set|delete from|create table)\b", re.IGNORECASE)
    found = [
        f"{name_of(module)}:{node.lineno}"
        for module in MODULES
        if "/src/" in module.as_posix() and not is_sql_module(module)
        for node in ast.walk(ast.parse(module.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and statement.search(node.value)
    ]
    assert found == []


@pytest.mark.mutant("S2")
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
def test_find_execution_detects_banned_calls(line: str):
    assert find_execution(ast.parse(line))


@pytest.mark.mutant("S3")
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
def test_find_built_sql_detects_built_statements(line: str):
    assert find_built_sql(ast.parse(line))


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
def test_harmless_code_is_not_reported(line: str):
    assert find_built_sql(ast.parse(line)) == {}
    assert find_execution(ast.parse(line)) == []
