"""Opening of stores from URLs; the only module that names a backend."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

from recollect.clock import Clock, system_clock
from recollect.errors import BadSettings, ExtraMissing, Unsupported
from recollect.settings import Settings, mask_password
from recollect.stores.base import Log, Records, Store, Tasks
from recollect.types import Tier

TIER_PROTOCOLS: Mapping[Tier, type] = {
    "semantic": Records,
    "procedural": Records,
    "conversation": Log,
    "episodic": Log,
    "checkpoints": Tasks,
}
"""Protocol that each stored tier needs."""

# All other backends implement every protocol. This table rejects a wrong tier before a connection is opened.
_BACKEND_PROTOCOLS: Mapping[str, tuple[type, ...]] = {
    "redis": (Log, Tasks),
    "rediss": (Log, Tasks),
    "chroma": (Records,),
}

StoreLocation = str | Path | Mapping[str, str]
"""Path, URL, or mapping of tiers to paths and URLs."""


class TierStores:
    """Store of each tier; tiers with the same location share a store."""

    def __init__(self, by_tier: Mapping[Tier, Store], urls: Mapping[Tier, str] | None = None) -> None:
        self._by_tier = dict(by_tier)
        self.urls = dict(urls or {})
        """URL of each tier, with its password."""

    def get_store(self, tier: Tier) -> Store:
        return self._by_tier[tier]

    def records(self, tier: Tier) -> Records:
        return cast(Records, self._by_tier[tier])

    def log(self, tier: Tier) -> Log:
        return cast(Log, self._by_tier[tier])

    def tasks(self) -> Tasks:
        return cast(Tasks, self._by_tier["checkpoints"])

    @property
    def all_stores(self) -> list[Store]:
        """Stores without duplicates."""
        return list({id(store): store for store in self._by_tier.values()}.values())

    async def close(self) -> None:
        for store in self.all_stores:
            await store.close()


async def open_stores(
    location: StoreLocation | None, settings: Settings, clock: Clock, *, tiers: Collection[Tier] = tuple(TIER_PROTOCOLS)
) -> TierStores:
    """Open the stores of a location; None takes the locations from the settings."""
    urls = resolve_locations(location, settings, tiers)
    opened: dict[str, Store] = {}
    check_routes(urls)
    try:
        for url in dict.fromkeys(urls.values()):
            opened[url] = await open_store(url, settings, clock)
    except BaseException:
        for store in opened.values():
            await store.close()
        raise
    return TierStores({tier: opened[url] for tier, url in urls.items()}, urls)


def resolve_locations(
    location: StoreLocation | None, settings: Settings, tiers: Collection[Tier] = tuple(TIER_PROTOCOLS)
) -> dict[Tier, str]:
    """Return the URL or absolute path of each tier, so that two spellings of a file share a store."""
    if location is None:
        return {tier: _normalize_location(settings.find_store(tier)) for tier in tiers}
    if not isinstance(location, Mapping):
        return dict.fromkeys(tiers, _normalize_location(location))
    for name in location:
        if name not in TIER_PROTOCOLS and name != "default":
            raise BadSettings(f"no stored tier {name!r}; use {', '.join(TIER_PROTOCOLS)} or 'default'")
    default = location.get("default", settings.store)
    return {tier: _normalize_location(location.get(tier, default)) for tier in tiers}


def parse_file_path(url: str) -> Path | None:
    """Return the SQLite file of a location; None if it is another kind of store."""
    scheme, separator, rest = url.partition("://")
    path = rest.removeprefix("/") if separator else url
    if (separator and scheme != "sqlite") or url.startswith("chroma:") or not path:
        return None
    return Path(os.path.abspath(os.path.expanduser(path)))


def parse_local_path(url: str) -> Path | None:
    """Return the local file or directory of a location; None if it is on a server."""
    if not url.startswith("chroma:"):
        return parse_file_path(url)
    return Path(url.removeprefix("chroma:").removeprefix("//").partition("?")[0]).expanduser()


def change_keys(
    location: StoreLocation | None, settings: Settings, change: Literal["set", "remove"] | Path
) -> list[Path]:
    """Encrypt files with the key of the settings, decrypt them, or change their key to the one in another file.

    Returns the files that changed. No process may have them open. After an interruption, run it again.
    """
    from recollect.stores.sqlite import change_key, load_key, read_key_file

    key = load_key(settings)
    if key is None:
        raise BadSettings(
            "no key is set. Create one with `recollect key new FILE` and set encryption_key_file "
            "(RECOLLECT_ENCRYPTION_KEY_FILE) to it"
        )
    old, new = (None, key) if change == "set" else (key, None if change == "remove" else read_key_file(Path(change)))
    files = {
        path: None
        for url in resolve_locations(location, settings).values()
        if (path := parse_file_path(url)) is not None
    }
    if not files:
        raise BadSettings("only SQLite files can be encrypted, and no tier is in one")
    return [path for path in files if change_key(path, old, new)]


def create_key(file: Path) -> Path:
    """Write a random key to a new file and return its path."""
    from recollect.stores.sqlite import create_key_file

    return create_key_file(file)


def _normalize_location(location: object) -> str:
    """Return a URL or an absolute path; raise `BadSettings` for a location that is certainly a mistake."""
    if not isinstance(location, str | Path) or not str(location).strip():
        raise BadSettings(f"a store must be a file path or a URL; got {location!r}")
    if str(location).startswith((":", "file:")):
        raise BadSettings(f"{str(location)!r} names no file. Use a path, or memory:// for a store without persistence")
    file = parse_file_path(str(location))
    return str(location) if file is None else str(file)


def check_routes(urls: Mapping[Tier, str]) -> None:
    """Raise `Unsupported` if a backend cannot keep one of its tiers."""
    for url in dict.fromkeys(urls.values()):
        check_supported_tiers(url, [tier for tier in urls if urls[tier] == url])


def check_supported_tiers(url: str, tiers: Sequence[Tier]) -> None:
    """Raise `Unsupported` if the backend of a URL cannot keep these tiers."""
    supported = list_supported_tiers(url)
    unsupported = [tier for tier in TIER_PROTOCOLS if tier in tiers and tier not in supported]
    if unsupported:
        example = {"default": "agent.db", supported[0]: mask_password(url)}
        variable = " ".join(f"{tier}={location}" for tier, location in example.items())
        raise Unsupported(
            f"{mask_password(url)} keeps {', '.join(supported)} and cannot keep {', '.join(unsupported)}; keep "
            f"those in a file or on PostgreSQL: {json.dumps(example)}, or RECOLLECT_STORES='{variable}'"
        )


def list_supported_tiers(url: str) -> list[Tier]:
    """Return the tiers that the backend of a URL can keep."""
    scheme = re.split("[+:]", url, maxsplit=1)[0]
    return [
        tier for tier, protocol in TIER_PROTOCOLS.items() if protocol in _BACKEND_PROTOCOLS.get(scheme, (protocol,))
    ]


async def open_store(url: str, settings: Settings, clock: Clock, *, migrates: bool = True) -> Store:
    """Open the store of a URL or path. With `migrates=False`, an older schema raises `SchemaTooOld`."""
    scheme, separator, rest = url.partition("://")
    if url.startswith(("chroma:", "chroma+")):
        with _require_extra("chroma", "chroma:"):
            from recollect.stores.chroma import ChromaStore
        return await ChromaStore.open(url, clock=clock)
    if url == "memory://":
        from recollect.stores.in_memory import InMemoryStore

        return InMemoryStore(clock=clock)
    if not separator or scheme == "sqlite":
        path = Path((rest.removeprefix("/") if scheme == "sqlite" and separator else url) or settings.store)
        return await asyncio.to_thread(_open_sqlite, path, settings, clock, migrates=migrates)
    if scheme in ("postgresql", "postgres"):
        with _require_extra("postgres", "postgresql://"):
            from recollect.stores.postgres import PostgresStore
        # Clients of a server share its clock, unless the caller passes another.
        client_clock = None if clock is system_clock else clock
        return await PostgresStore.open(url, connections=2 * settings.readers, clock=client_clock, migrates=migrates)
    if scheme.partition("+")[0] in ("redis", "rediss"):
        with _require_extra("redis", "redis://"):
            from recollect.stores.redis import RedisStore
        return await RedisStore.open(url, clock=clock)
    raise BadSettings(
        f"{mask_password(url)!r} names no store that is known. Use a file path, sqlite:///PATH, "
        "postgresql://USER@HOST/DATABASE, redis://HOST:PORT/DB, redis+cluster://HOST:PORT, chroma:./DIRECTORY, "
        "chroma+http://HOST:PORT or memory://"
    )


def _open_sqlite(path: Path, settings: Settings, clock: Clock, *, migrates: bool) -> Store:
    from recollect.stores.sqlite import SqliteStore, load_key

    return SqliteStore.open(
        path,
        cache_bytes=settings.cache_mib << 20,
        vacuum_limit_bytes=settings.vacuum_limit_mb * 1_000_000,
        readers=settings.readers,
        clock=clock,
        key=load_key(settings),
        migrates=migrates,
    )


@contextmanager
def _require_extra(extra: str, url: str) -> Iterator[None]:
    """Raise `ExtraMissing` if the driver of a backend cannot be imported."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("recollect"):
            raise
        raise ExtraMissing.for_feature(f"a {url} URL", extra) from error
