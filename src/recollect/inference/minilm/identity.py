"""Says which model it is, by name and hash, without loading it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recollect.inference.minilm import weights
from recollect.inference.minilm.weights import Built, Foreign, Found, Raw


@dataclass(frozen=True)
class Identity:
    """What a store remembers of the model that filled it; `dim` is None when only the loaded graph can tell."""

    name: str
    dim: int | None
    fingerprint: str


OURS = Identity(weights.NAME, weights.DIM, weights.WEIGHTS_SHA256)


def of(found: Found) -> Identity:
    """A directory of the user's goes by its own name, unless it holds the default model."""
    match found:
        case Built(manifest=manifest):
            return Identity(manifest.name, manifest.dim, manifest.weights_sha256)
        case Raw(tensors=tensors):
            digest = weights.sha256(tensors)
            return OURS if digest == weights.WEIGHTS_SHA256 else _named(tensors.parent, digest)
        case Foreign(directory=folder, graph=graph):
            return _named(folder, weights.sha256(graph))


def _named(folder: Path, digest: str) -> Identity:
    dim = weights.settings_beside(folder).get("hidden_size")
    return Identity(folder.resolve().name, dim if isinstance(dim, int) else None, digest)
