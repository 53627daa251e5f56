"""`recollect chat`, with lines piped in: what it recalls, keeps and tells, with a model and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recollect.sync import AgentMemory
from tests.interfaces.running import FAILED, OK, USAGE, Done, run
from tests.wire.script import Fail, Hang, Say
from tests.wire.server import Wire

KEYS = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "RECOLLECT_RETRIES": "0"}


def chat(directory: Path, *lines: str, options: tuple[str, ...] = (), **environ: str) -> Done:
    given = "".join(f"{line}\n" for line in lines).encode()
    return run(directory, "chat", "--user", "ada", *options, given=given, **KEYS, **environ)


def told(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


@pytest.fixture
def known(tmp_path: Path) -> Path:
    """A user of whom something is known."""
    with AgentMemory.open(tmp_path / "recollect.db", user="ada", session="monday") as memory:
        memory.remember("Ada is allergic to \x1b[31mpeanuts.")
        memory.record_turn("My flat is in Lisbon.", "Noted.")
    return tmp_path


class TestSecrets:
    """What is left out of what is kept is told where it was said."""

    def test_a_line_with_a_password_says_that_it_was_left_out(self, tmp_path: Path):
        said = "a password was left out; RECOLLECT_SECRETS=allow keeps it"
        done = chat(tmp_path, "The wifi has password=correct-horse now.", "/remember passwd=hunter2x", "Hello.")
        assert done.out.count(said) == 2
        kept = told(chat(tmp_path, "passwd=hunter2x opens it", "Hello.", options=("--json",)))
        assert [one.get("redacted") for one in kept] == [["password"], None]


class TestWithoutAModel:
    def test_the_answer_is_what_is_remembered_and_nothing_is_made_up(self, known: Path):
        done = chat(known, "What must Ada not eat?", "What is the capital of Mongolia?")
        assert done.code == OK, done.err
        greeting, answers = done.out.split("Ctrl-D leaves.\n")
        assert "Welcome back. 1 fact and 1 conversation are remembered. The newest: Ada is allergic" in greeting
        assert "No model answers here" in greeting
        first, second = answers.split("recalled nothing\n")
        assert first.startswith("recalled 1 memory; /why\n  Ada is allergic to peanuts.")
        assert second.startswith("  Kept. Nothing")
        assert "\x1b" not in done.out

    def test_what_was_said_is_recalled_later_but_not_the_question_itself(self, tmp_path: Path):
        done = chat(tmp_path, "I live in Lisbon with two cats.", "Where do I live?", "Where do I live?")
        assert done.out.count("recalled 1 memory; /why\n  user: I live in Lisbon with two cats.") == 2
        with AgentMemory.open(tmp_path / "recollect.db", user="ada") as memory:
            [session] = memory.episodic.sessions()
            said = memory.scoped(session=str(getattr(session, "session", session))).conversation.get_last_n(10)
        assert [(one.role, one.content) for one in said] == [
            ("user", "I live in Lisbon with two cats."),
            ("user", "Where do I live?"),
            ("user", "Where do I live?"),
        ]

    def test_a_session_is_new_unless_one_is_named(self, tmp_path: Path):
        first = chat(tmp_path, "The parcel is blue.", options=("--session", "s1"))
        assert "recollect chat --session s1 --user ada" in first.out
        again = chat(tmp_path, "/session", options=("--session", "s1"))
        assert "user: The parcel is blue." in again.out
        other = chat(tmp_path, "/session")
        assert "The parcel is blue." not in other.out

    def test_a_program_gets_a_line_of_json_for_each_line(self, known: Path):
        done = chat(known, "What must Ada not eat?", "/why", "/nonsense", "", options=("--json",))
        answer, why, wrong = told(done)
        assert answer["said"] == "What must Ada not eat?"
        assert answer["answer"] is None
        assert [hit["item"]["content"] for hit in answer["recalled"]] == ["Ada is allergic to \x1b[31mpeanuts."]
        assert "cosine" in why["text"]
        assert (wrong["error"], wrong["said"]) == ("BadInput", "/nonsense")
        assert done.code == FAILED


class TestCommands:
    def test_each_does_what_help_says(self, known: Path):
        done = chat(known, "/help", "/memories", "/remember I am left-handed.", "/recall which hand", "/stats", "/why")
        assert done.code == OK, done.err
        for name in ("/remember TEXT", "/recall QUERY", "/forget ID", "/why", "/memories", "/session", "/stats"):
            assert name in done.out
        assert "remembered" in done.out
        assert "I am left-handed." in done.out.split("remembered")[-1]
        assert "semantic  2" in done.out
        assert "query: which hand" in done.out

    def test_a_fact_is_forgotten_by_the_short_id_that_was_shown(self, known: Path):
        listed = chat(known, "/memories")
        short = listed.out.split("Ctrl-D leaves.\n")[1].split()[0]
        assert len(short) == 8
        assert f"forgot {short}" in chat(known, "/memories", f"/forget {short}").out
        assert "no facts yet" in chat(known, "/memories").out

    def test_what_was_said_becomes_facts_when_asked(self, tmp_path: Path):
        done = chat(tmp_path, "Please remember that my flat is in Lisbon.", "/learn", "/memories")
        assert "1 promoted" in done.out
        assert "my flat is in Lisbon" in done.out.split("1 promoted")[1]

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("/stat", "did you mean /stats?"),
            ("/xyzzy", "/help lists the commands"),
            ("/remember", "/remember needs something"),
            ("/forget none", "there is no fact none"),
        ],
    )
    def test_a_slip_is_explained_and_the_chat_goes_on(self, tmp_path: Path, line: str, said: str):
        done = chat(tmp_path, line, "/stats")
        assert said in done.err
        assert "on disk" in done.out
        assert done.code == FAILED  # a script that pipes lines in learns that one of them was wrong

    def test_quitting_leaves_the_rest_unread(self, tmp_path: Path):
        assert "on disk" not in chat(tmp_path, "/quit", "/stats").out


class TestWithAModel:
    @pytest.mark.parametrize("protocol", ["openai", "anthropic"])
    def test_it_is_told_what_is_remembered_and_what_was_said(self, known: Path, protocol: str):
        with Wire(Say("No peanuts for you."), Say("Of course.")) as wire:
            model = f"{protocol}:some-model@{getattr(wire, protocol)}"
            done = chat(known, "What must Ada not eat?", "Are you sure?", options=("--model", model))
        assert done.code == OK, done.err
        assert f"{protocol}:some-model answers." in done.out
        assert "recalled 1 memory; /why\nNo peanuts for you.\n" in done.out
        first, second = (json.dumps(request.body) for request in wire.requests)
        assert "Ada is allergic to peanuts." in first
        assert "No peanuts for you." in second
        assert wire.requests[1].body["messages"][-1]["content"] != ""

    def test_the_setting_names_the_model_too(self, tmp_path: Path):
        with Wire(Say("Hello.")) as wire:
            done = chat(tmp_path, "Hi", RECOLLECT_LLM=f"openai:m@{wire.openai}")
        assert "\nHello.\n" in done.out

    def test_a_failing_model_is_one_line_and_the_chat_goes_on(self, tmp_path: Path):
        with Wire(Fail(401, "no_key", "who are you?"), Say("Now I am here.")) as wire:
            model = ("--model", f"openai:m@{wire.openai}", "--session", "s")
            done = chat(tmp_path, "The parcel is blue.", "And now?", "/session", options=model)
        assert done.code == FAILED
        assert len(done.err.strip().splitlines()) == 1
        assert "what you said is kept" in done.out
        assert "Now I am here." in done.out
        assert "user: The parcel is blue." in done.out

    def test_what_a_model_writes_cannot_drive_the_terminal(self, tmp_path: Path):
        with Wire(Say("red \x1b[31malert\x07 \x1b]0;title\x07 end")) as wire:
            done = chat(tmp_path, "Hi", options=("--model", f"openai:m@{wire.openai}"))
        assert "alert" in done.out
        assert "\x1b" not in done.out
        assert "\x07" not in done.out

    def test_a_refusal_and_an_answer_that_was_cut_are_said(self, tmp_path: Path):
        with Wire(Say("I would rather not.", stop="refusal"), Say("Once upon", stop="length")) as wire:
            done = chat(tmp_path, "Hi", "A tale", options=("--model", f"openai:m@{wire.openai}"))
        assert "declined" in done.err
        assert "ran out of room" in done.err

    def test_a_program_gets_the_answer_as_json(self, tmp_path: Path):
        with Wire(Say("Hello."), Hang()) as wire:
            model = ("--model", f"openai:m@{wire.openai}", "--json")
            done = chat(tmp_path, "Hi", "Are you there?", options=model, RECOLLECT_LLM_TIMEOUT="1")
        first, second = told(done)
        assert (first["said"], first["answer"]) == ("Hi", "Hello.")
        assert second["answer"] is None
        assert second["message"]
        assert done.code == FAILED

    @pytest.mark.parametrize("model", ["nonsense", "nobody:m", "openai:"])
    def test_a_name_that_cannot_be_meant_makes_no_store(self, tmp_path: Path, model: str):
        done = chat(tmp_path, "Hi", options=("--model", model))
        assert done.code in (USAGE, FAILED)
        assert "anthropic" in done.err or "openai" in done.err
        assert list(tmp_path.iterdir()) == []
