"""The local embedder gives the vectors of the original model, whatever it is handed and however it is called."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from recollect.errors import BadInput, ModelNotInstalled
from recollect.inference.minilm import MiniLM, install

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


def test_products_never_overflow_where_two_are_added_in_16_bits():
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


def test_a_text_has_the_same_vector_alone_and_in_any_batch(model, vectors):
    order = list(range(len(TEXTS)))
    random.Random(5).shuffle(order)
    shuffled = model.embed_batch([TEXTS[index] for index in order])
    assert (shuffled * vectors[order]).sum(axis=1).min() > 0.9999
    for index in order[:20]:
        assert float(model.embed(TEXTS[index]) @ vectors[index]) > 0.9999


def test_batch_size_and_threads_do_not_change_vectors(vectors):
    other = MiniLM(threads=2, batch=3).embed_batch(TEXTS[:60])
    assert (other * vectors[:60]).sum(axis=1).min() > 0.9999


def test_like_meanings_are_near_and_unlike_are_far(model):
    cat, kitten, tax = model.embed_batch(["A cat sleeps.", "A kitten is napping.", "The tax form is due in May."])
    assert cat @ kitten > 0.6
    assert cat @ tax < 0.3


def test_name_dimension_and_fingerprint_are_known_without_loading(monkeypatch, tmp_path):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "nothing"))
    unloaded = MiniLM()
    assert (unloaded.name, unloaded.dim, unloaded.fingerprint[:8]) == ("minilm", 384, "53aa5117")


def test_a_missing_model_names_the_command_that_brings_it(monkeypatch, tmp_path):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotInstalled, match="recollect setup"):
        MiniLM().embed("hello")


def test_a_fact_in_the_last_sentence_of_a_long_text_changes_its_vector(model):
    long = "We talked about the weather and about the garden for a while. " * 60
    plain, told = model.embed_batch([long, long + "My passport number is 8841 and it lies in the blue drawer."])
    question = model.embed("Where is the passport?")
    assert plain @ told < 0.999
    assert told @ question > plain @ question


def test_nothing_is_too_odd_to_embed(model):
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


def test_what_is_not_text_is_refused(model):
    with pytest.raises(BadInput, match="embed"):
        model.embed_batch("a single text")
    with pytest.raises(BadInput, match="int"):
        model.embed_batch(["text", 7])
    with pytest.raises(BadInput, match="batch"):
        MiniLM(batch=0)
    with pytest.raises(BadInput, match="threads"):
        MiniLM(threads=0)


def test_many_threads_share_one_model_from_the_first_call(vectors):
    fresh = MiniLM(threads=1)
    with ThreadPoolExecutor(8) as pool:
        answers = np.array(list(pool.map(fresh.embed, TEXTS[:80])))
    assert (answers * vectors[:80]).sum(axis=1).min() > 0.9999


def test_importing_and_constructing_loads_no_runtime():
    code = (
        "import sys; from recollect.inference.minilm import MiniLM; MiniLM()\n"
        "print({'onnxruntime', 'onnx'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
