"""`recollect chat` with piped input: recall, storage and output, with and without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recollect.sync import AgentMemory
from tests.cli.cli_runner import FAILED, OK, USAGE, Done, run_here
from tests.wire.script import Fail, Hang, Say
from tests.wire.server import Wire

KEYS = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "RECOLLECT_RETRIES": "0"}


def chat(directory: Path, *lines: str, options: tuple[str, ...] = (), **environ: str) -> Done:
    given = "".join(f"{line}\n" for line in lines).encode()
    return run_here(directory, "chat", "--user", "ada", *options, given=given, **KEYS, **environ)


def read_json_lines(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Create a store with a fact and a turn of a user."""
    with AgentMemory.open(tmp_path / "recollect.db", user="ada", session="monday") as memory:
        memory.remember("Ada is allergic to \x1b[31mpeanuts.")
        memory.record_turn("My flat is in Lisbon.", "Noted.")
    return tmp_path


class TestSecrets:
    """Redactions are reported in the chat."""

    def test_redacted_password_is_reported(self, tmp_path: Path):
        said = "a password was left out; RECOLLECT_SECRETS=allow keeps it"
        done = chat(tmp_path, "The wifi has password=correct-horse now.", "/remember passwd=hunter2x", "Hello.")
        assert done.out.count(said) == 2
        kept = read_json_lines(chat(tmp_path, "passwd=hunter2x opens it", "Hello.", options=("--json",)))
        assert [line.get("redacted") for line in kept] == [["password"], None]


class TestWithoutModel:
    def test_answer_without_model_lists_recalled_memories(self, filled: Path):
        done = chat(filled, "What must Ada not eat?", "What is the capital of Mongolia?")
        assert done.code == OK, done.err
        greeting, answers = done.out.split("Ctrl-D leaves.\n")
        assert "Welcome back. 1 fact and 1 conversation are remembered. The newest: Ada is allergic" in greeting
        assert "No model answers here" in greeting
        first, second = answers.split("recalled nothing\n")
        assert first.startswith("recalled 1 memory; /why\n  Ada is allergic to peanuts.")
        assert second.startswith("  Stored. No earlier")
        assert "\x1b" not in done.out

    def test_earlier_message_is_recalled_but_not_the_question(self, tmp_path: Path):
        done = chat(tmp_path, "I live in Lisbon with two cats.", "Where do I live?", "Where do I live?")
        assert done.out.count("recalled 1 memory; /why\n  user: I live in Lisbon with two cats.") == 2
        with AgentMemory.open(tmp_path / "recollect.db", user="ada") as memory:
            [session] = memory.episodic.sessions()
            said = memory.scoped(session=str(getattr(session, "session", session))).conversation.get_last_n(10)
        assert [(message.role, message.content) for message in said] == [
            ("user", "I live in Lisbon with two cats."),
            ("user", "Where do I live?"),
            ("user", "Where do I live?"),
        ]

    def test_session_is_new_unless_named(self, tmp_path: Path):
        first = chat(tmp_path, "The parcel is blue.", options=("--session", "s1"))
        assert "recollect chat --session s1 --user ada" in first.out
        again = chat(tmp_path, "/session", options=("--session", "s1"))
        assert "user: The parcel is blue." in again.out
        other = chat(tmp_path, "/session")
        assert "The parcel is blue." not in other.out

    def test_json_mode_prints_one_line_per_input(self, filled: Path):
        done = chat(filled, "What must Ada not eat?", "/why", "/nonsense", "", options=("--json",))
        answer, why, wrong = read_json_lines(done)
        assert answer["said"] == "What must Ada not eat?"
        assert answer["answer"] is None
        assert [hit["item"]["content"] for hit in answer["recalled"]] == ["Ada is allergic to \x1b[31mpeanuts."]
        assert "cosine" in why["text"]
        assert (wrong["error"], wrong["said"]) == ("BadInput", "/nonsense")
        assert done.code == FAILED


class TestCommands:
    def test_commands_do_what_help_says(self, filled: Path):
        done = chat(filled, "/help", "/memories", "/remember I am left-handed.", "/recall which hand", "/stats", "/why")
        assert done.code == OK, done.err
        for name in ("/remember TEXT", "/recall QUERY", "/forget ID", "/why", "/memories", "/session", "/stats"):
            assert name in done.out
        assert "remembered" in done.out
        assert "I am left-handed." in done.out.split("remembered")[-1]
        assert "semantic  2" in done.out
        assert "query: which hand" in done.out

    def test_forget_accepts_the_short_id_shown(self, filled: Path):
        listed = chat(filled, "/memories")
        short = listed.out.split("Ctrl-D leaves.\n")[1].split()[0]
        assert len(short) == 8
        assert f"forgot {short}" in chat(filled, "/memories", f"/forget {short}").out
        assert "no facts yet" in chat(filled, "/memories").out

    def test_learn_promotes_messages_to_facts(self, tmp_path: Path):
        done = chat(tmp_path, "Please remember that my flat is in Lisbon.", "/learn", "/memories")
        assert "1 promoted" in done.out
        assert "my flat is in Lisbon" in done.out.split("1 promoted")[1]

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("/stat", "did you mean /stats?"),
            ("/xyzzy", "/help lists the commands"),
            ("/remember", "/remember needs an argument"),
            ("/forget none", "there is no fact none"),
        ],
    )
    def test_bad_command_is_explained_and_chat_continues(self, tmp_path: Path, line: str, said: str):
        done = chat(tmp_path, line, "/stats")
        assert said in done.err
        assert "on disk" in done.out
        assert done.code == FAILED  # a script that pipes lines must see that one failed

    def test_quit_ignores_remaining_input(self, tmp_path: Path):
        assert "on disk" not in chat(tmp_path, "/quit", "/stats").out


class TestWithModel:
    @pytest.mark.parametrize("protocol", ["openai", "anthropic"])
    def test_model_receives_memories_and_earlier_messages(self, filled: Path, protocol: str):
        with Wire(Say("No peanuts for you."), Say("Of course.")) as wire:
            model = f"{protocol}:some-model@{getattr(wire, protocol)}"
            done = chat(filled, "What must Ada not eat?", "Are you sure?", options=("--model", model))
        assert done.code == OK, done.err
        assert f"{protocol}:some-model answers." in done.out
        assert "recalled 1 memory; /why\nNo peanuts for you.\n" in done.out
        first, second = (json.dumps(request.body) for request in wire.requests)
        assert "Ada is allergic to peanuts." in first
        assert "No peanuts for you." in second
        assert wire.requests[1].body["messages"][-1]["content"] != ""

    def test_llm_setting_selects_the_model(self, tmp_path: Path):
        with Wire(Say("Hello.")) as wire:
            done = chat(tmp_path, "Hi", RECOLLECT_LLM=f"openai:m@{wire.openai}")
        assert "\nHello.\n" in done.out

    def test_failing_model_prints_one_line_and_chat_continues(self, tmp_path: Path):
        with Wire(Fail(401, "no_key", "who are you?"), Say("Now I am here.")) as wire:
            model = ("--model", f"openai:m@{wire.openai}", "--session", "s")
            done = chat(tmp_path, "The parcel is blue.", "And now?", "/session", options=model)
        assert done.code == FAILED
        assert len(done.err.strip().splitlines()) == 1
        assert "what you said is kept" in done.out
        assert "Now I am here." in done.out
        assert "user: The parcel is blue." in done.out

    def test_model_output_has_no_terminal_escapes(self, tmp_path: Path):
        with Wire(Say("red \x1b[31malert\x07 \x1b]0;title\x07 end")) as wire:
            done = chat(tmp_path, "Hi", options=("--model", f"openai:m@{wire.openai}"))
        assert "alert" in done.out
        assert "\x1b" not in done.out
        assert "\x07" not in done.out

    def test_refusal_and_truncated_answer_are_reported(self, tmp_path: Path):
        with Wire(Say("I would rather not.", stop="refusal"), Say("Once upon", stop="length")) as wire:
            done = chat(tmp_path, "Hi", "A tale", options=("--model", f"openai:m@{wire.openai}"))
        assert "declined" in done.err
        assert "ran out of room" in done.err

    def test_json_mode_prints_answers(self, tmp_path: Path):
        with Wire(Say("Hello."), Hang()) as wire:
            model = ("--model", f"openai:m@{wire.openai}", "--json")
            done = chat(tmp_path, "Hi", "Are you there?", options=model, RECOLLECT_LLM_TIMEOUT="1")
        first, second = read_json_lines(done)
        assert (first["said"], first["answer"]) == ("Hi", "Hello.")
        assert second["answer"] is None
        assert second["message"]
        assert done.code == FAILED

    @pytest.mark.parametrize("model", ["nonsense", "nobody:m", "openai:"])
    def test_invalid_model_name_creates_no_store(self, tmp_path: Path, model: str):
        done = chat(tmp_path, "Hi", options=("--model", model))
        assert done.code in (USAGE, FAILED)
        assert "anthropic" in done.err or "openai" in done.err
        assert list(tmp_path.iterdir()) == []
