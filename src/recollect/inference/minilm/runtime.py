"""onnxruntime, loaded at its first use and told beforehand to report nothing to anybody."""

from __future__ import annotations

import os
from types import ModuleType


def runtime() -> ModuleType:
    """The module. Its telemetry starts with the import and writes a device id to the disk, so it is refused before."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    module: ModuleType = onnxruntime
    return module
