"""Memory of a chat: learning at its start and end, messages that survive a kill, and current counts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from recollect import AgentMemory as AsyncMemory
from recollect.cli.repl import ChatTerminal, learn_from_conversation
from recollect.sync import AgentMemory
from tests.cli.cli_runner import OK, PLAIN, RECOLLECT
from tests.cli.test_chat import KEYS, chat, read_json_lines
from tests.wire.script import Hang, Say
from tests.wire.server import Wire

SESSION = ("--session", "s")


def read_messages(directory: Path, session: str = "s") -> list[tuple[str, str]]:
    with AgentMemory.open(directory / "recollect.db", user="ada", session=session) as memory:
        return [(message.role, message.content) for message in memory.conversation.get_last_n(10)]


class TestLearning:
    def test_correction_in_one_chat_holds_in_the_next(self, tmp_path: Path):
        first = chat(tmp_path, "I live in Lisbon.")
        assert "learned 1 fact from what was said\nStored. " in first.out
        chat(tmp_path, "No, I moved to Porto.")
        asked = chat(tmp_path, "Where do I live?")
        greeting, answer = asked.out.split("Ctrl-D leaves.\n")
        assert "Welcome back. 1 fact and 2 conversations are remembered." in greeting
        assert "Porto" in answer
        assert "Lisbon" not in answer
        assert "learned" not in asked.out

    def test_pending_messages_are_learned_before_the_greeting(self, tmp_path: Path):
        with AgentMemory.open(tmp_path / "recollect.db", user="ada", session="monday") as memory:
            memory.record_turn("I live in Lisbon.")
            memory.record_turn("No, I moved to Porto.")
        done = chat(tmp_path, "/quit")
        learned, _, greeting = done.out.partition("\n")
        assert learned == "learned 2 facts from what was said"
        assert greeting.startswith("Welcome back. 1 fact and 1 conversation are remembered. The newest: No, I moved")
        assert done.code == OK

    def test_json_mode_prints_only_answers(self, tmp_path: Path):
        done = chat(tmp_path, "I live in Lisbon.", options=("--json",))
        assert [line["said"] for line in read_json_lines(done)] == ["I live in Lisbon."]
        again = chat(tmp_path, "Where do I live?", options=("--json",))
        assert read_json_lines(again)[0]["recalled"][0]["item"]["content"] == "I live in Lisbon."

    def test_learning_stops_at_its_timeout(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        async def learn() -> None:
            async with AsyncMemory.open(tmp_path / "recollect.db", session="s") as memory:
                await memory.record_turn("I live in Lisbon.")
                await learn_from_conversation(memory, ChatTerminal(as_json=False), seconds=0)

        asyncio.run(learn())
        assert capsys.readouterr().out.startswith("not everything that was said is learned yet; `recollect lifecycle`")

    def test_unreachable_model_does_not_block_leaving(self, tmp_path: Path):
        unreachable = "openai:m@http://127.0.0.1:9/v1"
        done = chat(tmp_path, "/remember The parcel is blue.", RECOLLECT_LLM=unreachable)
        assert done.code == OK, done.err
        assert "Stored. To continue" in done.out


class TestKill:
    def test_message_being_answered_survives_kill(self, tmp_path: Path):
        with Wire(Say("Noted."), Hang()) as wire:
            model = ("--model", f"openai:m@{wire.openai}")
            with subprocess.Popen(
                [RECOLLECT, "chat", "--user", "ada", *SESSION, *model],
                cwd=tmp_path,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **PLAIN, **KEYS},
            ) as running:
                assert running.stdin is not None
                running.stdin.write(b"My cat is called Mia.\nTell me of Mia.\n")
                running.stdin.flush()
                while len(wire.requests) < 2:
                    assert running.poll() is None
                running.send_signal(signal.SIGKILL)
            assert running.returncode == -signal.SIGKILL
            sent = [message["content"] for message in wire.requests[1].body["messages"]]
        assert read_messages(tmp_path) == [
            ("user", "My cat is called Mia."),
            ("assistant", "Noted."),
            ("user", "Tell me of Mia."),
        ]
        assert sent[1:] == ["My cat is called Mia.", "Noted.", "Tell me of Mia."]  # stored messages are not sent twice

    def test_message_and_answer_are_one_turn(self, tmp_path: Path):
        with Wire(Say("Noted.")) as wire:
            chat(tmp_path, "My cat is called Mia.", options=("--model", f"openai:m@{wire.openai}", *SESSION))
        with AgentMemory.open(tmp_path / "recollect.db", user="ada", session="s") as memory:
            turns = [message.metadata["turn"] for message in memory.conversation.get_last_n(10)]
            episodes = memory.episodic.get_recent(10)
        assert len(turns) == 2
        assert len({*turns}) == 1
        assert len(episodes) == 2


class TestOutput:
    def test_why_matches_recalled_count(self, tmp_path: Path):
        with Wire(Say("Noted."), Say("Mia.")) as wire:
            model = ("--model", f"openai:m@{wire.openai}")
            done = chat(tmp_path, "My cat is called Mia.", "What is my cat called?", "/why", options=model)
        why = done.out.split("query: What is my cat called?\n")[1]
        assert done.out.count("recalled nothing") == 2
        assert "\n+ " not in f"\n{why}"
        assert "My cat is called Mia.  (this session, which the model sees)" in why

    def test_resume_hint_names_only_a_model_given_as_option(self, tmp_path: Path):
        model = "openai:m@http://127.0.0.1:9/v1"
        assert (
            f"recollect chat --session s --model {model} --user ada"
            in chat(tmp_path, "/quit", options=("--model", model, *SESSION)).out
        )
        assert (
            "--model"
            not in chat(tmp_path, "/quit", options=SESSION, RECOLLECT_LLM=model).out.split("Stored. To continue")[1]
        )

    def test_json_answer_is_stripped(self, tmp_path: Path):
        with Wire(Say("Hello there. ")) as wire:
            done = chat(tmp_path, "Hi", options=("--model", f"openai:m@{wire.openai}", "--json", *SESSION))
        assert read_json_lines(done)[0]["answer"] == "Hello there."
        assert read_messages(tmp_path)[-1] == ("assistant", "Hello there.")

    def test_stats_count_superseded_facts_separately(self, tmp_path: Path):
        with AgentMemory.open(tmp_path / "recollect.db", user="ada") as memory:
            memory.remember("The office is in Oslo.", key="office")
            memory.remember("The office is in Bergen.", key="office")
        done = chat(tmp_path, "/stats")
        assert "Welcome back. 1 fact and" in done.out
        assert "semantic  2, of which 1 true now" in done.out
