"""Local embedder, compared with the vectors of the original model."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from recollect.errors import ModelNotInstalled
from recollect.models.minilm import MiniLM
from recollect.models.minilm.build import install
from recollect.models.minilm.model import plan_runs

DATA = Path(__file__).parent / "data"
TEXTS = json.loads((DATA / "minilm_reference.json").read_text("utf-8"))
FP32 = np.load(DATA / "minilm_reference.npy").astype(np.float32)


@pytest.fixture(scope="module")
def model():
    install()
    return MiniLM(threads=1)


@pytest.fixture(scope="module")
def vectors(model):
    return model.embed_batch(TEXTS)


def test_vectors_are_unit_length_float32_rows(vectors):
    assert vectors.shape == (200, 384)
    assert vectors.dtype == np.float32
    assert vectors.flags.c_contiguous
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_int8_keeps_a_cosine_of_0_995_with_the_original(vectors):
    cosines = (vectors * FP32).sum(axis=1) / np.linalg.norm(FP32, axis=1)
    assert cosines.min() >= 0.995, TEXTS[int(cosines.argmin())]
    assert cosines.mean() >= 0.998


def test_int8_products_do_not_overflow_16_bits():
    import onnx

    place = install()
    built = onnx.load(place / json.loads((place / "manifest.json").read_text())["graph"])
    constants = [
        onnx.numpy_helper.to_array(entry) for entry in built.graph.initializer if entry.name.endswith(".weight")
    ]
    weights = [value.astype(int) for value in constants if value.dtype == np.int8]
    assert len(weights) == 6 * (2 + 1 + 2 + 6)
    for weight in weights:
        pairs = weight.reshape(-1, 2, weight.shape[1])
        assert 255 * np.maximum(pairs, 0).sum(axis=1).max() < 2**15
        assert 255 * np.minimum(pairs, 0).sum(axis=1).min() >= -(2**15)


def test_vector_does_not_depend_on_the_batch(model, vectors):
    order = list(range(len(TEXTS)))
    random.Random(5).shuffle(order)
    shuffled = model.embed_batch([TEXTS[index] for index in order])
    assert (shuffled * vectors[order]).sum(axis=1).min() > 0.9999
    for index in order[:20]:
        assert float(model.embed_batch([TEXTS[index]])[0] @ vectors[index]) > 0.9999


def test_threads_do_not_change_vectors(vectors):
    other = MiniLM(threads=2).embed_batch(TEXTS[:60])
    assert (other * vectors[:60]).sum(axis=1).min() > 0.9999


def test_runs_hold_each_row_once_and_little_padding():
    # Mutants: rows of any length share a run; each row is a run; a run has no limit.
    lengths = [random.Random(7).randrange(3, 256) for _ in range(200)]
    runs = plan_runs(lengths)
    assert sorted(index for run in runs for index in run) == list(range(200))
    assert all(len(run) * max(lengths[index] for index in run) <= 768 for run in runs)
    assert plan_runs([5] * 8) == [list(range(8))]
    assert plan_runs([200, 5, 198, 6]) == [[0, 2], [3, 1]]
    assert plan_runs([]) == []


def test_similar_texts_are_near_and_others_far(model):
    cat, kitten, tax = model.embed_batch(["A cat sleeps.", "A kitten is napping.", "The tax form is due in May."])
    assert cat @ kitten > 0.6
    assert cat @ tax < 0.3


def test_name_dimension_and_fingerprint_are_known_without_loading(monkeypatch, tmp_path):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "nothing"))
    unloaded = MiniLM()
    assert (unloaded.name, unloaded.dim, unloaded.fingerprint[:8]) == ("minilm", 384, "53aa5117")


def test_missing_model_names_the_setup_command(monkeypatch, tmp_path):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotInstalled, match="recollect setup"):
        MiniLM().embed_batch(["hello"])


def test_last_sentence_of_a_long_text_changes_its_vector(model):
    long = "We talked about the weather and about the garden for a while. " * 60
    plain, extended = model.embed_batch([long, long + "My passport number is 8841 and it lies in the blue drawer."])
    question = model.embed_batch(["Where is the passport?"])[0]
    assert plain @ extended < 0.999
    assert extended @ question > plain @ question


def test_unusual_texts_have_valid_vectors(model):
    odd = [
        "",
        " \n\t",
        "\x00",
        "\ud800",
        "\udfff a",
        "a" * 10_000,
        "🙂" * 500,
        "\u0301" * 300,
        "字" * 600,
        "[PAD]" * 400,
    ]
    answers = model.embed_batch(odd)
    assert np.isfinite(answers).all()
    np.testing.assert_allclose(np.linalg.norm(answers, axis=1), 1, atol=1e-5)


def test_no_texts_give_no_rows(model):
    assert model.embed_batch([]).shape == (0, 384)


def test_threads_share_one_model_from_the_first_call(vectors):
    fresh = MiniLM(threads=1)
    with ThreadPoolExecutor(8) as pool:
        answers = np.array(list(pool.map(lambda text: fresh.embed_batch([text])[0], TEXTS[:80])))
    assert (answers * vectors[:80]).sum(axis=1).min() > 0.9999


def test_import_and_construction_load_no_runtime():
    code = (
        "import sys; from recollect.models.minilm import MiniLM; MiniLM()\n"
        "print({'onnxruntime', 'onnx'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
