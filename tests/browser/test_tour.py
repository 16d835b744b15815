"""The tour of docs/tour.md, on a server of its own. Its pictures are taken here."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from letta_client import Letta
from playwright.sync_api import expect

from tests.serving import ServerProcess

from .conftest import INVOICE, Open, Shot

PLAN = """Here is a plan for May:

1. Order **Darjeeling** before the 10th.
2. Ask Bob about the `green` samples.
3. Send the invoices on the 15th."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    data = tmp_path_factory.mktemp("tour")
    with ServerProcess(data, HOLDFAST_DEFAULT_MODEL="holdfast/offline", HOLDFAST_TRACE_PROVIDER="1") as started:
        yield started


def fork(client: Letta, source: str, agent_id: str, summary: str) -> str:
    made = client.conversations.fork(source, agent_id=agent_id)
    client.conversations.update(made.id, summary=summary)
    return made.id


def furnish(client: Letta) -> tuple[str, str, str]:
    """Two agents of a tea shop with some history: their ids, and that of a run that needed a second try."""
    tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
    billing = client.agents.create(
        name="billing",
        description="Sends invoices, after somebody has looked at them",
        tool_ids=[tool.id],
        memory_blocks=[
            {"label": "human", "value": "Ada runs a tea shop in Utrecht."},
            {"label": "persona", "value": "You are careful with other people's money."},
        ],
        secrets={"BANK_TOKEN": "hush"},
        tool_rules=[{"type": "max_count_per_step", "tool_name": "send_invoice", "max_count_limit": 2}],
    )
    planner = client.agents.create(
        name="planner",
        description="Keeps the calendar of the shop",
        initial_message_sequence=[
            {"role": "user", "content": "What is there to do in May?"},
            {"role": "assistant", "content": PLAN},
        ],
    )
    for text in ("remember that I like tea", "what do you know about me?"):
        client.agents.messages.create(billing.id, input=text)
    plans = fork(client, "default", planner.id, "Plans for May")
    late = fork(client, plans, planner.id, "If the tea is late")
    fork(client, late, planner.id, "If it never comes")
    client.conversations.create(agent_id=planner.id, summary="Small talk")
    text = "Call conversation_search with 'May' [[error:overloaded]] [[error_times:1]]"
    searched = client.agents.messages.create_async(planner.id, messages=[{"role": "user", "content": text}])
    client.agents.messages.create(billing.id, input="Call send_invoice with customer 'Ada' and amount 120")
    return billing.id, planner.id, str(searched.id)


@pytest.mark.timeout(120)
def test_the_tour_shows_what_its_pages_say(open_page: Open, shop: ServerProcess, shot: Shot) -> None:
    billing, planner, run = furnish(shop.client())
    page = open_page(shop.url)
    expect(page.locator("tbody tr")).to_have_count(2)
    shot(page, "agents")
    page.goto(f"{shop.url}/#/approvals")
    expect(page.locator("article")).to_contain_text("Ada")
    expect(page.locator("article")).to_contain_text("billing")
    shot(page, "approvals")
    page.goto(f"{shop.url}/#/agents/{planner}/chat")
    page.get_by_role("link", name="Plans for May").click()
    expect(page.locator(".message.assistant")).to_contain_text("Order Darjeeling")
    expect(page.locator(".tree .tree .tree .tree")).to_contain_text("If it never comes")
    shot(page, "conversations")
    page.goto(f"{shop.url}/#/runs/{run}")
    expect(page.locator(".status.completed").first).to_be_visible()
    expect(page.locator(".marks")).to_contain_text("a try failed")
    expect(page.locator(".waterfall tbody tr")).to_have_count(2)
    shot(page, "run")
    page.goto(f"{shop.url}/#/agents/{billing}")
    expect(page.locator(".rules")).to_contain_text("send_invoice is called at most 2 times in a turn.")
    expect(page.locator("#groups")).to_contain_text("no group")
    shot(page, "agent")
    page.goto(f"{shop.url}/#/overview")
    expect(page.locator("canvas")).to_be_visible()
    shot(page, "overview")


def test_the_tour_fits_a_phone(open_page: Open, shop: ServerProcess, shot: Shot) -> None:
    [billing] = shop.client().agents.list(name="billing").items
    phone = {"width": 390, "height": 760}
    page = open_page(shop.url, f"#/agents/{billing.id}/chat", color_scheme="dark", viewport=phone, has_touch=True)
    expect(page.locator(".tool.held")).to_be_visible()
    shot(page, "phone")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
