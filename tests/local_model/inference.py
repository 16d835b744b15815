"""The inference server as a process of its own, and what it says of its work."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Self

NAME = "smollm2-135m"
WINDOW = 768  # small, so that it is soon full: reading a prompt is what takes a CPU its time
HERE = Path(__file__).parent
ENVIRONMENT = Path(sys.prefix) / "local-model"
START_S = 60.0
STOP_S = 20.0


class InferenceProcess:
    """`with InferenceProcess(log) as inference:` ends with the block, or with this process."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        python = ENVIRONMENT / "bin" / "python"
        assert python.exists(), "there is no inference server here yet: `make test-local-model` installs it"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, HERE / "llama_server.py", NAME, str(WINDOW)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.url = self._first_line()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        try:
            self._process.communicate(timeout=STOP_S)  # closes its input, which is how it is told to end
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def is_busy(self) -> bool:
        """Whether it is computing a reply."""
        return any(slot["is_processing"] for slot in json.loads(self._get("/slots")))

    def check_falls_silent(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while self.is_busy():
            assert time.monotonic() < deadline, "the model is still talking to nobody"
            time.sleep(0.02)  # it tells when asked, and never by itself

    def tokens_said(self) -> int:
        """Since it was started, as it counts them itself."""
        lines = self._get("/metrics").splitlines()
        (said,) = [line for line in lines if line.startswith("llamacpp:tokens_predicted_total ")]
        return int(said.split()[1])

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return answer.read().decode()

    def _first_line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline().strip() if ready.select(START_S) else ""
        if not line:
            self._process.kill()
            self._process.communicate()
            raise AssertionError(f"llama.cpp did not start within {START_S:g} s:\n{self.log.read_text()[-4_000:]}")
        return line


def pointing_at(url: str) -> dict[str, str]:
    """The environment of a Holdfast server that knows this inference server by two names, and no other vendor.

    As `llamacpp` it is asked for its window. As `openai-proxy` it is believed to have more than it has.
    """
    others = {name: "" for name in os.environ if name.endswith(("_API_KEY", "_BASE_URL", "_API_BASE"))}
    return others | {
        "VLLM_API_BASE": url,
        "VLLM_HANDLE_BASE": "llamacpp",
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{url}/v1",
        "HOLDFAST_MODELS": f"openai-proxy/{NAME}={WINDOW * 8}",
        "HOLDFAST_TRACE_PROVIDER": "true",
        "HOLDFAST_MODEL_TIMEOUT_S": "100",  # a CPU that is busy otherwise reads a dozen tokens in a second
    }
