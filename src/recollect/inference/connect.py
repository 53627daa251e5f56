"""From a name or an object to an embedder or a language model: the only module that names a provider."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recollect.clock import Clock, system_clock
from recollect.errors import BadSettings, EmbedderFailed
from recollect.inference.access import Access, Named, checked_url, key_for, require
from recollect.inference.base import Embedder, Embedding, FunctionEmbedder, called
from recollect.inference.chat import ChatModel
from recollect.inference.ledger import Ledger
from recollect.inference.llm import Ask, LanguageModel
from recollect.inference.plain_chat import PlainChat, asking
from recollect.inference.remote import RemoteEmbedder
from recollect.inference.retry import Retry
from recollect.settings import Settings

# An embedder that hangs is given up early enough to be asked again within the time there is for the whole.
_ASKS = 4
_PROBE = ["the quick brown fox", "a memory of last summer"]


async def connect_embedder(
    given: str | Embedder | Callable[[Any], Any] | None,
    settings: Settings,
    *,
    ledger: Ledger | None = None,
    ask_size: bool = True,
    retry: Retry | None = None,
) -> Embedding:
    """The embedder that was asked for, ready to use; nothing is loaded before the first text.

    Of a model that no table knows, the length of its vectors is asked for now; without `ask_size`, by `size_up`.
    """
    given = settings.embedder if given is None else given
    embedder = (
        _named_embedder(given, settings, ledger or Ledger(), retry)
        if isinstance(given, str)
        else await _brought(given, settings)
    )
    embedding = Embedding(
        embedder,
        batch=settings.embed_batch,
        timeout=settings.embed_timeout,
        cache=settings.embed_cache,
        release=embedder.close if isinstance(embedder, RemoteEmbedder) else None,
    )
    if ask_size:
        await embedding.size_up()
    return embedding


def connect_chat(
    given: str | Ask | LanguageModel | ChatModel,
    settings: Settings,
    *,
    ledger: Ledger | None = None,
    clock: Clock = system_clock,
    retry: Retry | None = None,
) -> ChatModel:
    """The model that was asked for, ready for a dialogue; nothing is loaded or called before the first message."""
    if isinstance(given, str):
        return _named_chat(given, settings, ledger or Ledger(), clock, retry)
    if hasattr(given, "reply") and hasattr(given, "name"):
        return given  # type: ignore[return-value]
    if isinstance(given, LanguageModel):
        return PlainChat(given)
    if callable(given):
        return PlainChat(LanguageModel(given, timeout=settings.llm_timeout, clock=clock))
    raise BadSettings(
        f"{type(given).__name__} is not a language model; give a name such as 'anthropic:claude-haiku-4-5', a callable "
        "that answers a prompt with a text, or an object with name, reply and close"
    )


def connect_llm(
    given: str | Ask | LanguageModel | None,
    settings: Settings,
    *,
    ledger: Ledger | None = None,
    clock: Clock = system_clock,
    retry: Retry | None = None,
) -> LanguageModel | None:
    """The model for cheap work, or None: what was given, or else what the settings name."""
    if given is None:
        given = settings.llm or None
    if isinstance(given, str):
        chat = _named_chat(given, settings, ledger or Ledger(), clock, retry)
        # The time is for the answer with all its tries: cheap work can be done offline, and somebody waits for it.
        return LanguageModel(
            asking(chat), name=chat.name, timeout=settings.llm_timeout, clock=clock, release=chat.close
        )
    if given is None or isinstance(given, LanguageModel):
        return given
    if not callable(given):
        raise BadSettings(
            f"llm is a name such as 'anthropic:claude-haiku-4-5', or a callable that answers a prompt with a text, "
            f"not {type(given).__name__}"
        )
    return LanguageModel(given, timeout=settings.llm_timeout, clock=clock)


def install_local_model(progress: Callable[[str, float], None] | None = None) -> Path:
    """Set the default model up on this machine; the only step that may use the network."""
    from recollect.inference.minilm import install

    return install(progress)


async def _brought(given: Embedder | Callable[[Any], Any], settings: Settings) -> Embedder:
    if all(hasattr(given, part) for part in ("name", "dim", "embed", "embed_batch")):
        return given  # type: ignore[return-value]
    if callable(given):
        return await _probed(given, settings.embed_timeout)
    raise BadSettings(
        f"{type(given).__name__} is not an embedder; give a name such as 'minilm', a callable, "
        "or an object with name, dim, embed and embed_batch"
    )


def _named_embedder(name: str, settings: Settings, ledger: Ledger, retry: Retry | None) -> Embedder:
    provider, _, detail = name.partition(":")
    match provider:
        case "minilm" if detail or name == "minilm":
            from recollect.inference.minilm import MiniLM

            return MiniLM(*([Path(detail)] if detail else []), threads=settings.threads or None)
        case "openai":
            from recollect.inference.providers.openai_embeddings import openai_embedder

            return openai_embedder(_access(name, settings, ledger, timeout=settings.embed_timeout / _ASKS, retry=retry))
        case "voyage":
            from recollect.inference.providers.voyage import voyage_embedder

            return voyage_embedder(_access(name, settings, ledger, timeout=settings.embed_timeout / _ASKS, retry=retry))
        case "sentence-transformers" if detail:
            from recollect.inference.providers.sentence_transformers import SentenceTransformers

            require("sentence_transformers", name, provider)
            return SentenceTransformers(detail)
        case _:
            raise BadSettings(
                f"there is no embedder {name!r}; use 'minilm', 'minilm:DIRECTORY', 'openai:MODEL', 'voyage:MODEL' or "
                "'sentence-transformers:MODEL'"
            )


def _named_chat(name: str, settings: Settings, ledger: Ledger, clock: Clock, retry: Retry | None) -> ChatModel:
    provider = name.partition(":")[0]
    if provider not in ("anthropic", "openai") or ":" not in name:
        raise BadSettings(f"there is no language model {name!r}; use 'anthropic:MODEL', 'openai:MODEL', or a callable")
    access = _access(name, settings, ledger, timeout=settings.llm_timeout, clock=clock, retry=retry)
    if ledger.limited_in_dollars and access.price is None:
        raise BadSettings(
            f"llm_budget_usd is set, but what {access.name!r} costs is not known here; set llm_budget_tokens instead"
        )
    if provider == "anthropic":
        from recollect.inference.providers.anthropic import AnthropicChat

        return AnthropicChat(access)
    from recollect.inference.providers.openai import OpenAIChat

    return OpenAIChat(access)


@dataclass(frozen=True, slots=True)
class _Provider:
    """What has to be there before a provider can be asked."""

    module: str
    key: str
    variable: str
    url_variable: str = ""
    url: str = ""


_PROVIDERS = {
    "anthropic": _Provider("anthropic", "anthropic_api_key", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "openai": _Provider("openai", "openai_api_key", "OPENAI_API_KEY", "OPENAI_BASE_URL", "openai_base_url"),
    "voyage": _Provider("voyageai", "voyage_api_key", "VOYAGE_API_KEY"),
}


def _access(
    name: str,
    settings: Settings,
    ledger: Ledger,
    *,
    timeout: float,
    clock: Clock = system_clock,
    retry: Retry | None = None,
) -> Access:
    named = Named.parsed(name)
    provider = _PROVIDERS[named.provider]
    require(provider.module, named.name, named.provider)
    # What stands nearest counts: in the name, in our settings, in the variable that the client itself would read.
    configured = getattr(settings, provider.url) if provider.url else ""
    base_url = checked_url(named.base_url or configured or os.environ.get(provider.url_variable, ""))
    return Access(
        named=named,
        base_url=base_url,
        key=key_for(named.name, getattr(settings, provider.key), provider.variable, base_url, os.environ),
        timeout=timeout,
        retry=retry or Retry(settings.retries),
        ledger=ledger,
        clock=clock,
    )


async def _probed(function: Callable[[Any], Any], patience: float) -> FunctionEmbedder:
    """Find out, by asking, whether a callable takes one text or many, and how long its vectors are."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    failure: Exception | None = None
    for takes_many, question in ((True, list(_PROBE)), (False, _PROBE[0])):
        try:
            async with asyncio.timeout(patience):
                answer = np.asarray(await called(function, question, None), dtype=np.float64)
        except TimeoutError as error:
            raise EmbedderFailed(f"{name} gave no answer within {patience:g} s") from error
        except Exception as error:  # noqa: BLE001 - the other way of calling is tried, then this is the cause
            failure = error
            continue
        if answer.ndim == (2 if takes_many else 1) and answer.size and (not takes_many or len(answer) == len(_PROBE)):
            return FunctionEmbedder(function, name=name, dim=int(answer.shape[-1]), takes_many=takes_many)
        failure = None
    raise EmbedderFailed(
        f"{name} answered neither a text with a vector nor a list of texts with a list of vectors"
    ) from failure
