"""From a URL to a store: the only module that names a backend."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

from recollect.clock import Clock, system_clock
from recollect.errors import BadSettings, ExtraMissing, Unsupported
from recollect.settings import Settings, shown
from recollect.stores.base import Log, Records, Store, Tasks
from recollect.values import Tier

NEEDS: Mapping[Tier, type] = {
    "semantic": Records,
    "procedural": Records,
    "conversation": Log,
    "episodic": Log,
    "checkpoints": Tasks,
}
"""The protocol that each stored tier is built on."""

# All others keep everything. Known beforehand: who names an engine for the wrong tier need not start it to be told.
_KEEPS: Mapping[str, tuple[type, ...]] = {"redis": (Log, Tasks), "rediss": (Log, Tasks), "chroma": (Records,)}

Place = str | Path | Mapping[str, str]
"""What names a store: a path, a URL, or a mapping of tiers to these."""


class Stores:
    """The store of each tier; tiers that name the same place share one."""

    def __init__(self, by_tier: Mapping[Tier, Store], urls: Mapping[Tier, str] | None = None) -> None:
        self._by_tier = dict(by_tier)
        self.urls = dict(urls or {})
        """Where each was opened, with the password if there is one."""

    def of(self, tier: Tier) -> Store:
        return self._by_tier[tier]

    def records(self, tier: Tier) -> Records:
        return cast(Records, self._by_tier[tier])

    def log(self, tier: Tier) -> Log:
        return cast(Log, self._by_tier[tier])

    def tasks(self) -> Tasks:
        return cast(Tasks, self._by_tier["checkpoints"])

    @property
    def every(self) -> list[Store]:
        """Each store once."""
        return list({id(store): store for store in self._by_tier.values()}.values())

    async def close(self) -> None:
        for store in self.every:
            await store.close()


async def connect(
    place: Place | None, settings: Settings, clock: Clock, *, tiers: Collection[Tier] = tuple(NEEDS)
) -> Stores:
    """Open what a URL, a path or a mapping of tiers names, or the settings where nothing is named."""
    urls = routed(place, settings, tiers)
    opened: dict[str, Store] = {}
    check_routes(urls)
    try:
        for url in dict.fromkeys(urls.values()):
            opened[url] = await open_one(url, settings, clock)
    except BaseException:
        for store in opened.values():
            await store.close()
        raise
    return Stores({tier: opened[url] for tier, url in urls.items()}, urls)


def routed(place: Place | None, settings: Settings, tiers: Collection[Tier] = tuple(NEEDS)) -> dict[Tier, str]:
    """The place of each tier. One file has one name, however it was spelled: tiers that name it share a store."""
    if place is None:
        return {tier: _one_name(settings.store_of(tier)) for tier in tiers}
    if not isinstance(place, Mapping):
        return dict.fromkeys(tiers, _one_name(place))
    for name in place:
        if name not in NEEDS and name != "default":
            raise BadSettings(f"there is no stored tier {name!r}; name {', '.join(NEEDS)} or 'default'")
    default = place.get("default", settings.store)
    return {tier: _one_name(place.get(tier, default)) for tier in tiers}


def file_of(url: str) -> Path | None:
    """The file that a place names, if it names one."""
    scheme, separator, rest = url.partition("://")
    named = rest.removeprefix("/") if separator else url
    if (separator and scheme != "sqlite") or url.startswith("chroma:") or not named:
        return None
    return Path(os.path.abspath(os.path.expanduser(named)))


def path_of(url: str) -> Path | None:
    """The file or directory that a place names, if it names one here."""
    if not url.startswith("chroma:"):
        return file_of(url)
    return Path(url.removeprefix("chroma:").removeprefix("//").partition("?")[0]).expanduser()


def change_keys(place: Place | None, settings: Settings, change: Literal["set", "remove"] | Path) -> list[Path]:
    """Encrypt the files of a place with the key in the settings, decrypt them, or give them the key in another file.

    Those that were changed; nobody may have them open. Who was stopped half-way does it again, and the rest follows.
    """
    from recollect.stores.sqlite import change_key, key_in, key_of

    key = key_of(settings)
    if key is None:
        raise BadSettings(
            "no key is set; `recollect key new FILE` makes one, and encryption_key_file "
            "(RECOLLECT_ENCRYPTION_KEY_FILE) says where it is"
        )
    old, new = (None, key) if change == "set" else (key, None if change == "remove" else key_in(Path(change)))
    files = {path: None for url in routed(place, settings).values() if (path := file_of(url)) is not None}
    if not files:
        raise BadSettings("only an SQLite file can be encrypted, and the settings name none")
    return [path for path in files if change_key(path, old, new)]


def new_key(file: Path) -> Path:
    """A key at random in a new file; where that is."""
    from recollect.stores.sqlite import new_key_file

    return new_key_file(file)


def _one_name(place: object) -> str:
    """A place as text; what can only be a mistake is refused before a file of that name appears."""
    if not isinstance(place, str | Path) or not str(place).strip():
        raise BadSettings(f"a store is a file path or a URL, not {place!r}")
    if str(place).startswith((":", "file:")):
        raise BadSettings(f"{str(place)!r} names no file; use a path, or memory:// for a store that is not kept")
    file = file_of(str(place))
    return str(place) if file is None else str(file)


def check_routes(urls: Mapping[Tier, str]) -> None:
    """Refuse the first place whose engine cannot keep the tiers that are to live there."""
    for url in dict.fromkeys(urls.values()):
        check_keeps(url, [tier for tier in urls if urls[tier] == url])


def check_keeps(url: str, tiers: Sequence[Tier]) -> None:
    """Refuse tiers on an engine that cannot keep them, with those that it can, and with what can keep the others."""
    kept = tiers_kept_at(url)
    lacking = [tier for tier in NEEDS if tier in tiers and tier not in kept]
    if lacking:
        named = {"default": "agent.db", kept[0]: shown(url)}
        listed = " ".join(f"{tier}={place}" for tier, place in named.items())
        raise Unsupported(
            f"{shown(url)} keeps {', '.join(kept)} and cannot keep {', '.join(lacking)}; keep those in a file or on "
            f"PostgreSQL: {json.dumps(named)}, or RECOLLECT_STORES='{listed}'"
        )


def tiers_kept_at(url: str) -> list[Tier]:
    """The tiers that the engine a place names can keep."""
    scheme = re.split("[+:]", url, maxsplit=1)[0]
    return [tier for tier, protocol in NEEDS.items() if protocol in _KEEPS.get(scheme, (protocol,))]


async def open_one(url: str, settings: Settings, clock: Clock) -> Store:
    """The store at one place, whatever it can keep."""
    scheme, separator, rest = url.partition("://")
    if url.startswith(("chroma:", "chroma+")):
        return await _open_chroma(url, settings, clock)
    if url == "memory://":
        from recollect.stores.in_memory import InMemoryStore

        return InMemoryStore(clock=clock)
    if not separator or scheme == "sqlite":
        path = Path((rest.removeprefix("/") if scheme == "sqlite" and separator else url) or settings.store)
        return await asyncio.to_thread(_open_sqlite, path, settings, clock)
    if scheme in ("postgresql", "postgres"):
        return await _open_postgres(url, settings, clock)
    if scheme.partition("+")[0] in ("redis", "rediss"):
        return await _open_redis(url, clock)
    raise BadSettings(
        f"{shown(url)!r} names no store that is known; use a file path, sqlite:///PATH, "
        "postgresql://USER@HOST/DATABASE, redis://HOST:PORT/DB, redis+cluster://HOST:PORT, chroma:./DIRECTORY, "
        "chroma+http://HOST:PORT or memory://"
    )


def _open_sqlite(path: Path, settings: Settings, clock: Clock) -> Store:
    from recollect.stores.sqlite import SqliteStore, key_of

    return SqliteStore.open(
        path,
        cache_bytes=settings.cache_mib << 20,
        readers=settings.readers,
        clock=clock,
        key=key_of(settings),
    )


async def _open_postgres(url: str, settings: Settings, clock: Clock) -> Store:
    try:
        from recollect.stores.postgres import PostgresStore
    except ImportError as error:
        raise ExtraMissing.of("a postgresql:// URL", "postgres", "'psycopg[binary]' pgvector") from error
    # Machines that share a server go by its clock, not each by its own; a clock that was given is somebody's wish.
    ours = None if clock is system_clock else clock
    return await PostgresStore.open(url, connections=2 * settings.readers, clock=ours)


async def _open_redis(url: str, clock: Clock) -> Store:
    try:
        from recollect.stores.redis import RedisStore
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        raise ExtraMissing.of("a redis:// URL", "redis", "redis") from error
    return await RedisStore.open(url, clock=clock)


async def _open_chroma(url: str, settings: Settings, clock: Clock) -> Store:
    try:
        from recollect.stores.chroma import ChromaStore
    except ModuleNotFoundError as error:
        if error.name != "chromadb":
            raise
        raise ExtraMissing.of("a chroma: URL", "chroma", "chromadb httpx") from error
    return await ChromaStore.open(url, cache_bytes=settings.cache_mib << 20, clock=clock)
