"""Writes a BERT sentence encoder as an ONNX graph straight from its named tensors.

The int8 form was chosen by measurement (MiniLM, one thread, against fp32). onnxruntime's own dynamic quantisation has
one activation scale for the whole batch: a text's vector depends on its neighbours there (cosine down to 0.98) and
falls to 0.96 of the original's. Blockwise weights (MatMulNBits) are exact enough but hardly faster than fp32. Here each
token has its own scale, channels that run hot are evened out between activations and weights, and wide inputs are
scaled in parts: cosine above 0.995 on 3 000 sentences, the same vector alone and in a batch, up to twice as fast.
Attention and GELU are fused operators; the fused skip-and-normalise is not used because on CPUs an addition and
LayerNormalization are several times faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]
Pack = tuple[NDArray[np.int8], Floats]

_MICROSOFT = "com.microsoft"
# GELU never falls below -0.17; lifted by this, its output uses the whole unsigned range.
_GELU_LIFT = 0.17003
# Inputs are scaled in up to this many parts: more is finer, and slower.
_GELU_PARTS = 6
_HIDDEN_PARTS = 2
_TINY = 1e-6


@dataclass(frozen=True)
class Shape:
    """What the tensors do not say by themselves."""

    heads: int
    epsilon: float = 1e-12
    first_token: bool = False


@dataclass(frozen=True)
class Peaks:
    """The largest values, by input channel, that calibration saw entering each dense layer."""

    magnitude: Tensors
    """Of the absolute value."""
    top: Tensors
    """Of the value itself."""


def exact(tensors: Tensors, shape: Shape, *, observed: bool = False) -> ModelProto:
    """The encoder in fp32; `observed` also gives what enters each dense layer, as outputs named like the layer."""
    return _Writer(tensors, shape).model(observed=observed)


def quantised(tensors: Tensors, shape: Shape, peaks: Peaks) -> ModelProto:
    """The encoder with int8 weights and, token by token, int8 activations."""
    return _QuantisedWriter(tensors, shape, peaks).model()


class _Writer:
    """Collects nodes and constants while the encoder is written from input to output."""

    def __init__(self, tensors: Tensors, shape: Shape) -> None:
        self.tensors = tensors
        self.shape = shape
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self.entering: dict[str, str] = {}

    def model(self, *, observed: bool = False) -> ModelProto:
        """Outputs: `sentence`, pooled and of unit length, and `tokens`, the last hidden states."""
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
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="recollect")

    def embeddings(self) -> str:
        """Word + position + segment vectors, normalised; every text is segment 0."""
        positions = self.tensors["embeddings.position_embeddings.weight"]
        places = positions + self.tensors["embeddings.token_type_embeddings.weight"][0]
        length = self.node("Shape", ["input_ids"], start=1, end=2)
        zero = self.constant("zero", np.zeros(1, np.int64))
        place = self.node("Slice", [self.constant("places", places), zero, length, zero])
        return self.normalise(self.node("Add", [self.words(), place]), "embeddings.LayerNorm")

    def words(self) -> str:
        table = self.constant("words", self.tensors["embeddings.word_embeddings.weight"])
        return self.node("Gather", [table, "input_ids"])

    def layer(self, hidden: str, prefix: str) -> str:
        hidden = self.join(*self.attention(hidden, f"{prefix}.attention"), hidden, f"{prefix}.attention.output")
        wide, bias = self.product(hidden, [f"{prefix}.intermediate.dense"])
        active = self.node("BiasGelu", [wide, self.constant(f"{wide}.bias", bias)], domain=_MICROSOFT)
        return self.join(*self.active_product(active, f"{prefix}.output.dense"), hidden, f"{prefix}.output")

    def attention(self, hidden: str, prefix: str) -> tuple[str, Floats]:
        mixed, bias = self.product(hidden, [f"{prefix}.self.{part}" for part in ("query", "key", "value")])
        inputs = [*self.split(mixed, 3), self.constant(f"{mixed}.bias", bias), "attention_mask"]
        context = self.node("MultiHeadAttention", inputs, domain=_MICROSOFT, num_heads=self.shape.heads)
        return self.product(context, [f"{prefix}.output.dense"])

    def product(self, value: str, layers: list[str]) -> tuple[str, Floats]:
        """A value times the weights of dense layers set side by side, and the bias still to be added."""
        self.entering[layers[0]] = value
        weight, bias = self.dense(layers)
        return self.node("MatMul", [value, self.constant(layers[0] + ".weight", weight.T)]), bias

    def active_product(self, value: str, layer: str) -> tuple[str, Floats]:
        """The product of a GELU's output."""
        return self.product(value, [layer])

    def dense(self, layers: list[str]) -> tuple[Floats, Floats]:
        weight, bias = (
            np.concatenate([self.tensors[f"{layer}.{end}"] for layer in layers]) for end in ("weight", "bias")
        )
        return weight, bias

    def join(self, value: str, bias: Floats, skip: str, prefix: str) -> str:
        """Bias, residual and layer normalisation."""
        biased = self.node("Add", [value, self.constant(f"{prefix}.bias", bias)])
        return self.normalise(self.node("Add", [biased, skip]), f"{prefix}.LayerNorm")

    def normalise(self, value: str, prefix: str) -> str:
        scale, bias = (self.constant(f"{prefix}.{end}", self.tensors[f"{prefix}.{end}"]) for end in ("weight", "bias"))
        return self.node("LayerNormalization", [value, scale, bias], axis=-1, epsilon=self.shape.epsilon)

    def pool(self, hidden: str) -> None:
        """The first token, or the mean of the unmasked ones, whose divisor the norm cancels."""
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


class _QuantisedWriter(_Writer):
    """The same encoder with its tables and products in int8."""

    def __init__(self, tensors: Tensors, shape: Shape, peaks: Peaks) -> None:
        super().__init__(tensors, shape)
        self.peaks = peaks

    def words(self) -> str:
        """One scale a row keeps rare words as exact as frequent ones."""
        words = self.tensors["embeddings.word_embeddings.weight"]
        scale = np.maximum(np.abs(words).max(axis=1, keepdims=True), _TINY) / 127
        table = self.constant("words", np.rint(words / scale).astype(np.int8))
        rows = self.node("Cast", [self.node("Gather", [table, "input_ids"])], to=1)
        scales = self.node("Gather", [self.constant("word_scales", scale.astype(np.float32)), "input_ids"])
        return self.node("Mul", [rows, scales])

    def product(self, value: str, layers: list[str]) -> tuple[str, Floats]:
        weight, bias = self.dense(layers)
        even = _evened(self.peaks.magnitude[layers[0]], weight)
        value = self.node("Mul", [value, self.constant(f"{layers[0]}.even", 1 / even)])
        # What enters attention and the feed-forward block comes out of a normalisation, and a few channels run hot.
        parts = 1 if layers[0].endswith("attention.output.dense") else _HIDDEN_PARTS
        packs = [_packed(part) for part in _split(weight * even, parts)]
        return self._parts(value, packs, lifted=False), bias

    def active_product(self, value: str, layer: str) -> tuple[str, Floats]:
        weight, bias = self.dense([layer])
        even = _evened(self.peaks.top[layer] + _GELU_LIFT, weight)
        lifted = self.node("Add", [value, self.constant("lift", np.array(_GELU_LIFT, np.float32))])
        lifted = self.node("Mul", [lifted, self.constant(f"{layer}.even", 1 / even)])
        packs = [_packed(part) for part in _split(weight * even, _GELU_PARTS)]
        # What the lift added is taken off with the weights as they were rounded, so that it cancels exactly.
        rounded = np.concatenate([whole * scale[:, None] for whole, scale in packs], axis=1)
        settled = bias - _GELU_LIFT * (rounded / even).sum(axis=1)
        return self._parts(lifted, packs, lifted=True), settled.astype(np.float32)

    def _parts(self, value: str, packs: list[Pack], *, lifted: bool) -> str:
        """The sum of the products of consecutive channels, each part with a scale of its own for every token."""
        sums = [
            self._integers(part, pack, lifted=lifted)
            for part, pack in zip(self.split(value, len(packs)), packs, strict=True)
        ]
        return sums[0] if len(sums) == 1 else self.node("Sum", sums)

    def _integers(self, value: str, pack: Pack, *, lifted: bool) -> str:
        """Scale each token to its own peak, multiply in integers, scale back."""
        whole, scale = pack
        steps, zero = (255, 0) if lifted else (127, 128)
        size = value if lifted else self.node("Abs", [value])
        peak = self.node("ReduceMax", [size], axes=[2], keepdims=1)
        peak = self.node("Max", [peak, self.constant("tiny", np.array(_TINY, np.float32))])
        step = self.constant(f"step_{steps}", np.array(1 / steps, np.float32))
        middle = self.constant(f"zero_{zero}", np.array(zero, np.uint8))
        small = self.node("QuantizeLinear", [self.node("Div", [value, peak]), step, middle])
        weight = self.constant(f"{small}.weight", whole.T)
        scales = self.constant(f"{small}.scale", scale)
        wide = self.node("MatMulIntegerToFloat", [small, weight, step, scales, middle], domain=_MICROSOFT)
        return self.node("Mul", [wide, peak])


def _evened(peaks: Floats, weight: Floats) -> Floats:
    """How much of each input channel's size to move into the weights so that both round equally well."""
    typical = np.sqrt(np.square(weight).mean(axis=0))
    sizes = np.sqrt(np.maximum(peaks, 1e-3) / np.maximum(typical, 1e-4))
    return np.asarray(sizes / sizes.mean(), np.float32)


def _split(weight: Floats, wanted: int) -> list[Floats]:
    """Equal parts along the input channels, of even width because channels are multiplied in pairs."""
    parts = next(count for count in range(wanted, 0, -1) if weight.shape[1] % (2 * count) == 0)
    return np.split(weight, parts, axis=1)


def _packed(weight: Floats) -> Pack:
    """Integer weights, and one scale for each output channel.

    CPUs without VNNI add the products of two neighbouring channels in 16 bits. Activations reach 255, so two weights
    of one sign may together not exceed 128; holding the pair to that, and not each weight to 64, saves half a bit.
    """
    pairs = weight.reshape(len(weight), -1, 2)
    above = np.maximum(pairs, 0).sum(axis=2).max(axis=1)
    below = np.maximum(-pairs, 0).sum(axis=2).max(axis=1)
    scale = (np.maximum(np.maximum(above, below), _TINY) / 127).astype(np.float32)
    return np.rint(weight / scale[:, None]).astype(np.int8), scale
