"""The local embedding model: all-MiniLM-L6-v2 on onnxruntime."""

from recollect.models.minilm.model import MiniLM

__all__ = ["MiniLM"]
