"""The console in a real browser, Debian's Chromium, against a real server. `make test-browser` brings the driver."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from letta_client import Letta
from letta_client.types import AgentState
from playwright.sync_api import Browser, Page, Request, sync_playwright

from tests.serving import ServerProcess

LIMIT_MS = 15_000
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
SHOTS = os.environ.get("CONSOLE_SHOTS")
INVOICE = '''
def send_invoice(customer: str, amount: int) -> str:
    """Send an invoice.

    Args:
        customer: Who is to pay.
        amount: How much, in euros.
    """
    return f"sent {amount} to {customer}"
'''

Open = Callable[..., Page]
Shot = Callable[[Page, str], None]


@pytest.fixture(scope="session")
def browser() -> Generator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "no Chromium: apt-get install chromium"
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("holdfast"), HOLDFAST_DEFAULT_MODEL="holdfast/offline") as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Letta:
    return server.client()


@pytest.fixture
def billing(client: Letta) -> Generator[AgentState]:
    tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
    agent = client.agents.create(name="billing", include_base_tools=False, tool_ids=[tool.id])
    yield agent
    client.agents.delete(agent.id)


def ask_for_approval(client: Letta, agent_id: str, amount: int = 120) -> None:
    client.agents.messages.create(agent_id, input=f"Call send_invoice with customer 'Ada' and amount {amount}")


@pytest.fixture
def open_page(browser: Browser) -> Generator[Open]:
    """Opens a page of a server. Whatever goes wrong in it, or leaves its origin, fails the test."""
    contexts: list[Any] = []
    problems: list[str] = []

    def watch(page: Page, url: str) -> None:
        page.on("pageerror", lambda error: problems.append(f"exception: {error}"))

        def asked(request: Request) -> None:
            if not request.url.startswith((url, "data:")):
                problems.append(f"a request left the origin: {request.url}")

        page.on("request", asked)
        page.on("console", lambda said: problems.append(f"{said.type}: {said.text}") if _matters(said.text) else None)

    def make(url: str, path: str = "", script: str | None = None, **options: Any) -> Page:
        """`script` runs in the page before the page's own."""
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 760}, **options})
        contexts.append(context)
        context.set_default_timeout(LIMIT_MS)
        if script is not None:
            context.add_init_script(script)
        page = context.new_page()
        watch(page, url)
        page.goto(f"{url}/{path}")
        return page

    yield make
    for context in contexts:
        context.close()
    assert not problems


def heap_of(page: Page) -> int:
    """Bytes of JavaScript objects that are in use, once what nobody needs was collected."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used: int = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return used


def _matters(text: str) -> bool:
    """A browser reports every failed request; the console shows those itself."""
    return "Content Security Policy" in text or "Uncaught" in text


@pytest.fixture
def shot() -> Shot:
    """Keeps a picture when CONSOLE_SHOTS names a directory: the documentation shows them."""

    def take(page: Page, name: str) -> None:
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=f"{SHOTS}/{name}.png")

    return take
