"""The local embedder: all-MiniLM-L6-v2 on onnxruntime, with its own tokenizer."""

from recollect.inference.minilm.install import install
from recollect.inference.minilm.model import MiniLM

__all__ = ["MiniLM", "install"]
