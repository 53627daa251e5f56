"""The identity of the local model does not depend on the processor that built its graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from recollect.models.minilm.model import MINILM_IDENTITY, identify_model
from recollect.models.minilm.model_files import MODEL_DIMENSION, WEIGHTS_SHA256, BuiltModel, BuiltModelManifest

MANIFEST = BuiltModelManifest(
    name="minilm",
    dim=MODEL_DIMENSION,
    weights_sha256=WEIGHTS_SHA256,
    graph="graph-1.onnx",
    graph_sha256="1" * 64,
    vocabulary="vocab.txt",
    builder=1,
)


def test_graphs_of_different_processors_have_one_identity(tmp_path: Path):
    """Mutant: the hash of the graph is part of the identity, so that a store from another processor is refused."""
    other = replace(MANIFEST, graph="graph-2.onnx", graph_sha256="2" * 64)
    identities = {identify_model(BuiltModel(tmp_path, manifest)) for manifest in (MANIFEST, other)}
    assert identities == {MINILM_IDENTITY}


def test_other_weights_have_another_identity(tmp_path: Path):
    other = replace(MANIFEST, weights_sha256="3" * 64)
    assert identify_model(BuiltModel(tmp_path, other)) != MINILM_IDENTITY
