"""The command line for people and programs: output, exit codes, and no tracebacks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recollect.sync import AgentMemory
from tests.cli.cli_runner import FAILED, NOT_FOUND, OK, USAGE, Call, caller, run
from tests.embedders import HashEmbedder

ESCAPES = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 bell\x07 \x9b2J back\x08space \rreturn \x1bP+q\x1b\\ :100: [bold]x[/bold]"
)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a function that runs the entry point in this process and fails unless it exits."""
    return caller(capsys, monkeypatch)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a directory with a store that other processes filled."""
    directory = tmp_path_factory.mktemp("cli")
    done = run(
        directory, "remember", "Ada prefers metric units in every report.", "--user", "ada", "--importance", "0.8"
    )
    assert done.code == OK, done.err
    assert re.fullmatch(r"remembered [0-9a-f]{24}\n", done.out)
    assert (directory / "recollect.db").is_file()
    run(directory, "remember", "-", "--user", "ada", given="Der Kater heißt Möhre.\n".encode())
    (directory / "notes.txt").write_text("some notes, and no database at all\n" * 50, "utf-8")
    return directory


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a store with a text that contains terminal escapes."""
    directory = tmp_path_factory.mktemp("hostile")
    done = run(directory, "remember", "--source", "web", "--", f"escapes {ESCAPES}")
    assert done.code == OK, done.err
    return directory


class TestMemory:
    def test_fact_of_one_process_is_recalled_by_another(self, place: Path):
        done = run(place, "recall", "Should distances be in miles or kilometres?", "--user", "ada")
        assert done.code == OK
        assert done.out.startswith("## Relevant knowledge\n- Ada prefers metric units")

    def test_json_contains_hits_and_their_reasons(self, place: Path, call: Call):
        found = call(place, "recall", "Ada's units in a report", "--user", "ada", "-n", "1", "--json").json
        [hit] = found["hits"]
        assert hit["item"]["content"] == "Ada prefers metric units in every report."
        assert hit["item"]["importance"] == 0.8
        assert 0.0 < hit["relevance"] <= 1.0
        assert hit["why"]["cosine"] > 0
        assert found["tokens"] > 0
        assert found["text"].startswith("## Relevant knowledge")

    def test_recall_without_relevant_hit_exits_with_1(self, place: Path, call: Call):
        done = call(place, "recall", "What is the capital of Mongolia?", "--user", "ada")
        assert (done.code, done.out) == (NOT_FOUND, "")
        assert "nothing relevant" in done.err
        empty = call(place, "recall", "anything", "--user", "nobody", "--json")
        assert (empty.code, empty.json["hits"]) == (NOT_FOUND, [])

    def test_explain_shows_scores(self, place: Path, call: Call):
        done = call(place, "recall", "metric units report", "--user", "ada", "--explain")
        assert "cosine" in done.out
        assert "metric" in done.out

    def test_standard_input_is_stored_unchanged(self, place: Path, call: Call):
        found = call(place, "recall", "Wie heißt der Kater?", "--user", "ada", "--min-relevance", "0", "--json").json
        assert "Der Kater heißt Möhre.\n" in [hit["item"]["content"] for hit in found["hits"]]

    def test_key_supersedes_and_forget_deletes(self, tmp_path: Path, call: Call):
        first = call(tmp_path, "remember", "The office is in Oslo.", "--key", "office", "--json").json
        call(tmp_path, "remember", "The office is in Bergen.", "--key", "office")
        stats = call(tmp_path, "stats", "--json").json
        assert stats["items"] == 2
        assert stats["model"]
        assert stats["bytes"] > 0
        assert call(tmp_path, "forget", first["id"], "--json").json == {"id": first["id"], "forgotten": True}
        again = call(tmp_path, "forget", first["id"], "--json")
        assert (again.code, again.json) == (NOT_FOUND, {"id": first["id"], "forgotten": False})
        assert call(tmp_path, "forget", first["id"])[:2] == (NOT_FOUND, "")
        assert "1" in call(tmp_path, "stats").out

    def test_store_option_and_variable_select_the_store(self, tmp_path: Path, call: Call):
        call(tmp_path, "remember", "x", "--store", "other.db")
        assert [file.name for file in tmp_path.glob("*.db")] == ["other.db"]
        assert call(tmp_path, "stats", "--json", RECOLLECT_STORE="other.db").json["items"] == 1


class TestTerminal:
    def test_stored_text_has_no_terminal_escapes(self, hostile: Path, call: Call):
        for option in ("-n1", "--explain"):
            shown = call(hostile, "recall", "escapes red title bell", "--min-relevance", "0", option)
            assert shown.code == OK
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown.out)
        assert ":100: [bold]x[/bold]" in call(hostile, "recall", "escapes", "--min-relevance", "0").out

    def test_json_is_ascii_and_lossless(self, hostile: Path, call: Call):
        done = call(hostile, "recall", "escapes red title bell", "--min-relevance", "0", "--json")
        assert done.out.isascii()
        assert "\x1b" not in done.out
        assert done.json["hits"][0]["item"]["content"] == f"escapes {ESCAPES}"

    def test_error_message_has_no_terminal_escapes(self, hostile: Path, call: Call):
        done = call(hostile, "forget", "\x1b[31mid\x07")
        assert done.code == NOT_FOUND
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.err)

    def test_ascii_terminal_gets_replacement_characters(self, place: Path):
        done = run(place, "recall", "Kater", "--user", "ada", "--min-relevance", "0", PYTHONIOENCODING="ascii")
        assert done.code == OK
        assert "M?hre" in done.out


class TestErrors:
    @pytest.mark.parametrize(
        ("code", "arguments"),
        [
            (USAGE, ["no-such-command"]),
            (USAGE, ["remember"]),
            (USAGE, ["remember", "x", "--no-such-option"]),
            (USAGE, ["remember", "x", "--importance", "much"]),
            (USAGE, ["remember", "x", "--importance", "7"]),
            (USAGE, ["remember", ""]),
            (USAGE, ["remember", "half \udcff a character"]),
            (USAGE, ["remember", "x", "--user", ""]),
            (USAGE, ["recall", ""]),
            (USAGE, ["recall", "half \udcff a character"]),
            (USAGE, ["recall", "x", "-n", "-1"]),
            (USAGE, ["recall", "x", "--min-relevance", "2"]),
            (USAGE, ["recall", "x", "--budget", "-1"]),
            (FAILED, ["recall", "x", "--store", "no/such/directory/agent.db"]),
            (FAILED, ["stats", "--store", "."]),
            (FAILED, ["stats", "--store", "notes.txt"]),
            (FAILED, ["stats", "--store", "mysql://host"]),
            (USAGE, ["backup", "notes.txt"]),
            (FAILED, ["backup", "no/such/directory/copy.db"]),
            (USAGE, ["export", "notes.txt"]),
            (USAGE, ["export", "notes.txt", "--overwrite"]),
            (USAGE, ["export", "."]),
            (FAILED, ["export", "no/such/directory/copy.jsonl"]),
            (USAGE, ["import", "notes.txt"]),
            (NOT_FOUND, ["import", "none.jsonl"]),
            (USAGE, ["import", "recollect.db"]),
            (USAGE, ["import", "notes.txt", "--trust", "7"]),
            (NOT_FOUND, ["procedures", "show", "nothing"]),
            (USAGE, ["procedures", "show"]),
            (USAGE, ["procedures", "list", "--tag", ""]),
            (USAGE, ["lifecycle", "--user", ""]),
            (FAILED, ["reembed", "no-such-model"]),
            (FAILED, ["reembed", "minilm:no/such/directory"]),
            (USAGE, ["eval", "locomo", "none.json"]),
            (USAGE, ["eval", "locomo", "notes.txt"]),
        ],
        ids=lambda value: ascii(" ".join(value)) if isinstance(value, list) else None,
    )
    def test_error_prints_one_line_and_exit_code(self, place: Path, call: Call, code: int, arguments: list[str]):
        done = call(place, *arguments)
        assert done.code == code, done.err
        assert done.out == ""
        assert done.err.strip()

    def test_error_of_a_process_prints_one_line(self, place: Path):
        done = run(place, "stats", "--store", "notes.txt")
        assert (done.code, done.out) == (FAILED, "")
        assert len(done.err.splitlines()) == 1

    def test_binary_input_is_rejected(self, place: Path):
        assert run(place, "remember", "-", given=b"\xff\xfe").code == USAGE

    @pytest.mark.parametrize(
        "arguments",
        [
            ["recall", "x"],
            ["forget", "x"],
            ["stats"],
            ["backup", "copy.db"],
            ["reembed", "minilm"],
            ["export", "copy.jsonl"],
            ["lifecycle"],
            ["procedures", "list"],
            ["procedures", "show", "x"],
        ],
    )
    def test_commands_except_remember_create_no_store(self, tmp_path: Path, call: Call, arguments: list[str]):
        done = call(tmp_path, *arguments, "--store", str(tmp_path / "typo.db"))
        assert done.code == FAILED
        assert "there is no store at" in done.err
        assert list(tmp_path.iterdir()) == []

    def test_unsupported_tier_location_is_reported_first(self, tmp_path: Path, call: Call):
        # Mutant: the store is checked for existence first.
        for command in (["stats"], ["recall", "x"], ["remember", "x"]):
            done = call(tmp_path, *command, RECOLLECT_STORES="conversation=chroma:./c")
            assert done.code == FAILED
            assert "cannot keep conversation" in done.err
        assert list(tmp_path.iterdir()) == []

    def test_facts_in_chroma_directory_are_listed(self, tmp_path: Path, call: Call):
        stores = "store = 'agent.db'\n[stores]\nsemantic = 'chroma:./facts'\nprocedural = 'chroma:./facts'\n"
        (tmp_path / "recollect.toml").write_text(stores, "utf-8")
        assert call(tmp_path, "remember", "Ada is left-handed.", "--user", "ada").code == 0
        assert (tmp_path / "facts").is_dir()
        listed = call(tmp_path, "list", "--user", "ada")
        assert (listed.code, "left-handed" in listed.out) == (0, True)

    def test_bad_settings_are_named_with_suggestion(self, tmp_path: Path, call: Call):
        (tmp_path / "recollect.toml").write_text("stroe = 'x.db'\n", "utf-8")
        done = call(tmp_path, "stats")
        assert done.code == FAILED
        assert "stroe" in done.err
        assert "Did you mean 'store'?" in done.err
        assert "READERS" in call(tmp_path.parent, "config", "show", RECOLLECT_READERS="many").err

    def test_missing_model_names_the_setup_command(self, tmp_path: Path, call: Call):
        done = call(tmp_path, "remember", "x", RECOLLECT_CACHE=str(tmp_path))
        assert done.code == FAILED
        assert "recollect setup" in done.err


class TestMaintenance:
    def test_setup_is_idempotent(self, place: Path, call: Call):
        for _ in range(2):
            done = call(place, "setup")
            assert done.code == OK, done.err
            assert "ready" in done.out

    def test_backup_is_a_usable_store(self, place: Path, tmp_path: Path, call: Call):
        copy = str(tmp_path / "copy.db")
        assert call(place, "backup", copy, "--json").json == {"path": copy}
        assert call(place, "backup", copy).code == USAGE
        assert call(tmp_path, "stats", "--store", copy, "--user", "ada", "--json").json["items"] == 2

    def test_store_of_another_model_is_reembedded(self, tmp_path: Path, call: Call):
        """The fix that the error names must work without the old model."""
        with AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder()) as memory:
            memory.remember("The invoice export times out above 10,000 rows.")
        refused = call(tmp_path, "recall", "billing", "--store", "agent.db")
        assert refused.code == FAILED
        assert "recollect reembed" in refused.err
        done = call(tmp_path, "reembed", "minilm", "--store", "agent.db", "--json")
        assert done.json == {"embedded": 1, "model": "minilm"}
        found = call(tmp_path, "recall", "Why does the billing download hang?", "--store=agent.db", "--min-relevance=0")
        assert "invoice export" in found.out

    def test_export_is_imported_into_another_store(self, place: Path, tmp_path: Path, call: Call):
        file = str(tmp_path / "ada.jsonl")
        wrote = call(place, "export", file, "--user", "ada", "--json").json
        assert wrote == {"path": file, "lines": {"semantic": 2}}
        assert call(place, "export", file, "--user", "ada").code == USAGE
        assert "2 lines" in call(place, "export", file, "--user", "ada", "--overwrite").out
        took = call(tmp_path, "import", file, "--user", "bob", "--store", "other.db", "--json").json
        assert (took["added"], took["expired"]) == ({"semantic": 2}, 0)
        again = call(tmp_path, "import", file, "--user", "bob", "--store", "other.db")
        assert "added 0, 2 were there already" in again.out
        found = call(tmp_path, "recall", "Should distances be in miles?", "--user", "bob", "--store", "other.db")
        assert "Ada prefers metric units" in found.out

    def test_export_to_stdout_equals_the_file(self, place: Path, tmp_path: Path, call: Call):
        call(place, "export", str(tmp_path / "a.jsonl"), "--user", "ada")
        piped = run(place, "export", "-", "--user", "ada")
        assert (piped.code, piped.err) == (OK, "")
        assert piped.out == (tmp_path / "a.jsonl").read_text("utf-8")
        assert not (place / "-").exists()
        assert run(place, "export", "-", "--json").code == USAGE

    def test_bad_import_line_is_named_with_its_file(self, place: Path, tmp_path: Path, call: Call):
        assert "notes.txt, line 1: " in call(place, "import", "notes.txt", "--store", str(tmp_path / "new.db")).err

    def test_import_of_missing_file_creates_no_store(self, tmp_path: Path, call: Call):
        assert call(tmp_path, "import", "none.jsonl").code == NOT_FOUND
        assert list(tmp_path.iterdir()) == []

    def test_stats_list_every_tier(self, place: Path, call: Call):
        tiers = call(place, "stats", "--user", "ada", "--json").json["tiers"]
        assert tiers["semantic"]["items"] == 2
        assert tiers["semantic"]["oldest"] <= tiers["semantic"]["newest"]
        assert set(tiers) == {"working", "conversation", "episodic", "semantic", "procedural", "checkpoints"}
        shown_stats = call(place, "stats", "--user", "ada").out
        assert re.search(r"semantic  2, \d{4}-", shown_stats)
        assert re.search(r"on disk  [\d.]+ KiB\n", shown_stats)
        assert "all users  2 items in 1 scope\n" in shown_stats

    def test_lifecycle_is_planned_and_run(self, tmp_path: Path, call: Call):
        with AgentMemory.open(tmp_path / "recollect.db", user="ada", session="s") as memory:
            memory.record_turn("Please remember that my flat is in Lisbon.")
        for _ in range(2):
            planned = call(tmp_path, "lifecycle", "--plan", "--user", "ada", "--json").json
            assert (planned["planned"], planned["counts"]["promoted"]) == (True, 1)
            assert planned["promoted"][0]["reason"]
        assert "1 promoted" in call(tmp_path, "lifecycle", "--user", "ada").out
        assert "nothing to do" in call(tmp_path, "lifecycle", "--user", "ada").out
        assert "Lisbon" in call(tmp_path, "recall", "Where is my flat?", "--user", "ada").out

    def test_procedures_are_listed_and_shown(self, tmp_path: Path, call: Call):
        with AgentMemory.open(tmp_path / "recollect.db", user="ada") as memory:
            memory.procedural.save("deploy.staging", "Push a tag.", description="how to ship", tags=["release"])
            memory.procedural.save("deploy.staging", "Push a tag and wait.")
            memory.procedural.record_outcome("deploy.staging", False, note="the pipeline was \x1b[31mred")
            memory.procedural.save("old", "Do not.")
            memory.procedural.retire("old")
        assert [procedure["key"] for procedure in call(tmp_path, "procedures", "list", "--json").json] == [
            "deploy.staging"
        ]
        listed = call(tmp_path, "procedures", "list", "--retired")
        assert "deploy.staging  version 2, worked 0 of 1 times  how to ship" in listed.out
        assert "old  version 1, not tried yet, retired" in listed.out
        assert call(tmp_path, "procedures", "list", "--tag", "none").out == ""
        shown = call(tmp_path, "procedures", "show", "deploy.staging")
        assert "Push a tag and wait." in shown.out
        assert "failed: the pipeline was red" in shown.out
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown.out)
        found = call(tmp_path, "procedures", "show", "deploy.staging", "--version", "1", "--json").json
        assert (found["body"], found["standing"]) == ("Push a tag.", "superseded")
        assert [version["version"] for version in found["versions"]] == [2, 1]
        assert call(tmp_path, "procedures", "show", "deploy.staging", "--version", "9").code == NOT_FOUND

    def test_config_show_prints_values_and_their_origin(self, tmp_path: Path, call: Call):
        (tmp_path / "recollect.toml").write_text("readers = 2\n", "utf-8")
        shown = call(tmp_path, "config", "show", "--json", RECOLLECT_RETRIES="5").json
        assert shown["readers"]["value"] == 2
        assert shown["readers"]["from"].endswith("recollect.toml")
        assert shown["retries"] == {"value": 5, "from": "RECOLLECT_RETRIES"}
        assert shown["embedder"]["from"] == "default"
        assert "minilm" in call(tmp_path, "config", "show").out
