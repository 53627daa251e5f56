"""Every option in one place: its default, its environment variable, its reason, and where its value came from."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from recollect.errors import BadSettings

FILE = "recollect.toml"
PREFIX = "RECOLLECT_"

# Not options of a memory: the command line takes them for --user and the like when those are not given.
OF_THE_CALLER = ("RECOLLECT_USER", "RECOLLECT_SESSION", "RECOLLECT_AGENT", "RECOLLECT_TENANT")


class Secret:
    """A text, or a function that fetches it, that is handed on and never shown: printed or dumped it is a mask."""

    __slots__ = ("_text",)

    def __init__(self, text: str | Callable[[], str] = "") -> None:
        self._text = text.strip() if isinstance(text, str) else text

    def reveal(self) -> str:
        text = self._text if isinstance(self._text, str) else self._text()
        if not isinstance(text, str):
            raise BadSettings(f"the function for a key gave a {type(text).__name__}, and a key is a text")
        return text.strip()

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __str__(self) -> str:
        return "(set, and not shown)" if self else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in this process keeps the text; what is written elsewhere does not have it."""
        raise TypeError("a secret is not written down")

    def __deepcopy__(self, memo: Any) -> Secret:
        return self

    def __copy__(self) -> Secret:
        return self


_NO_KEY = Secret()


@dataclass(frozen=True, slots=True)
class MemoryTier:
    """One tier as data: where it lives, how much it keeps, for how long, and how it is asked."""

    name: str
    store: str
    max_items: int | None
    ttl_seconds: int | None
    retrieval: str

    def __post_init__(self) -> None:
        for name in ("max_items", "ttl_seconds"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise BadSettings(f"{name} of the tier {self.name!r} is a whole number from 1, or none, not {value!r}")


TIERS: tuple[MemoryTier, ...] = (
    MemoryTier("working", "process", 20, None, "sequential"),
    MemoryTier("episodic", "default", 1000, 86_400, "recency"),
    MemoryTier("semantic", "default", None, None, "meaning"),
    MemoryTier("procedural", "default", None, None, "key"),
)


# What a row says of a tier that has no store of its own.
_NO_PLACE = ("default", "process")

STORED = ("conversation", "episodic", "semantic", "procedural", "checkpoints")
"""The tiers that live in a store."""

_PASSWORD = re.compile(r"(?<=[?&]password=)[^&]*")


def shown(url: str) -> str:
    """A URL without its password: for people, logs and errors."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    who, at, where = rest.rpartition("@")  # the last: a password that was not encoded may hold anything
    user, colon, _ = who.partition(":")
    return f"{scheme}://{f'{user}:***' if colon else user}{at}{_PASSWORD.sub('***', where)}"


class Routes(Mapping[str, str]):
    """Which tier lives where; frozen, and printed without passwords."""

    __slots__ = ("_by_tier",)

    def __init__(self, by_tier: Mapping[str, str]) -> None:
        self._by_tier = dict(by_tier)

    def __getitem__(self, tier: str) -> str:
        return self._by_tier[tier]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_tier)

    def __len__(self) -> int:
        return len(self._by_tier)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._by_tier.items())))

    def __repr__(self) -> str:
        return repr({tier: shown(url) for tier, url in self._by_tier.items()})


_NOWHERE_ELSE = Routes({})

POLICIES = ("allow", "flag", "redact", "refuse")
"""What may be done with a secret that is about to be kept."""


def _option(default: Any, why: str) -> Any:
    return field(default=default, metadata={"why": why})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The effective options. `Settings.load()` reads the environment and `recollect.toml`."""

    store: str = _option("recollect.db", "where memory lives when a command or call names no store")
    embedder: str = _option("minilm", "which model turns text into vectors; fixed for the life of a store")
    threads: int = _option(0, "processor threads for the local model; 0 lets it choose")
    embed_batch: int = _option(64, "texts handed to the embedder at once when many are stored")
    embed_timeout: float = _option(120.0, "seconds before an embedder that does not answer counts as failed")
    embed_cache: int = _option(4096, "texts whose vectors are kept for repeated questions")
    cache_mib: int = _option(256, "memory for vectors of the scopes used last; more scopes stay fast, never required")
    readers: int = _option(4, "threads that answer questions on the SQLite file at the same time")
    min_relevance: float = _option(0.6, "hits below this are not worth showing; 0 shows everything")
    candidates: int = _option(
        50, "items that each kind of evidence may propose before they are ranked; half among facts"
    )
    max_content: int = _option(1_000_000, "characters in one item; longer texts are refused, not cut")
    max_state: int = _option(10_000_000, "bytes in one checkpoint of a task; larger states are refused")
    half_life_days: float = _option(180.0, "days in which an unused fact loses half its importance; less for news")
    importance_floor: float = _option(0.05, "importance that nothing fades below, so that age alone ranks nothing last")
    forget_below: float = _option(0.3, "facts that matter less than this may be forgotten; 0 forgets nothing")
    forget_after_days: float = _option(30.0, "days for which a fact must have lain unused before it may be forgotten")
    purge_grace_seconds: float = _option(3600.0, "what has expired is hidden at once and dropped this much later")
    llm: str = _option("", "a language model for cheap work, as in 'anthropic:claude-haiku-4-5'; empty: none is asked")
    llm_timeout: float = _option(120.0, "seconds before a language model that does not answer counts as failed")
    llm_budget_usd: float = _option(0.0, "dollars language models may cost a memory from opening to close; 0: no limit")
    llm_budget_tokens: int = _option(0, "the same in tokens, for models whose price is not known; 0: no limit")
    retries: int = _option(4, "how often a provider that is busy or out of reach is asked again; 0: never")
    openai_base_url: str = _option("", "where 'openai:…' models are instead: Ollama, vLLM, llama.cpp or a gateway")
    anthropic_api_key: str | Secret = field(
        default=_NO_KEY, metadata={"why": "the key for Anthropic, instead of ANTHROPIC_API_KEY"}
    )
    openai_api_key: str | Secret = field(
        default=_NO_KEY, metadata={"why": "the key for OpenAI, instead of OPENAI_API_KEY"}
    )
    voyage_api_key: str | Secret = field(
        default=_NO_KEY, metadata={"why": "the key for Voyage, instead of VOYAGE_API_KEY"}
    )
    lifecycle_llm_tokens: int = _option(20_000, "tokens one run may spend on a language model; 0 never asks it")
    stores: Mapping[str, str] = _option(
        _NOWHERE_ELSE,
        "tiers that live elsewhere than in `store`, as in 'episodic=redis://HOST checkpoints=redis://HOST'",
    )
    secrets: str = _option("redact", "keys, passwords and card numbers in what is kept: allow, flag, redact or refuse")
    personal_data: str = _option("flag", "the same for e-mail addresses, phone and account numbers")
    encryption_key: str | Secret | Callable[[], str] = field(
        default=_NO_KEY, metadata={"why": "encrypts the SQLite file: 64 hexadecimal digits or a passphrase"}
    )
    encryption_key_file: str = _option("", "a file that holds that key and that nobody else can read, instead")
    tiers: tuple[MemoryTier, ...] = _option(TIERS, "the tiers with their caps and lifetimes")

    def __post_init__(self) -> None:
        object.__setattr__(self, "stores", checked_stores(self.stores, ""))
        for option in fields(self):
            _check_kind(option.name, getattr(self, option.name), option.default, "")
            if isinstance(option.default, Secret):
                object.__setattr__(self, option.name, _hidden(getattr(self, option.name)))
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                raise BadSettings(f"{name} is {value!r}; it goes from {low:g} to {high:g}")
        for name in ("secrets", "personal_data"):
            if getattr(self, name) not in POLICIES:
                raise BadSettings(f"{name} is {getattr(self, name)!r}; it is one of {', '.join(POLICIES)}")
        if not all(isinstance(tier, MemoryTier) for tier in self.tiers):
            raise BadSettings("tiers is a tuple of MemoryTier")

    @classmethod
    def load(cls, *, environ: Mapping[str, str] | None = None, directory: Path | None = None, **given: Any) -> Settings:
        """Arguments, then `RECOLLECT_*`, then `recollect.toml`, then the defaults."""
        return cls(**{name: value for name, (value, _) in _found(environ, directory, given).items()})

    def store_of(self, tier: str) -> str:
        """Where a tier lives: by its own option, by its row among the tiers, or where everything does."""
        rows = [one.store for one in self.tiers if one.name == tier and one.store not in _NO_PLACE]
        return self.stores.get(tier) or (rows[0] if rows else self.stores.get("default", self.store))

    def tier(self, name: str) -> MemoryTier:
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise BadSettings(f"there is no tier {name!r}; the tiers are {', '.join(tier.name for tier in self.tiers)}")


_RANGES = (
    ("threads", 0, 256),
    ("embed_batch", 1, 4096),
    ("embed_timeout", 0.1, 86_400),
    ("embed_cache", 0, 10_000_000),
    ("cache_mib", 1, 1_000_000),
    ("readers", 1, 64),
    ("min_relevance", 0, 1),
    ("candidates", 10, 10_000),
    ("max_content", 1000, 100_000_000),
    ("max_state", 1000, 1_000_000_000),
    ("half_life_days", 0.01, 100_000),
    ("importance_floor", 0, 1),
    ("forget_below", 0, 1),
    ("forget_after_days", 0, 100_000),
    ("purge_grace_seconds", 0, 31_536_000),
    ("llm_timeout", 0.1, 86_400),
    ("llm_budget_usd", 0, 1_000_000),
    ("llm_budget_tokens", 0, 1_000_000_000_000),
    ("retries", 0, 20),
    ("lifecycle_llm_tokens", 0, 100_000_000),
)


def effective(
    environ: Mapping[str, str] | None = None, directory: Path | None = None, given: Mapping[str, Any] | None = None
) -> dict[str, tuple[Any, str]]:
    """Every option with its value and where that came from; of a key, only whether there is one."""
    found = _found(environ, directory, given)
    return {name: (_printable(name, value), origin) for name, (value, origin) in found.items()}


def _printable(name: str, value: Any) -> Any:
    if isinstance(value, Secret):
        return str(value)
    if name == "stores":
        return {tier: shown(url) for tier, url in value.items()}
    return shown(value) if name == "store" else value


def _found(
    environ: Mapping[str, str] | None, directory: Path | None, given: Mapping[str, Any] | None
) -> dict[str, tuple[Any, str]]:
    environ = os.environ if environ is None else environ
    file = (directory or Path.cwd()) / FILE
    from_file = _read(file)
    from_environ = {PREFIX + option.name.upper() for option in fields(Settings) if option.name != "tiers"}
    options: dict[str, tuple[Any, str]] = {}
    for option in fields(Settings):
        name, variable = option.name, PREFIX + option.name.upper()
        if given and given.get(name) is not None:
            value = given[name]
            options[name] = (_hidden(value) if isinstance(option.default, Secret) else value, "argument")
        elif variable in environ and variable in from_environ:
            options[name] = (_parsed(name, environ[variable], variable), variable)
        elif name in from_file:
            options[name] = (_from_file(name, from_file[name], file), str(file))
        else:
            options[name] = (option.default, "default")
    _refuse_slips(environ, from_environ | {*OF_THE_CALLER})
    for name in given or {}:
        if name not in options:
            raise BadSettings(f"there is no option {name!r}; the options are {', '.join(sorted(options))}")
    return options


def _refuse_slips(environ: Mapping[str, str], known: Collection[str]) -> None:
    """A variable that is all but one of ours is a slip of the pen; others with our prefix may be anybody's."""
    for variable in environ:
        if variable == f"{PREFIX}TIERS":
            raise BadSettings(f"{variable} is not read: tiers are set in {FILE}, as in [tiers.episodic]")
        if not variable.startswith(PREFIX) or variable in known:
            continue
        meant = get_close_matches(variable.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known], 1, 0.8)
        if meant:
            raise BadSettings(f"{variable} is no option; did you mean {PREFIX}{meant[0]}?")


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, and lists without an end
        raise BadSettings(f"{file} is not valid TOML: {error}") from error
    except OSError as error:
        raise BadSettings(f"{file} cannot be read: {error.strerror}") from error
    known = {option.name for option in fields(Settings)}
    for name in content:
        if name not in known:
            meant = get_close_matches(name, known, 1)
            way_out = f"did you mean {meant[0]!r}?" if meant else f"the options are {', '.join(sorted(known))}"
            raise BadSettings(f"{file} has the option {name!r}, which does not exist; {way_out}")
    return content


def checked_stores(given: Any, place: str) -> Routes:
    """A mapping of tiers to places, as a memory is opened with."""
    if not isinstance(given, Mapping) or not all(isinstance(url, str) for url in given.values()):
        raise BadSettings(f"stores{place} gives each tier a path or URL, as in episodic = 'redis://HOST'")
    for name in given:
        if name not in ("default", *STORED):
            raise BadSettings(f"stores{place} names {name!r}; name {', '.join(STORED)}, and all others 'default'")
    return Routes(given)


def _listed_stores(text: str, variable: str) -> Mapping[str, str]:
    """`episodic=redis://HOST checkpoints=redis://HOST`, parted by blanks: URLs may hold anything else."""
    pairs = [part.partition("=") for part in text.split()]
    run_together = re.search(rf"[,;](?:default|{'|'.join(STORED)})=", text)
    if run_together or not all(separator for _, separator, _ in pairs):
        raise BadSettings(f"{variable} is a list parted by blanks: 'episodic=redis://HOST checkpoints=redis://HOST'")
    return checked_stores({name: url for name, _, url in pairs}, f" in {variable}")


def _parsed(name: str, text: str, variable: str) -> Any:
    default: Any = next(option.default for option in fields(Settings) if option.name == name)
    if name == "stores":
        return _listed_stores(text, variable)
    try:
        return type(default)(text)
    except ValueError as error:
        raise BadSettings(f"{variable} is {text!r}, which is not a {type(default).__name__}") from error


def _from_file(name: str, value: Any, file: Path) -> Any:
    if name == "tiers":
        return _overridden(value, file)
    if name == "stores":
        return checked_stores(value, f" in {file}")
    default = next(option.default for option in fields(Settings) if option.name == name)
    _check_kind(name, value, default, f" in {file}")
    return _hidden(value) if isinstance(default, Secret) else value


def _hidden(value: Any) -> Any:
    """A key as a `Secret`; what cannot be one stays what it is, to be refused where settings are checked."""
    return Secret(value) if isinstance(value, str) or callable(value) else value


def _check_kind(name: str, value: Any, default: Any, place: str) -> None:
    if isinstance(default, Secret):
        if not isinstance(value, str | Secret) and not callable(value):
            raise BadSettings(f"{name}{place} is a {type(value).__name__}, and a key is a text")  # never what it holds
        return
    wanted = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise BadSettings(f"{name}{place} is {value!r}, which is not a {type(default).__name__}")


def _overridden(tables: Any, file: Path) -> tuple[MemoryTier, ...]:
    """`[tiers.episodic] ttl_seconds = 3600` changes that and leaves the rest of the table."""
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise BadSettings(f"tiers in {file} is a table for each tier, as in [tiers.episodic]")
    known = [tier.name for tier in TIERS]
    for name, table in tables.items():
        if name not in known:
            raise BadSettings(f"{file} names the tier {name!r}; the tiers are {', '.join(known)}")
        if "name" in table:
            raise BadSettings(f"{file} gives the tier {name!r} another name, which it cannot have")
    try:
        return tuple(replace(tier, **tables.get(tier.name, {})) for tier in TIERS)
    except TypeError as error:
        raise BadSettings(f"a tier in {file} has an option that does not exist: {error}") from error
