"""Embedders and language models from a name or an object; the only module that names a provider."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recollect.clock import Clock, system_clock
from recollect.errors import BadSettings, EmbedderFailed
from recollect.models.chat import ChatModel
from recollect.models.embedding import Embedder, Embedding, FunctionEmbedder, RemoteEmbedder, call_off_loop
from recollect.models.endpoint import ModelEndpoint, find_api_key, parse_base_url, parse_model_name, require_package
from recollect.models.llm import AskFunction, CallableChat, LanguageModel, to_ask_function
from recollect.models.usage import UsageLedger
from recollect.settings import Settings
from recollect.types import ProgressCallback

# The timeout of one embedding request is this share of `embed_timeout`, so that a hanging request can be retried.
_EMBED_TIMEOUT_SHARE = 1 / 4
# Vectors of repeated queries, 1.5 KiB each.
_TEXTS_PER_BATCH = 64
_CACHED_VECTORS = 4096
_PROBE_TEXTS = ["the quick brown fox", "a memory of last summer"]


async def open_embedder(
    given: str | Embedder | Callable[[Any], Any] | None,
    settings: Settings,
    *,
    ledger: UsageLedger | None = None,
    ask_size: bool = True,
) -> Embedding:
    """Return the given embedder or that of the settings; with `ask_size`, embed a text if its dimension is unknown."""
    given = settings.embedder if given is None else given
    embedder: Embedder
    if isinstance(given, str):
        embedder = _open_named_embedder(given, settings, ledger or UsageLedger())
    elif all(hasattr(given, name) for name in ("name", "dim", "embed_batch")):
        embedder = given  # type: ignore[assignment]
    elif callable(given):
        embedder = await _probe_callable(given, settings.embed_timeout)
    else:
        raise BadSettings(
            "an embedder must be a name such as 'minilm', a callable, or an object with name, dim and embed_batch; got "
            f"{type(given).__name__}"
        )
    embedding = Embedding(
        embedder,
        batch=_TEXTS_PER_BATCH,
        timeout=settings.embed_timeout,
        cache=_CACHED_VECTORS,
        release=embedder.close if isinstance(embedder, RemoteEmbedder) else None,
    )
    if ask_size:
        await embedding.resolve_dimension()
    return embedding


def open_chat(
    given: str | AskFunction | LanguageModel | ChatModel,
    settings: Settings,
    *,
    ledger: UsageLedger | None = None,
    clock: Clock = system_clock,
) -> ChatModel:
    """Return the given model as a `ChatModel`; an SDK is loaded with the first message."""
    if isinstance(given, str):
        return _open_named_chat(given, settings, ledger or UsageLedger())
    if hasattr(given, "reply") and hasattr(given, "name"):
        return given  # type: ignore[return-value]
    if isinstance(given, LanguageModel):
        return CallableChat(given)
    if callable(given):
        return CallableChat(LanguageModel(given, timeout=settings.llm_timeout, clock=clock))
    raise BadSettings(
        "a language model must be a name such as 'anthropic:claude-haiku-4-5', a callable that takes a prompt and "
        f"returns a text, or an object with name, reply and close; got {type(given).__name__}"
    )


def open_llm(
    given: str | AskFunction | LanguageModel | None,
    settings: Settings,
    *,
    ledger: UsageLedger | None = None,
    clock: Clock = system_clock,
) -> LanguageModel | None:
    """Return the model for summaries and extraction: the given one, that of the settings, or None."""
    if given is None:
        given = settings.llm or None
    if isinstance(given, str):
        chat = _open_named_chat(given, settings, ledger or UsageLedger())
        # The timeout includes all retries: there is an offline way, and a caller waits.
        return LanguageModel(
            to_ask_function(chat), name=chat.name, timeout=settings.llm_timeout, clock=clock, release=chat.close
        )
    if given is None or isinstance(given, LanguageModel):
        return given
    if not callable(given):
        raise BadSettings(
            "llm must be a name such as 'anthropic:claude-haiku-4-5', or a callable that takes a prompt and returns a "
            f"text; got {type(given).__name__}"
        )
    return LanguageModel(given, timeout=settings.llm_timeout, clock=clock)


def install_local_model(progress: ProgressCallback) -> Path:
    """Install the default embedding model and return its directory; the only step that uses the network."""
    from recollect.models.minilm.build import install

    return install(progress)


def _open_named_embedder(name: str, settings: Settings, ledger: UsageLedger) -> Embedder:
    provider, _, detail = name.partition(":")
    timeout = settings.embed_timeout * _EMBED_TIMEOUT_SHARE
    match provider:
        case "minilm" if detail or name == "minilm":
            from recollect.models.minilm import MiniLM

            return MiniLM(*([Path(detail)] if detail else []), threads=settings.threads or None)
        case "openai":
            from recollect.models.providers.openai import build_openai_embedder

            return build_openai_embedder(_build_endpoint(name, settings, ledger, timeout=timeout))
        case "voyage":
            from recollect.models.providers.voyage import build_voyage_embedder

            return build_voyage_embedder(_build_endpoint(name, settings, ledger, timeout=timeout))
        case "sentence-transformers" if detail:
            from recollect.models.providers.sentence_transformers import SentenceTransformersEmbedder

            require_package("sentence_transformers", name, provider)
            return SentenceTransformersEmbedder(detail)
        case _:
            raise BadSettings(
                f"there is no embedder {name!r}; use 'minilm', 'minilm:DIRECTORY', 'openai:MODEL', 'voyage:MODEL' or "
                "'sentence-transformers:MODEL'"
            )


def _open_named_chat(name: str, settings: Settings, ledger: UsageLedger) -> ChatModel:
    provider = name.partition(":")[0]
    if provider not in ("anthropic", "openai") or ":" not in name:
        raise BadSettings(f"there is no language model {name!r}; use 'anthropic:MODEL', 'openai:MODEL', or a callable")
    endpoint = _build_endpoint(name, settings, ledger, timeout=settings.llm_timeout)
    if ledger.max_usd and endpoint.price is None:
        raise BadSettings(
            f"llm_budget_usd is set, but the price of {endpoint.name!r} is unknown; set llm_budget_tokens instead"
        )
    if provider == "anthropic":
        from recollect.models.providers.anthropic import AnthropicChat

        return AnthropicChat(endpoint)
    from recollect.models.providers.openai import OpenAIChat

    return OpenAIChat(endpoint)


_SDK_MODULES = {"anthropic": "anthropic", "openai": "openai", "voyage": "voyageai"}


def _build_endpoint(name: str, settings: Settings, ledger: UsageLedger, *, timeout: float) -> ModelEndpoint:
    name, url = parse_model_name(name)
    provider = name.partition(":")[0]
    require_package(_SDK_MODULES[provider], name, provider)
    # The URL in the name comes first, then the setting, then the variable that the SDK itself would read.
    if not url and provider == "openai":
        url = settings.openai_base_url
    if not url and provider != "voyage":
        url = os.environ.get(f"{provider.upper()}_BASE_URL", "")
    base_url = parse_base_url(url)
    key_variable = f"{provider.upper()}_API_KEY"
    return ModelEndpoint(
        name=name,
        base_url=base_url,
        key=find_api_key(name, getattr(settings, key_variable.lower()), key_variable, base_url),
        timeout=timeout,
        max_retries=settings.retries,
        ledger=ledger,
    )


async def _probe_callable(function: Callable[[Any], Any], timeout: float) -> FunctionEmbedder:  # noqa: ASYNC109
    """Call a function to find out whether it takes one text or a list, and the dimension of its vectors."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    failure: Exception | None = None
    for takes_many, argument in ((True, list(_PROBE_TEXTS)), (False, _PROBE_TEXTS[0])):
        try:
            async with asyncio.timeout(timeout):
                answer = np.asarray(await call_off_loop(function, argument, None), dtype=np.float64)
        except TimeoutError as error:
            raise EmbedderFailed(f"{name} gave no answer within {timeout:g} s") from error
        except Exception as error:  # noqa: BLE001 - the other way of calling is tried, then this is the cause
            failure = error
            continue
        is_complete = not takes_many or len(answer) == len(_PROBE_TEXTS)
        if answer.ndim == (2 if takes_many else 1) and answer.size and is_complete:
            return FunctionEmbedder(function, name=name, dim=int(answer.shape[-1]), takes_many=takes_many)
        failure = None
    raise EmbedderFailed(
        f"{name} must return a vector for a text, or a list of vectors for a list of texts"
    ) from failure
