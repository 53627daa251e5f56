"""Connecting a model by its name: keys, base URLs, packages, and errors that name the missing one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentWithMemory, sync
from recollect.errors import BadSettings, ModelFailed, SpendLimitReached
from recollect.models.chat import ChatMessage, Reply, TextCallback, ToolSpec
from recollect.models.endpoint import is_loopback, parse_model_name
from recollect.models.factory import open_chat, open_embedder, open_llm
from recollect.models.llm import LanguageModel
from recollect.models.usage import UsageLedger
from recollect.settings import Settings
from tests.providers.conftest import KEY
from tests.wire.script import Fail, Say
from tests.wire.server import Wire

ASKED = [ChatMessage("user", "hello")]


class TestKeys:
    @pytest.mark.parametrize(
        ("name", "variable"),
        [("anthropic:claude-haiku-4-5", "ANTHROPIC_API_KEY"), ("openai:gpt-5-mini", "OPENAI_API_KEY")],
    )
    def test_missing_key_is_named_by_its_variable(self, name: str, variable: str):
        with pytest.raises(BadSettings, match=f"needs a key: set {variable} in the environment"):
            open_chat(name, Settings())

    async def test_missing_embedder_key_is_named_by_its_variable(self):
        with pytest.raises(BadSettings, match="VOYAGE_API_KEY"):
            await open_embedder("voyage:voyage-3.5", Settings())

    @pytest.mark.parametrize("provider", ["anthropic", "openai"])
    async def test_local_server_needs_no_key(self, provider: str, wire: Wire):
        wire.script(Say("Hello."))
        model = open_chat(f"{provider}:small@{getattr(wire, provider)}", Settings())
        assert (await model.reply(ASKED)).text == "Hello."
        await model.close()

    def test_remote_server_needs_a_key(self):
        with pytest.raises(BadSettings, match="OPENAI_API_KEY"):
            open_chat("openai:small@https://models.example.com/v1", Settings())

    @pytest.mark.parametrize("origin", ["environment", "settings"])
    async def test_key_comes_from_environment_or_settings(
        self, origin: str, wire: Wire, monkeypatch: pytest.MonkeyPatch
    ):
        wire.script(Say("Hello."))
        monkeypatch.setenv("OPENAI_API_KEY", KEY if origin == "environment" else "another")
        settings = Settings(openai_api_key=KEY) if origin == "settings" else Settings()
        model = open_chat(f"openai:small@{wire.openai}", settings)
        await model.reply(ASKED)
        await model.close()
        assert wire.requests[0].headers["authorization"] == f"Bearer {KEY}"


class TestModelNames:
    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("openai:gpt-5", ("openai:gpt-5", "")),
            ("openai:llama3:8b", ("openai:llama3:8b", "")),
            ("openai:qwen3@http://localhost:11434/v1", ("openai:qwen3", "http://localhost:11434/v1")),
            (
                "openai:@cf/meta/llama@https://x.example/v1",
                ("openai:@cf/meta/llama", "https://x.example/v1"),
            ),
            ("anthropic:claude@20250101", ("anthropic:claude@20250101", "")),
        ],
    )
    def test_name_may_contain_a_base_url(self, text: str, named: tuple[str, str]):
        assert parse_model_name(text) == named

    @pytest.mark.parametrize("name", ["openai:", "anthropic: ", "openai:@http://localhost/v1"])
    def test_name_without_model_is_rejected(self, name: str):
        with pytest.raises(BadSettings):
            open_chat(name, Settings(openai_api_key=KEY, anthropic_api_key=KEY))

    @pytest.mark.parametrize("name", ["gpt-5", "", "anthropic", "mistral:large", "minilm"])
    def test_unknown_provider_error_lists_providers(self, name: str):
        with pytest.raises(BadSettings, match=r"'anthropic:MODEL', 'openai:MODEL'"):
            open_chat(name, Settings())

    @pytest.mark.parametrize("name", ["nomic", "", "mistral:embed", "sentence-transformers:", "minilm:"])
    async def test_unknown_embedder_error_lists_providers(self, name: str):
        with pytest.raises(BadSettings, match=r"'openai:MODEL', 'voyage:MODEL'"):
            await open_embedder(name, Settings())

    @pytest.mark.parametrize("origin", ["name", "settings", "environment"])
    async def test_base_url_precedence_is_name_settings_environment(
        self, origin: str, wire: Wire, monkeypatch: pytest.MonkeyPatch
    ):
        wire.script(Say("Here."))
        wrong = "http://127.0.0.1:9/v1"
        monkeypatch.setenv("OPENAI_BASE_URL", wire.openai if origin == "environment" else wrong)
        base = {"name": wrong, "settings": wire.openai, "environment": ""}[origin]
        name = f"openai:small@{wire.openai}/" if origin == "name" else "openai:small"
        model = open_chat(name, Settings(openai_base_url=base))
        assert (await model.reply(ASKED)).text == "Here."
        await model.close()

    @pytest.mark.parametrize("url", ["localhost:11434", "ftp://x/v1", "http://"])
    def test_invalid_base_url_is_rejected(self, url: str):
        with pytest.raises(BadSettings, match="is not a base URL"):
            open_chat("openai:small", Settings(openai_base_url=url))

    @pytest.mark.parametrize(
        ("url", "local"),
        [
            ("http://localhost:11434/v1", True), ("http://127.0.0.1/v1", True), ("http://[::1]:8080", True),
            ("http://127.8.9.1", True), ("https://api.openai.com/v1", False), ("http://192.168.1.5/v1", False),
            ("http://localhost.example.com", False), ("http://127.0.0.1.example.com", False), ("", False),
        ],
    )  # fmt: skip
    def test_loopback_urls_are_recognized(self, url: str, local: bool):
        assert is_loopback(url) == local


class TestModelArgument:
    async def test_callable_receives_dialogue_as_one_prompt(self):
        prompts: list[str] = []

        def model(prompt: str) -> str:
            prompts.append(prompt)
            return "fine"

        chat = open_chat(model, Settings())
        streamed: list[str] = []
        reply = await chat.reply(
            [ChatMessage("user", "Hello."), ChatMessage("assistant", "Hi."), ChatMessage("user", "How are you?")],
            system="Be brief.",
            tools=[ToolSpec("add", "", {})],
            on_text=streamed.append,
        )
        assert reply == Reply("fine")
        assert streamed == ["fine"]
        assert prompts == ["Be brief.\n\nuser: Hello.\n\nassistant: Hi.\n\nuser: How are you?\n\nassistant:"]
        await chat.close()

    async def test_coroutine_function_is_awaited(self):
        async def model(prompt: str) -> str:
            return prompt.upper()

        assert (await open_chat(model, Settings()).reply(ASKED)).text == "HELLO"

    async def test_custom_chat_model_is_used_unchanged(self):
        class Mine:
            name = "mine"

            async def reply(
                self,
                messages: Sequence[ChatMessage],
                *,
                system: str = "",
                tools: Sequence[ToolSpec] = (),
                on_text: TextCallback | None = None,
                may_call: bool = True,
            ) -> Reply:
                return Reply("mine")

            async def close(self) -> None: ...

        mine = Mine()
        assert open_chat(mine, Settings()) is mine

    @pytest.mark.parametrize("given", [42, object(), ["openai:x"]])
    def test_invalid_model_is_rejected(self, given: Any):
        with pytest.raises(BadSettings, match="a language model must be"):
            open_chat(given, Settings())
        with pytest.raises(BadSettings, match="llm must be a name"):
            open_llm(given, Settings())


class TestLlm:
    async def test_name_opens_a_model_that_answers_prompts(self, wire: Wire):
        wire.script(Say("  Port 7001.\n"))
        model = open_llm(f"anthropic:claude-haiku-4-5@{wire.anthropic}", Settings())
        assert model is not None
        assert model.name == "anthropic:claude-haiku-4-5"
        assert await model.ask("Which port?") == "Port 7001."
        await model.close()

    async def test_llm_setting_names_the_model(self, wire: Wire):
        wire.script(Say("Yes."))
        model = open_llm(None, Settings(llm=f"openai:small@{wire.openai}"))
        assert model is not None
        assert await model.ask("Is it?") == "Yes."
        await model.close()
        assert open_llm(None, Settings()) is None

    async def test_refusal_and_failure_have_their_own_messages(self, wire: Wire):
        model = open_llm(f"openai:small@{wire.openai}", Settings(retries=0))
        assert model is not None
        wire.script(Say("no", stop="refusal"), Fail(404, "model_not_found"))
        with pytest.raises(ModelFailed, match="'openai:small' declined to answer"):
            await model.ask("?")
        with pytest.raises(ModelFailed, match=r"^the language model 'openai:small' does not know this model"):
            await model.ask("?")
        await model.close()

    async def test_all_attempts_share_one_timeout(self, wire: Wire, monkeypatch: pytest.MonkeyPatch):
        """Work that has an offline fallback must not keep the caller waiting for retries."""
        monkeypatch.undo()  # the SDKs wait
        wire.script(Say("Yes."), *[Fail(503)] * 9)
        first = open_llm(f"openai:small@{wire.openai}", Settings())
        assert first is not None
        await first.ask("?")  # loads the SDK, which takes seconds
        await first.close()
        wire.requests.clear()
        model = open_llm(f"openai:small@{wire.openai}", Settings(llm_timeout=2.0, retries=20))
        assert model is not None
        with pytest.raises(ModelFailed, match="gave no answer within 2 s"):
            await model.ask("?")
        await model.close()
        assert 2 <= len(wire.requests) < 9

    async def test_callable_is_bounded_by_llm_timeout(self):
        async def never(prompt: str) -> str:
            import asyncio

            await asyncio.Event().wait()
            return ""

        model = open_llm(never, Settings(llm_timeout=0.1))
        assert model is not None
        with pytest.raises(ModelFailed, match=r"0\.1 s"):
            await model.ask("?")

    async def test_spend_limit_error_is_repeated_on_every_call(self, wire: Wire):
        """The limit is not a failure, so there is no pause, and the error stays the same."""
        wire.script(Say("Yes.", read=100))
        model = open_llm(f"openai:small@{wire.openai}", Settings(), ledger=UsageLedger(tokens=100))
        assert model is not None
        assert await model.ask("Is it?") == "Yes."
        for _ in range(5):
            with pytest.raises(SpendLimitReached, match="raise the limit"):
                await model.ask("Is it?")
        await model.close()
        assert len(wire.requests) == 1

    def test_language_model_is_returned_unchanged(self):
        model = LanguageModel(str.upper)
        assert open_llm(model, Settings()) is model


def test_usd_limit_requires_a_known_price():
    ledger = UsageLedger(usd=1.0)
    with pytest.raises(BadSettings, match="set llm_budget_tokens instead"):
        open_chat("openai:some-new-model", Settings(openai_api_key=KEY), ledger=ledger)
    with pytest.raises(BadSettings, match="set llm_budget_tokens instead"):
        open_chat("openai:gpt-5@https://gateway.example/v1", Settings(openai_api_key=KEY), ledger=ledger)
    open_chat("openai:gpt-5", Settings(openai_api_key=KEY), ledger=ledger)
    open_chat("openai:some-new-model@http://localhost:1234/v1", Settings(), ledger=ledger)  # costs nothing


CONNECTED = """
import asyncio, sys
from recollect.models.factory import open_chat, open_embedder
from recollect.settings import Settings
keys = Settings(anthropic_api_key="k", openai_api_key="k", voyage_api_key="k")
open_chat("anthropic:claude-haiku-4-5", keys)
open_chat("openai:gpt-5", keys)
asyncio.run(open_embedder("openai:text-embedding-3-small", keys))
asyncio.run(open_embedder("voyage:voyage-3.5", keys))
print(*[name for name in ("anthropic", "openai", "voyageai", "httpx2", "pydantic", "aiohttp") if name in sys.modules])
"""


def test_connecting_loads_no_sdk():
    """Importing an SDK takes seconds, and opening a memory must not wait for it."""
    done = subprocess.run([sys.executable, "-c", CONNECTED], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == []


MISSING = """
import sys
from recollect.models.factory import open_chat
from recollect.settings import Settings
sys.path[:] = [path for path in sys.path if "site-packages" not in path]
sys.meta_path = [finder for finder in sys.meta_path if "Path" in str(finder) or "Builtin" in str(finder)]
try:
    open_chat("anthropic:claude-haiku-4-5", Settings(anthropic_api_key="k"))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_missing_sdk_names_the_extra():
    done = subprocess.run([sys.executable, "-c", MISSING], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("ExtraMissing 'anthropic:claude-haiku-4-5' needs the extra `anthropic`")
    assert done.stdout.rstrip().endswith(
        "pip install 'recollect-memory[anthropic]' (in a checkout: pip install '.[anthropic]')"
    )


def test_named_claude_models_are_not_deprecated():
    # Mutant: the default model of the agent is a deprecated one.
    from anthropic.resources.messages.messages import DEPRECATED_MODELS

    root = Path(__file__).resolve().parents[2]
    files = [root / "README.md", *root.glob("docs/howto/*.md"), *root.glob("examples/*.py")]
    named = {name for file in files for name in re.findall(r"claude-[a-z0-9-]+\d", file.read_text(encoding="utf-8"))}
    defaults = {signature(kind).parameters["model"].default for kind in (AgentWithMemory, sync.AgentWithMemory)}
    [default] = {name.removeprefix("anthropic:") for name in defaults}
    assert default in named
    assert (named | {default}) & set(DEPRECATED_MODELS) == set()
