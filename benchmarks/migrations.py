"""Duration of the migration of a SQLite store of the first schema, with its backup: 1 M items unless told otherwise.

python benchmarks/migrations.py [ITEMS] [--encrypted]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from recollect.stores.sqlite import EncryptionKey, SqliteStore
from recollect.stores.sqlite.connection import APPLICATION_ID, connect_with_key
from recollect.stores.sqlite.migrations import load_migrations
from recollect.validation import format_size

# As much as facts of one sentence take: the text, ten terms and a vector of 384 dimensions in float16.
FILL = (
    "insert into spaces (id, tenant, tier, user, agent, session, next_seq, items, words) "
    "values (1, 'default', 'semantic', 'ada', '', '', ?1, ?1, ?1 * 10)",
    """
    with recursive n(i) as (select 1 union all select i + 1 from n where i < ?1)
    insert into records (
        place, space, id, version, content, metadata, importance, created_at, source, trust, derived_from, by_user,
        by_agent, terms, length, passages
    )
    select (1 << 28) | i, 1, 'item' || i, 1, printf('%0120d', i), '{}', 0.5, 1767225600000000 + i, 'user', 1.0, '[]',
        'ada', '', printf('a%d b%d c%d d e f g h i j', i % 997, i % 9973, i), 10, 1
    from n
    """,
    "insert into vectors_a (id, data) select place << 6, randomblob(768) from records where ?1",
    """
    insert into words (rowid, terms)
    select place, '1_' || replace(terms, ' ', ' 1_')
    from records
    where ?1
    """,
)


def create_old_store(path: Path, key: EncryptionKey | None, items: int) -> None:
    connection = connect_with_key(path, key)
    connection.pragma("page_size", 8192)
    connection.execute(load_migrations()[0][1])
    connection.pragma("synchronous", "off")
    connection.execute("begin")
    for statement in FILL:
        connection.execute(statement, (items,))
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", 1)
    connection.execute("commit")
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("items", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--encrypted", action="store_true")
    arguments = parser.parse_args()
    key = EncryptionKey("0123456789abcdef" * 4) if arguments.encrypted else None
    with tempfile.TemporaryDirectory(prefix="recollect-migrations-") as directory:
        path = Path(directory) / "store.db"
        create_old_store(path, key, arguments.items)
        size = path.stat().st_size
        started = time.perf_counter()
        store = SqliteStore.open(path, key=key)
        seconds = time.perf_counter() - started
        asyncio.run(store.close())
        print(f"{arguments.items:,} items, {format_size(size)}: {seconds:.1f} s, {size / seconds / 2**20:.0f} MiB/s")


if __name__ == "__main__":
    main()
