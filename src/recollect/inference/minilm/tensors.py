"""Reads the tensors of a safetensors file without any package but numpy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recollect.errors import ModelDamaged

_LARGEST_HEADER = 100_000_000


def read(path: Path) -> dict[str, NDArray[np.float32]]:
    """Every floating point tensor by name, as float32; integer tensors (position ids) are left out."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    try:
        if not 2 <= size <= min(_LARGEST_HEADER, len(raw) - 8):
            raise ValueError(f"a header of {size} bytes in a file of {len(raw)}")
        header = json.loads(raw[8 : 8 + size])
        data = memoryview(raw)[8 + size :]
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {
            name: _floats(data[slice(*entry["data_offsets"])], entry["dtype"]).reshape(entry["shape"])
            for name, entry in entries.items()
            if entry["dtype"] in ("F32", "F16", "BF16")
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelDamaged(f"{path} is not a readable safetensors file ({error}); download it again") from error


def _floats(data: memoryview, dtype: str) -> NDArray[np.float32]:
    if dtype == "BF16":
        # A bfloat16 is the upper half of a float32.
        return (np.frombuffer(data, np.dtype("<u2")).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, np.dtype("<f4" if dtype == "F32" else "<f2")).astype(np.float32, copy=False)
