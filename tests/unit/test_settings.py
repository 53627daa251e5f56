"""Settings from arguments, the environment, the file and the defaults, in this order."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from recollect.errors import BadSettings
from recollect.settings import TIERS, MemoryTier, Secret, Settings, load_effective


def write_settings(directory: Path, text: str) -> Path:
    (directory / "recollect.toml").write_text(text, "utf-8")
    return directory


def test_load_prefers_arguments_then_environment_then_file(tmp_path: Path):
    write_settings(tmp_path, 'readers = 2\nthreads = 2\nstore = "file.db"\n')
    environ = {"RECOLLECT_READERS": "3", "RECOLLECT_THREADS": "3"}
    found = load_effective(environ, tmp_path, {"readers": 5, "threads": None})
    assert found["readers"] == (5, "argument")
    assert found["threads"] == (3, "RECOLLECT_THREADS")
    assert found["store"] == ("file.db", str(tmp_path / "recollect.toml"))
    assert found["embedder"] == ("minilm", "default")
    loaded = Settings.load(environ=environ, directory=tmp_path, readers=5)
    assert (loaded.readers, loaded.threads, loaded.store) == (5, 3, "file.db")


def test_values_have_the_type_of_their_option(tmp_path: Path):
    loaded = Settings.load(
        environ={"RECOLLECT_EMBED_TIMEOUT": "1.5", "RECOLLECT_CACHE_MIB": "8", "RECOLLECT_STORE": "x.db"},
        directory=write_settings(tmp_path, "min_relevance = 1\n"),
    )
    assert (loaded.embed_timeout, loaded.cache_mib, loaded.store, loaded.min_relevance) == (1.5, 8, "x.db", 1)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("THREADS", "many"),
        ("THREADS", "-1"), ("THREADS", "1.5"), ("READERS", "0"), ("READERS", "100"), ("READERS", ""),
        ("MIN_RELEVANCE", "1.1"), ("MIN_RELEVANCE", "nan"), ("EMBED_TIMEOUT", "0"), ("EMBED_TIMEOUT", "inf"),
        ("CACHE_MIB", "0"), ("MAX_CONTENT", "10"),
    ],
)  # fmt: skip
def test_invalid_variable_is_refused_by_name(tmp_path: Path, variable: str, value: str):
    with pytest.raises(BadSettings, match=f"(?i){variable}"):
        Settings.load(environ={f"RECOLLECT_{variable}": value}, directory=tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("threads = ", "TOML"), ("no_such_option = 1", "no_such_option"), ('threads = "2"', "threads"),
        ("threads = true", "threads"), ("threads = 1.5", "threads"), ("store = 5", "store"), ("tiers = 5", "tiers"),
        ("[tiers]\nepisodic = 5", "tiers"), ("[tiers.dreams]\nmax_items = 5", "dreams"),
        ("[tiers.episodic]\nsize = 5", "size"), ("[tiers.episodic]\nttl_seconds = 0", "ttl_seconds"),
        ('[tiers.episodic]\nmax_items = "5"', "max_items"), ('[tiers.episodic]\nname = "semantic"', "name"),
        ("[tiers.checkpoints]\nmax_items = 5", "checkpoints"),
    ],
)  # fmt: skip
def test_invalid_file_is_refused_by_name(tmp_path: Path, text: str, complaint: str):
    with pytest.raises(BadSettings, match=complaint):
        Settings.load(environ={}, directory=write_settings(tmp_path, text))


def test_binary_file_is_refused(tmp_path: Path):
    (tmp_path / "recollect.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadSettings, match=r"recollect\.toml"):
        Settings.load(environ={}, directory=tmp_path)


@pytest.mark.parametrize(
    "given", [{"threads": "2"}, {"min_relevance": "x"}, {"store": 5}, {"tiers": (1,)}, {"tiers": []}, {"readers": True}]
)
def test_invalid_arguments_are_refused(given: dict[str, Any]):
    with pytest.raises(BadSettings):
        Settings(**given)


def test_unknown_option_is_refused_with_a_suggestion(tmp_path: Path):
    with pytest.raises(BadSettings, match=r"stroe.*store"):
        Settings.load(environ={}, directory=tmp_path, stroe="x.db")


def test_tier_options_are_merged_with_the_defaults(tmp_path: Path):
    text = "[tiers.episodic]\nttl_seconds = 60\n[tiers.working]\nmax_items = 5\n"
    loaded = Settings.load(environ={}, directory=write_settings(tmp_path, text))
    assert loaded.tier("episodic") == MemoryTier("episodic", "default", 1000, 60)
    assert loaded.tier("working").max_items == 5
    assert loaded.tier("semantic") == TIERS[2]


def test_default_tiers_are_the_documented_ones():
    limits = {tier.name: (tier.max_items, tier.ttl_seconds) for tier in Settings().tiers}
    assert limits == {
        "working": (20, None),
        "episodic": (1000, 86_400),
        "semantic": (None, None),
        "procedural": (None, None),
    }
    with pytest.raises(BadSettings, match="semantic"):
        Settings().tier("dreams")


def test_options_are_few_and_documented():
    from dataclasses import fields

    assert len(fields(Settings)) <= 30
    assert all(option.metadata["why"] for option in fields(Settings))


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("RECOLLECT_STROE", "RECOLLECT_STORE"),
        ("RECOLLECT_MIN_RELEVANCY", "RECOLLECT_MIN_RELEVANCE"),
        ("RECOLLECT_RETRIE", "RECOLLECT_RETRIES"),
    ],
)
def test_misspelled_variable_is_refused_with_a_suggestion(slip: str, meant: str, tmp_path: Path):
    with pytest.raises(BadSettings, match=f"{slip} is not an option. Did you mean {meant}"):
        Settings.load(environ={slip: "1"}, directory=tmp_path)


def test_tiers_cannot_be_set_by_a_variable(tmp_path: Path):
    with pytest.raises(BadSettings, match=r"recollect\.toml"):
        Settings.load(environ={"RECOLLECT_TIERS": "x"}, directory=tmp_path)


@pytest.mark.parametrize(
    "other", ["MODEL_DIR", "CACHE", "FAILPOINTS", "SEED", "KILLS", "SOAK_SECONDS", "CLOCK_SECONDS", "TASKS", "MY_APP"]
)
def test_other_variables_with_our_prefix_are_ignored(other: str, tmp_path: Path):
    assert Settings.load(environ={f"RECOLLECT_{other}": "1"}, directory=tmp_path) == Settings()


class TestKeys:
    """API keys are used and never shown, neither in settings nor in errors."""

    KEY = "sk-a-key-that-nobody-may-see"

    @pytest.mark.parametrize("origin", ["argument", "environment", "file"])
    def test_key_from_any_source_is_not_shown(self, origin: str, tmp_path: Path):
        environ = {"RECOLLECT_OPENAI_API_KEY": self.KEY} if origin == "environment" else {}
        given = {"openai_api_key": self.KEY} if origin == "argument" else {}
        if origin == "file":
            write_settings(tmp_path, f'openai_api_key = "{self.KEY}"\n')
        loaded = Settings.load(environ=environ, directory=tmp_path, **given)
        assert isinstance(loaded.openai_api_key, Secret)
        assert loaded.openai_api_key.reveal() == self.KEY
        found = load_effective(environ, tmp_path, given)
        assert found["openai_api_key"][0] == "(set, and not shown)"
        assert found["voyage_api_key"] == ("", "default")
        for shown in (repr(loaded), str(loaded), f"{loaded.openai_api_key}", str(asdict(loaded)), str(found)):
            assert self.KEY not in shown
        assert self.KEY not in json.dumps({name: str(value) for name, value in found.items()})

    def test_secret_survives_a_copy(self):
        settings = Settings(openai_api_key=Secret(f" {self.KEY}\n"))
        again = copy.deepcopy(replace(settings, readers=2))
        assert again.openai_api_key == Secret(self.KEY)
        assert again != Settings()
        assert hash(again.openai_api_key) == hash(Secret(self.KEY))

    def test_secret_cannot_be_pickled(self):
        with pytest.raises(TypeError, match="cannot be pickled"):
            Secret(self.KEY).__reduce__()

    def test_invalid_key_is_refused_without_showing_it(self, tmp_path: Path):
        with pytest.raises(BadSettings, match="openai_api_key") as caught:
            Settings(openai_api_key=[self.KEY])  # type: ignore[arg-type]
        assert self.KEY not in str(caught.value)
        with pytest.raises(BadSettings, match="openai_api_key") as caught:
            Settings.load(environ={}, directory=write_settings(tmp_path, f'openai_api_key = ["{self.KEY}"]'))
        assert self.KEY not in str(caught.value)
