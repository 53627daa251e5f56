"""Settings: every option with its default, limits and reason, read from arguments, the environment and a file."""

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
from recollect.validation import check_choice, check_count, check_number

CONFIG_FILE = "recollect.toml"
ENV_PREFIX = "RECOLLECT_"

# Defaults of --user, --session, --agent and --tenant on the command line.
CALLER_VARIABLES = ("RECOLLECT_USER", "RECOLLECT_SESSION", "RECOLLECT_AGENT", "RECOLLECT_TENANT")


class Secret:
    """Text, or a function that returns it, that is masked when it is printed, logged or serialized."""

    __slots__ = ("_text",)

    def __init__(self, text: str | Callable[[], str] = "") -> None:
        self._text = text.strip() if isinstance(text, str) else text

    def reveal(self) -> str:
        text = self._text if isinstance(self._text, str) else self._text()
        if not isinstance(text, str):
            raise BadSettings(f"the function for a key must return a string; got {type(text).__name__}")
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
        """Refuse to be pickled. Copies within the process share the object."""
        raise TypeError("a secret cannot be pickled")

    def __deepcopy__(self, memo: Any) -> Secret:
        return self

    def __copy__(self) -> Secret:
        return self


_EMPTY_SECRET = Secret()


@dataclass(frozen=True, slots=True)
class MemoryTier:
    """Store, size limit and lifetime of a tier."""

    name: str
    store: str
    max_items: int | None
    ttl_seconds: int | None

    def __post_init__(self) -> None:
        for name in ("max_items", "ttl_seconds"):
            if (value := getattr(self, name)) is not None:
                check_count(f"{name} of the tier {self.name!r}", value, minimum=1, error=BadSettings)


TIERS: tuple[MemoryTier, ...] = (
    MemoryTier("working", "process", 20, None),
    MemoryTier("episodic", "default", 1000, 86_400),
    MemoryTier("semantic", "default", None, None),
    MemoryTier("procedural", "default", None, None),
)

# Values of MemoryTier.store for a tier without a store of its own.
_NO_OWN_STORE = ("default", "process")

STORED_TIERS = ("conversation", "episodic", "semantic", "procedural", "checkpoints")
"""Tiers that are kept in a store."""

_QUERY_PASSWORD = re.compile(r"(?<=[?&]password=)[^&]*")


def mask_password(url: str) -> str:
    """Return the URL without its password, for output, logs and errors."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    credentials, at, host = rest.rpartition("@")  # the last one: an unencoded password may contain others
    user, colon, _ = credentials.partition(":")
    return f"{scheme}://{f'{user}:***' if colon else user}{at}{_QUERY_PASSWORD.sub('***', host)}"


class TierRoutes(Mapping[str, str]):
    """Immutable mapping of tiers to store URLs, printed without passwords."""

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
        return repr({tier: mask_password(url) for tier, url in self._by_tier.items()})


_NO_ROUTES = TierRoutes({})

SECRET_POLICIES = ("allow", "flag", "redact", "refuse")
"""Treatments of a secret in a text to be stored."""


def _option(default: Any, why: str, low: float | None = None, high: float | None = None) -> Any:
    return field(default=default, metadata={"why": why, "limits": None if high is None else (low, high)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Effective options. `Settings.load()` reads the environment and `recollect.toml`."""

    store: str = _option("recollect.db", "location of the memory if a command or call names none")
    embedder: str = _option("minilm", "embedding model; fixed for the life of a store")
    threads: int = _option(0, "processor threads for the local model; 0 lets it choose", 0, 256)
    embed_timeout: float = _option(120.0, "seconds before a call of the embedder fails", 0.1, 86_400)
    cache_mib: int = _option(256, "memory for the vectors of recently used scopes", 1, 1_000_000)
    readers: int = _option(4, "threads that read the SQLite file in parallel", 1, 64)
    vacuum_limit_mb: int = _option(
        1024,
        "SQLite file size in MB above which the lifecycle, not `erase`, rewrites the file; 0: always",
        0,
        10_000_000,
    )
    min_relevance: float = _option(0.6, "hits below this are not shown; 0 shows all", 0, 1)
    max_content: int = _option(1_000_000, "characters of an item; longer texts are refused, not cut", 1000, 100_000_000)
    max_state: int = _option(10_000_000, "bytes of a checkpoint; larger states are refused", 1000, 1_000_000_000)
    checkpoint_ttl: float = _option(
        604_800.0, "seconds after the last checkpoint until a task expires", 1, 3_155_760_000
    )
    half_life_days: float = _option(
        180.0, "days in which an unused fact loses half its importance; less for news", 0.01, 100_000
    )
    forget_below: float = _option(0.3, "unused facts below this importance are forgotten; 0 forgets nothing", 0, 1)
    purge_grace_seconds: float = _option(
        3600.0, "seconds between the expiry of a row, which hides it, and its deletion", 0, 31_536_000
    )
    llm: str = _option("", "language model for cheap work, as in 'anthropic:claude-haiku-4-5'; empty uses none")
    llm_timeout: float = _option(120.0, "seconds before a call of a language model fails", 0.1, 86_400)
    llm_budget_usd: float = _option(
        0.0, "dollars that language models may cost from open to close; 0 is no limit", 0, 1_000_000
    )
    llm_budget_tokens: int = _option(
        0, "the same in tokens, for models without a known price; 0 is no limit", 0, 1_000_000_000_000
    )
    retries: int = _option(4, "repeated attempts if a provider is busy or unreachable; 0 is none", 0, 20)
    openai_base_url: str = _option("", "address of 'openai:…' models elsewhere: Ollama, vLLM, llama.cpp or a gateway")
    anthropic_api_key: str | Secret = field(
        default=_EMPTY_SECRET, metadata={"why": "key for Anthropic instead of ANTHROPIC_API_KEY"}
    )
    openai_api_key: str | Secret = field(
        default=_EMPTY_SECRET, metadata={"why": "key for OpenAI instead of OPENAI_API_KEY"}
    )
    voyage_api_key: str | Secret = field(
        default=_EMPTY_SECRET, metadata={"why": "key for Voyage instead of VOYAGE_API_KEY"}
    )
    lifecycle_llm_tokens: int = _option(
        20_000, "tokens a lifecycle run may spend on a language model; 0 uses none", 0, 100_000_000
    )
    stores: Mapping[str, str] = _option(
        _NO_ROUTES, "tiers in other stores, as in 'episodic=redis://HOST checkpoints=redis://HOST'"
    )
    secrets: str = _option("redact", "treatment of keys, passwords and card numbers: allow, flag, redact or refuse")
    personal_data: str = _option("flag", "the same for e-mail addresses, phone and account numbers")
    encryption_key: str | Secret | Callable[[], str] = field(
        default=_EMPTY_SECRET, metadata={"why": "key of the SQLite file: 64 hexadecimal digits or a passphrase"}
    )
    encryption_key_file: str = _option("", "file with that key, readable by its owner only")
    tiers: tuple[MemoryTier, ...] = _option(TIERS, "tiers with their limits and lifetimes")

    def __post_init__(self) -> None:
        object.__setattr__(self, "stores", validate_stores(self.stores, ""))
        for option in fields(self):
            _check_type(option.name, getattr(self, option.name), option.default, "")
            if isinstance(option.default, Secret):
                object.__setattr__(self, option.name, _wrap_secret(getattr(self, option.name)))
            if limits := option.metadata.get("limits"):
                check_number(
                    option.name, getattr(self, option.name), minimum=limits[0], maximum=limits[1], error=BadSettings
                )
        for name in ("secrets", "personal_data"):
            check_choice(name, getattr(self, name), SECRET_POLICIES, error=BadSettings)
        if not all(isinstance(tier, MemoryTier) for tier in self.tiers):
            raise BadSettings("tiers must be a tuple of MemoryTier")

    @classmethod
    def load(cls, *, environ: Mapping[str, str] | None = None, directory: Path | None = None, **given: Any) -> Settings:
        """Return the options from arguments, then `RECOLLECT_*`, then `recollect.toml`, then the defaults."""
        return cls(**{name: value for name, (value, _) in _resolve_options(environ, directory, given).items()})

    def find_store(self, tier: str) -> str:
        """Return the location of a tier: from `stores`, from its row of `tiers`, or the default store."""
        rows = [row.store for row in self.tiers if row.name == tier and row.store not in _NO_OWN_STORE]
        return self.stores.get(tier) or (rows[0] if rows else self.stores.get("default", self.store))

    def tier(self, name: str) -> MemoryTier:
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise BadSettings(f"no tier {name!r}; the tiers are {', '.join(tier.name for tier in self.tiers)}")


def load_effective(
    environ: Mapping[str, str] | None = None, directory: Path | None = None, given: Mapping[str, Any] | None = None
) -> dict[str, tuple[Any, str]]:
    """Return every option with its value and origin; keys are masked."""
    options: dict[str, tuple[Any, str]] = {}
    for name, (value, origin) in _resolve_options(environ, directory, given).items():
        if name == "stores":
            value = {tier: mask_password(url) for tier, url in value.items()}
        elif name == "store" or isinstance(value, Secret):
            value = mask_password(str(value))
        options[name] = (value, origin)
    return options


def _resolve_options(
    environ: Mapping[str, str] | None, directory: Path | None, given: Mapping[str, Any] | None
) -> dict[str, tuple[Any, str]]:
    environ = os.environ if environ is None else environ
    file = (directory or Path.cwd()) / CONFIG_FILE
    from_file = _read_config_file(file)
    from_environ = {ENV_PREFIX + option.name.upper() for option in fields(Settings) if option.name != "tiers"}
    options: dict[str, tuple[Any, str]] = {}
    for option in fields(Settings):
        name, variable = option.name, ENV_PREFIX + option.name.upper()
        if given and given.get(name) is not None:
            value = given[name]
            options[name] = (_wrap_secret(value) if isinstance(option.default, Secret) else value, "argument")
        elif variable in environ and variable in from_environ:
            options[name] = (_parse_variable(name, option.default, environ[variable], variable), variable)
        elif name in from_file:
            options[name] = (_parse_file_value(name, option.default, from_file[name], file), str(file))
        else:
            options[name] = (option.default, "default")
    _refuse_typos(environ, from_environ | {*CALLER_VARIABLES})
    for name in given or {}:
        if name not in options:
            raise BadSettings(f"no option {name!r}; the options are {', '.join(sorted(options))}")
    return options


def _refuse_typos(environ: Mapping[str, str], known: Collection[str]) -> None:
    """Raise `BadSettings` for a variable that resembles an option; other variables with the prefix are ignored."""
    for variable in environ:
        if variable == f"{ENV_PREFIX}TIERS":
            raise BadSettings(f"{variable} is not read; set tiers in {CONFIG_FILE}, as in [tiers.episodic]")
        if not variable.startswith(ENV_PREFIX) or variable in known:
            continue
        names = [name.removeprefix(ENV_PREFIX) for name in known]
        if matches := get_close_matches(variable.removeprefix(ENV_PREFIX), names, 1, 0.8):
            raise BadSettings(f"{variable} is not an option. Did you mean {ENV_PREFIX}{matches[0]}?")


def _read_config_file(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # RecursionError: deeply nested lists
        raise BadSettings(f"{file} is not valid TOML: {error}") from error
    except OSError as error:
        raise BadSettings(f"{file} cannot be read: {error.strerror}") from error
    known = {option.name for option in fields(Settings)}
    for name in content:
        if name not in known:
            matches = get_close_matches(name, known, 1)
            hint = f"Did you mean {matches[0]!r}?" if matches else f"The options are {', '.join(sorted(known))}"
            raise BadSettings(f"{file} has the unknown option {name!r}. {hint}")
    return content


def validate_stores(given: Any, place: str) -> TierRoutes:
    """Return a mapping of tiers to locations; raise `BadSettings` for an unknown tier."""
    if not isinstance(given, Mapping) or not all(isinstance(url, str) for url in given.values()):
        raise BadSettings(f"stores{place} must map tiers to paths or URLs, as in episodic = 'redis://HOST'")
    for name in given:
        if name not in ("default", *STORED_TIERS):
            raise BadSettings(
                f"stores{place} has the unknown tier {name!r}; use {', '.join(STORED_TIERS)} or 'default'"
            )
    return TierRoutes(given)


def _parse_store_list(text: str, variable: str) -> Mapping[str, str]:
    """Parse `episodic=redis://HOST checkpoints=redis://HOST`, separated by spaces, which URLs do not contain."""
    pairs = [part.partition("=") for part in text.split()]
    has_other_separator = re.search(rf"[,;](?:default|{'|'.join(STORED_TIERS)})=", text)
    if has_other_separator or not all(separator for _, separator, _ in pairs):
        raise BadSettings(
            f"{variable} must be a list separated by spaces, as in 'episodic=redis://HOST checkpoints=redis://HOST'"
        )
    return validate_stores({name: url for name, _, url in pairs}, f" in {variable}")


def _parse_variable(name: str, default: Any, text: str, variable: str) -> Any:
    if name == "stores":
        return _parse_store_list(text, variable)
    try:
        return type(default)(text)
    except ValueError as error:
        raise BadSettings(f"{variable} must be a {type(default).__name__}; got {text!r}") from error


def _parse_file_value(name: str, default: Any, value: Any, file: Path) -> Any:
    if name == "tiers":
        return _override_tiers(value, file)
    if name == "stores":
        return validate_stores(value, f" in {file}")
    _check_type(name, value, default, f" in {file}")
    return _wrap_secret(value) if isinstance(default, Secret) else value


def _wrap_secret(value: Any) -> Any:
    """Return a key as a `Secret`; other values are returned unchanged, and rejected by the type check."""
    return Secret(value) if isinstance(value, str) or callable(value) else value


def _check_type(name: str, value: Any, default: Any, place: str) -> None:
    if isinstance(default, Secret):
        if not isinstance(value, str | Secret) and not callable(value):
            raise BadSettings(f"{name}{place} must be a string; got {type(value).__name__}")  # the value may be a key
        return
    wanted = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise BadSettings(f"{name}{place} must be a {type(default).__name__}; got {value!r}")


def _override_tiers(tables: Any, file: Path) -> tuple[MemoryTier, ...]:
    """Return the tiers with the values of the file, as in `[tiers.episodic] ttl_seconds = 3600`."""
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise BadSettings(f"tiers in {file} must be one table per tier, as in [tiers.episodic]")
    known = [tier.name for tier in TIERS]
    for name, table in tables.items():
        if name not in known:
            raise BadSettings(f"{file} has the unknown tier {name!r}; the tiers are {', '.join(known)}")
        if "name" in table:
            raise BadSettings(f"{file} sets the name of the tier {name!r}, which cannot be changed")
    try:
        return tuple(replace(tier, **tables.get(tier.name, {})) for tier in TIERS)
    except TypeError as error:
        raise BadSettings(f"a tier in {file} has an unknown option: {error}") from error
