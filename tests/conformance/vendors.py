"""The vendors that a server can be asked to use: the offline model in the server itself, and each adapter beside the
fake of its vendor, which is a process of its own with the offline model for a brain. So a scenario reads the same with
all of them, and what an adapter changes shows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import msgspec
import pytest

from tests.conformance import tools
from tests.serving import ServerProcess

REPOSITORY = Path(__file__).parents[2]
SERVER = {
    "HOLDFAST_ALLOWED_HOSTS": "127.0.0.1",
    "HOLDFAST_QUEUE_WAIT_S": "10",
    "HOLDFAST_MODEL_RETRY_S": "0.01",
    "HOLDFAST_DRAIN_S": "0.2",
}
WINDOW = 128_000
HEARD_WITHIN_S = 20.0


class Vendor(msgspec.Struct, frozen=True):
    """`environment` is what tells a server to use it, given its address."""

    name: str
    model: str
    environment: Callable[[str], dict[str, str]] | None = None

    def settings(self, url: str) -> dict[str, str]:
        assert self.environment is not None
        return self.environment(url) | {"HOLDFAST_MODELS": f"{self.model}={WINDOW}"}


def _openai(url: str) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-offline"}


def _responses(url: str) -> dict[str, str]:
    return _openai(url) | {"HOLDFAST_OPENAI_RESPONSES": "always"}


def _anthropic(url: str) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-ant-offline"}


def _gemini(url: str) -> dict[str, str]:
    return {"GEMINI_BASE_URL": url, "GEMINI_API_KEY": "offline"}


def _mistral(url: str) -> dict[str, str]:
    return {"MISTRAL_BASE_URL": url, "MISTRAL_API_KEY": "offline"}


def _cohere(url: str) -> dict[str, str]:
    return {"COHERE_BASE_URL": url, "COHERE_API_KEY": "offline"}


def _bedrock(url: str) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": "AKIAOFFLINE", "AWS_SECRET_ACCESS_KEY": "offline"}
    return keys | {"AWS_ENDPOINT_URL_BEDROCK_RUNTIME": url}


OFFLINE = Vendor("offline", "holdfast/offline")
# Names of models that reason, because what they thought must come back to the vendor unharmed.
ADAPTERS = (
    Vendor("chat", "openai-proxy/offline", _openai),
    Vendor("anthropic", "anthropic/claude-sonnet-4-5", _anthropic),
    Vendor("responses", "openai-proxy/gpt-5", _responses),
    Vendor("gemini", "google_ai/gemini-3-pro", _gemini),
)
# Through the chat adapter or the same bridge as those before them: what is about an adapter is tried with these too,
# what is about the server is not.
FURTHER = (
    Vendor("mistral", "mistral/magistral-medium-2509", _mistral),
    Vendor("cohere", "cohere/command-a-reasoning-08-2025", _cohere),
    Vendor("bedrock", "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0", _bedrock),
)
VENDORS = {vendor.name: vendor for vendor in (OFFLINE, *ADAPTERS, *FURTHER)}


def _with(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vendor", names, indirect=True)


with_every_vendor = _with(OFFLINE.name, *(vendor.name for vendor in ADAPTERS))
# The adapters whose sockets are our own; the others speak through libraries of their vendors.
NATIVE = ("chat", "anthropic")
with_native_adapters = _with(OFFLINE.name, *NATIVE)
with_four_adapters = _with(*(vendor.name for vendor in ADAPTERS))
with_every_adapter = _with(*(vendor.name for vendor in (*ADAPTERS, *FURTHER)))


class Standing(msgspec.Struct, frozen=True):
    """What the fake of a vendor says of its replies. `left`: the client closed the connection before the end."""

    open: int
    left: int
    asked: int


class VendorProcess:
    """`with VendorProcess("chat") as vendor:` is a fake that ends with the block, or with this process."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.llm.fakes", self._protocol],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the vendor did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.communicate(timeout=60)  # closes its input, which is how it is told to end
        assert self._process.returncode == 0

    def standing(self) -> Standing:
        with urllib.request.urlopen(f"{self.url}/_open", timeout=60) as answer:
            return msgspec.convert(json.load(answer), Standing)

    def last_request(self) -> str:
        """Its body, as JSON."""
        with urllib.request.urlopen(f"{self.url}/_last", timeout=60) as answer:
            return answer.read().decode()

    def check_none_open(self, but: int = 0) -> Standing:
        """The end of a connection takes a moment to arrive. `but`: what an earlier test has left behind."""
        deadline = time.monotonic() + HEARD_WITHIN_S
        while (standing := self.standing()).open > but and time.monotonic() < deadline:
            time.sleep(0.01)
        assert standing.open <= but, f"the vendor is still talking to nobody: {standing}"
        return standing


class Site(msgspec.Struct, frozen=True):
    """A server, the vendor whose model its agents use, and the tools that it has."""

    server: ServerProcess
    vendor: Vendor
    tool_ids: dict[str, str]
    fake: VendorProcess | None = None  # the offline model has none


class Sites:
    """One for every vendor that is asked for, made when it is first needed, and kept until the end."""

    def __init__(self, directory: Callable[[str], Path]) -> None:
        self._directory = directory
        self._made: dict[str, Site] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def of(self, vendor: Vendor) -> Site:
        if vendor.name not in self._made:
            self._made[vendor.name] = self._make(vendor)
        return self._made[vendor.name]

    def _make(self, vendor: Vendor) -> Site:
        fake = self._open.enter_context(VendorProcess(vendor.name)) if vendor.environment else None
        told = vendor.settings(fake.url) if fake else {}
        server = self._open.enter_context(ServerProcess(self._directory(vendor.name), **SERVER, **told))
        with server.client() as client:
            return Site(server, vendor, tools.install(client), fake)


# --- what a protocol has no words for ---


class Unsayable(msgspec.Struct, frozen=True):
    """`given`: values of the test's other parameters. Without them, the whole test."""

    test: str
    why: str
    vendors: tuple[str, ...] = tuple(vendor.name for vendor in ADAPTERS)
    given: tuple[str, ...] = ()


_BUG = "The exception is raised in the vendor's process: a server hears of it as a connection that was lost."
_NOTHING = "A reply of nothing is sent as one, and so without the sentence that is looked for: see the [[empty]] one."
_WHOLE = "Calls come whole, so there is nothing to see of one that is not finished."
_UNSIGNED = "What was thought is not sent back: the API has no place for it."
_BLIND = "The library sends this vendor no images; the model is told that there was one."
UNSAYABLE = (
    Unsayable("test_a18_a_failure_at_the_start_is_told_and_recorded", _BUG, given=("runtime",)),
    Unsayable("test_a18_a_failure_after_a_tool_keeps_what_the_tool_did", _BUG, given=("runtime",)),
    Unsayable("test_error_data_stored_on_generic_exception", _BUG),
    Unsayable("test_a18_the_rarer_failures_have_their_own_names", _NOTHING, given=("empty",)),
    Unsayable("test_a11_a_cancel_amid_a_tool_call_drops_the_unfinished_call", _WHOLE, ("gemini",)),
    Unsayable("test_a11_a_cancel_amid_a_reply_that_is_only_a_call_leaves_just_the_input", _WHOLE, ("gemini",)),
    Unsayable("test_what_the_model_thought_comes_back_to_it_as_it_was", _UNSIGNED, ("chat", "mistral", "cohere")),
    Unsayable("test_an_image_reaches_the_model", _BLIND, ("cohere",)),
)


def reason_against(test: str, vendor: str, given: Iterable[object]) -> str | None:
    values = list(given)
    return next(
        (
            row.why
            for row in UNSAYABLE
            if row.test == test and vendor in row.vendors and all(value in values for value in row.given)
        ),
        None,
    )
