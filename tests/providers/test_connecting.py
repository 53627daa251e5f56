"""Connecting a model by a string: keys, addresses, packages, and errors that say which of them is missing."""

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
from recollect.inference.access import Named, is_loopback
from recollect.inference.chat import ChatMessage, OnText, Reply, ToolSpec
from recollect.inference.connect import connect_chat, connect_embedder, connect_llm
from recollect.inference.ledger import Ledger
from recollect.inference.llm import LanguageModel
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
    def test_a_missing_key_is_named_by_its_variable(self, name: str, variable: str):
        with pytest.raises(BadSettings, match=f"needs a key: set {variable} in the environment"):
            connect_chat(name, Settings())

    async def test_of_embedders_too(self):
        with pytest.raises(BadSettings, match="VOYAGE_API_KEY"):
            await connect_embedder("voyage:voyage-3.5", Settings())

    @pytest.mark.parametrize("provider", ["anthropic", "openai"])
    async def test_a_server_on_this_machine_needs_none(self, provider: str, wire: Wire):
        wire.script(Say("Hello."))
        model = connect_chat(f"{provider}:small@{getattr(wire, provider)}", Settings())
        assert (await model.reply(ASKED)).text == "Hello."
        await model.close()

    def test_one_elsewhere_does(self):
        with pytest.raises(BadSettings, match="OPENAI_API_KEY"):
            connect_chat("openai:small@https://models.example.com/v1", Settings())

    @pytest.mark.parametrize("origin", ["environment", "settings"])
    async def test_it_comes_from_the_environment_or_the_settings(
        self, origin: str, wire: Wire, monkeypatch: pytest.MonkeyPatch
    ):
        wire.script(Say("Hello."))
        monkeypatch.setenv("OPENAI_API_KEY", KEY if origin == "environment" else "another")
        settings = Settings(openai_api_key=KEY) if origin == "settings" else Settings()
        model = connect_chat(f"openai:small@{wire.openai}", settings)
        await model.reply(ASKED)
        await model.close()
        assert wire.requests[0].headers["authorization"] == f"Bearer {KEY}"


class TestPlaces:
    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("openai:gpt-5", Named("openai", "gpt-5")),
            ("openai:llama3:8b", Named("openai", "llama3:8b")),
            ("openai:qwen3@http://localhost:11434/v1", Named("openai", "qwen3", "http://localhost:11434/v1")),
            ("openai:@cf/meta/llama@https://x.example/v1", Named("openai", "@cf/meta/llama", "https://x.example/v1")),
            ("anthropic:claude@20250101", Named("anthropic", "claude@20250101")),
        ],
    )
    def test_a_name_may_say_where(self, text: str, named: Named):
        assert Named.parsed(text) == named

    @pytest.mark.parametrize("name", ["openai:", "anthropic: ", "openai:@http://localhost/v1"])
    def test_a_name_names_a_model(self, name: str):
        with pytest.raises(BadSettings):
            connect_chat(name, Settings(openai_api_key=KEY, anthropic_api_key=KEY))

    @pytest.mark.parametrize("name", ["gpt-5", "", "anthropic", "mistral:large", "minilm"])
    def test_what_is_no_provider_is_refused_with_those_there_are(self, name: str):
        with pytest.raises(BadSettings, match=r"'anthropic:MODEL', 'openai:MODEL'"):
            connect_chat(name, Settings())

    @pytest.mark.parametrize("name", ["nomic", "", "mistral:embed", "sentence-transformers:", "minilm:"])
    async def test_nor_embedders(self, name: str):
        with pytest.raises(BadSettings, match=r"'openai:MODEL', 'voyage:MODEL'"):
            await connect_embedder(name, Settings())

    @pytest.mark.parametrize("origin", ["name", "settings", "environment"])
    async def test_the_place_that_is_said_nearest_counts(
        self, origin: str, wire: Wire, monkeypatch: pytest.MonkeyPatch
    ):
        wire.script(Say("Here."))
        wrong = "http://127.0.0.1:9/v1"
        monkeypatch.setenv("OPENAI_BASE_URL", wire.openai if origin == "environment" else wrong)
        base = {"name": wrong, "settings": wire.openai, "environment": ""}[origin]
        name = f"openai:small@{wire.openai}/" if origin == "name" else "openai:small"
        model = connect_chat(name, Settings(openai_base_url=base))
        assert (await model.reply(ASKED)).text == "Here."
        await model.close()

    @pytest.mark.parametrize("url", ["localhost:11434", "ftp://x/v1", "http://"])
    def test_a_place_is_a_url(self, url: str):
        with pytest.raises(BadSettings, match="is no base URL"):
            connect_chat("openai:small", Settings(openai_base_url=url))

    @pytest.mark.parametrize(
        ("url", "local"),
        [
            ("http://localhost:11434/v1", True), ("http://127.0.0.1/v1", True), ("http://[::1]:8080", True),
            ("http://127.8.9.1", True), ("https://api.openai.com/v1", False), ("http://192.168.1.5/v1", False),
            ("http://localhost.example.com", False), ("http://127.0.0.1.example.com", False), ("", False),
        ],
    )  # fmt: skip
    def test_what_is_this_machine(self, url: str, local: bool):
        assert is_loopback(url) == local


class TestWhatMayBeGiven:
    async def test_a_callable_answers_the_dialogue_as_one_prompt(self):
        prompts: list[str] = []

        def model(prompt: str) -> str:
            prompts.append(prompt)
            return "fine"

        chat = connect_chat(model, Settings())
        heard: list[str] = []
        reply = await chat.reply(
            [ChatMessage("user", "Hello."), ChatMessage("assistant", "Hi."), ChatMessage("user", "How are you?")],
            system="Be brief.",
            tools=[ToolSpec("add", "", {})],
            on_text=heard.append,
        )
        assert reply == Reply("fine")
        assert heard == ["fine"]
        assert prompts == ["Be brief.\n\nuser: Hello.\n\nassistant: Hi.\n\nuser: How are you?\n\nassistant:"]
        await chat.close()

    async def test_a_coroutine_function_too(self):
        async def model(prompt: str) -> str:
            return prompt.upper()

        assert (await connect_chat(model, Settings()).reply(ASKED)).text == "HELLO"

    async def test_a_chat_model_of_ones_own_is_used_as_it_is(self):
        class Mine:
            name = "mine"

            async def reply(
                self,
                messages: Sequence[ChatMessage],
                *,
                system: str = "",
                tools: Sequence[ToolSpec] = (),
                on_text: OnText | None = None,
                may_call: bool = True,
            ) -> Reply:
                return Reply("mine")

            async def close(self) -> None: ...

        mine = Mine()
        assert connect_chat(mine, Settings()) is mine

    @pytest.mark.parametrize("given", [42, object(), ["openai:x"]])
    def test_what_is_no_model_is_refused(self, given: Any):
        with pytest.raises(BadSettings, match="not a language model"):
            connect_chat(given, Settings())
        with pytest.raises(BadSettings, match="llm is a name"):
            connect_llm(given, Settings())


class TestForCheapWork:
    async def test_a_string_becomes_a_model_that_answers_prompts(self, wire: Wire):
        wire.script(Say("  Port 7001.\n"))
        model = connect_llm(f"anthropic:claude-haiku-4-5@{wire.anthropic}", Settings())
        assert model is not None
        assert model.name == "anthropic:claude-haiku-4-5"
        assert await model.ask("Which port?") == "Port 7001."
        await model.close()

    async def test_the_settings_may_name_it(self, wire: Wire):
        wire.script(Say("Yes."))
        model = connect_llm(None, Settings(llm=f"openai:small@{wire.openai}"))
        assert model is not None
        assert await model.ask("Is it?") == "Yes."
        await model.close()
        assert connect_llm(None, Settings()) is None

    async def test_a_refusal_and_a_failure_are_told_in_their_own_words(self, wire: Wire):
        model = connect_llm(f"openai:small@{wire.openai}", Settings(retries=0))
        assert model is not None
        wire.script(Say("no", stop="refusal"), Fail(404, "model_not_found"))
        with pytest.raises(ModelFailed, match="'openai:small' declined to answer"):
            await model.ask("?")
        with pytest.raises(ModelFailed, match=r"^the language model 'openai:small' does not know this model"):
            await model.ask("?")
        await model.close()

    async def test_all_its_tries_together_have_the_time_of_one_answer(self, wire: Wire):
        """Cheap work can be done offline, and somebody waits for it."""
        wire.script(Say("Yes."), *[Fail(503)] * 9)
        first = connect_llm(f"openai:small@{wire.openai}", Settings())
        assert first is not None
        await first.ask("?")  # which loads the client: that takes seconds by itself
        await first.close()
        wire.requests.clear()
        model = connect_llm(f"openai:small@{wire.openai}", Settings(llm_timeout=2.0, retries=20))
        assert model is not None
        with pytest.raises(ModelFailed, match="gave no answer within 2 s"):
            await model.ask("?")
        await model.close()
        assert 2 <= len(wire.requests) < 9

    async def test_a_callable_has_the_time_that_the_settings_give(self):
        async def never(prompt: str) -> str:
            import asyncio

            await asyncio.Event().wait()
            return ""

        model = connect_llm(never, Settings(llm_timeout=0.1))
        assert model is not None
        with pytest.raises(ModelFailed, match=r"0\.1 s"):
            await model.ask("?")

    async def test_at_the_limit_it_says_so_however_often_it_is_asked(self, wire: Wire):
        """It did not fail, so it does not rest; the reason stays the reason."""
        wire.script(Say("Yes.", read=100))
        model = connect_llm(f"openai:small@{wire.openai}", Settings(), ledger=Ledger(tokens=100))
        assert model is not None
        assert await model.ask("Is it?") == "Yes."
        for _ in range(5):
            with pytest.raises(SpendLimitReached, match="raise the limit"):
                await model.ask("Is it?")
        await model.close()
        assert len(wire.requests) == 1

    def test_a_model_stays_the_model_it_is(self):
        model = LanguageModel(str.upper)
        assert connect_llm(model, Settings()) is model


def test_a_limit_in_dollars_needs_a_price():
    ledger = Ledger(usd=1.0)
    with pytest.raises(BadSettings, match="set llm_budget_tokens instead"):
        connect_chat("openai:some-new-model", Settings(openai_api_key=KEY), ledger=ledger)
    with pytest.raises(BadSettings, match="set llm_budget_tokens instead"):
        connect_chat("openai:gpt-5@https://gateway.example/v1", Settings(openai_api_key=KEY), ledger=ledger)
    connect_chat("openai:gpt-5", Settings(openai_api_key=KEY), ledger=ledger)
    connect_chat("openai:some-new-model@http://localhost:1234/v1", Settings(), ledger=ledger)  # costs nothing


CONNECTED = """
import asyncio, sys
from recollect.inference.connect import connect_chat, connect_embedder
from recollect.settings import Settings
keys = Settings(anthropic_api_key="k", openai_api_key="k", voyage_api_key="k")
connect_chat("anthropic:claude-haiku-4-5", keys)
connect_chat("openai:gpt-5", keys)
asyncio.run(connect_embedder("openai:text-embedding-3-small", keys))
asyncio.run(connect_embedder("voyage:voyage-3.5", keys))
print(*[name for name in ("anthropic", "openai", "voyageai", "httpx2", "pydantic", "aiohttp") if name in sys.modules])
"""


def test_connecting_loads_no_client():
    """Importing one takes seconds; somebody who opens a memory does not wait for it."""
    done = subprocess.run([sys.executable, "-c", CONNECTED], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == []


MISSING = """
import sys
from recollect.inference.connect import connect_chat
from recollect.settings import Settings
sys.path[:] = [path for path in sys.path if "site-packages" not in path]
sys.meta_path = [finder for finder in sys.meta_path if "Path" in str(finder) or "Builtin" in str(finder)]
try:
    connect_chat("anthropic:claude-haiku-4-5", Settings(anthropic_api_key="k"))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_without_the_client_it_is_named():
    done = subprocess.run([sys.executable, "-c", MISSING], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("ExtraMissing 'anthropic:claude-haiku-4-5' needs the extra `anthropic`")
    assert done.stdout.rstrip().endswith("pip install anthropic (in a checkout: pip install '.[anthropic]')")


def test_every_claude_that_we_name_is_one_that_its_maker_goes_on_with():
    # Mutant: the default of the agent is claude-sonnet-4-5.
    from anthropic.resources.messages.messages import DEPRECATED_MODELS

    root = Path(__file__).resolve().parents[2]
    files = [root / "README.md", *root.glob("docs/howto/*.md"), *root.glob("examples/*.py")]
    named = {name for file in files for name in re.findall(r"claude-[a-z0-9-]+\d", file.read_text(encoding="utf-8"))}
    defaults = {signature(kind).parameters["model"].default for kind in (AgentWithMemory, sync.AgentWithMemory)}
    [default] = {name.removeprefix("anthropic:") for name in defaults}
    assert default in named
    assert (named | {default}) & set(DEPRECATED_MODELS) == set()
