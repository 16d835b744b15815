"""The inbox, runs, agents and the overview; hostile content; a key; accessibility; size and speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from letta_client import Letta
from playwright.sync_api import expect

from tests.serving import ServerProcess

from .conftest import CLIENT_TOOL, INVOICE, Open, Shot, ask_for_approval

AXE = Path(__file__).parents[2] / ".venv" / "browser" / "axe.min.js"
SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
HOSTILE = f"{SCRIPT} [x](javascript:alert(1)) \u202etxet\u202c \u200bzero"


def test_the_inbox_updates_by_itself_and_decides(
    open_page: Open, server: ServerProcess, client: Letta, billing: Any, shot: Shot
) -> None:
    page = open_page(server.url, "#/approvals")
    expect(page.get_by_text("Nothing waits for a decision")).to_be_visible()
    ask_for_approval(client, billing.id)
    expect(page.locator("article")).to_contain_text("Ada")
    expect(page).to_have_title("(1) Approvals · Holdfast")
    shot(page, "approvals")
    page.get_by_label("Reason for denying").fill("too much")
    page.get_by_role("button", name="Deny").click()
    expect(page.get_by_text("Nothing waits for a decision")).to_be_visible()
    page.wait_for_function("document.title === 'Approvals · Holdfast'")
    last = client.agents.messages.list(billing.id).items[-1]
    assert "too much" in str(last)


def test_a_run_whose_call_was_decided_does_not_wait_any_more(
    open_page: Open, server: ServerProcess, client: Letta, billing: Any
) -> None:
    ask_for_approval(client, billing.id)
    [asked] = client.runs.list(agent_id=billing.id).items
    page = open_page(server.url, "#/runs")
    row = page.locator("tr", has=page.locator(f"a[href='#/runs/{asked.id}']"))
    expect(row).to_contain_text("waits for approval")
    page.goto(f"{server.url}/#/approvals")
    page.get_by_role("button", name="Deny").click()
    expect(page.get_by_text("Nothing waits for a decision")).to_be_visible()
    page.goto(f"{server.url}/#/runs")
    expect(row).to_contain_text("decided")
    page.goto(f"{server.url}/#/runs/{asked.id}")
    expect(page.locator(".page-head")).to_contain_text("decided")


def test_a_client_tool_is_answered_in_the_inbox(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="metered", include_base_tools=False)
    message = {"role": "user", "content": "Call read_meter with room 'cellar'"}
    client.agents.messages.create(agent.id, messages=[message], client_tools=[CLIENT_TOOL])  # pyright: ignore[reportArgumentType]
    page = open_page(server.url, "#/approvals")
    card = page.locator("article", has_text="cellar")
    expect(card.get_by_role("rowheader", name="room")).to_be_visible()
    card.get_by_label("Result of the client's tool").fill("no meter there")
    card.get_by_label("status").select_option(label="error")
    card.get_by_role("button", name="Send result").click()
    expect(card).to_have_count(0)
    page.goto(f"{server.url}/#/agents/{agent.id}/chat")
    expect(page.locator(".message.assistant")).to_contain_text("read_meter failed: no meter there")


def test_calls_for_a_person_and_for_the_client_are_decided_in_the_chat(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
    agent = client.agents.create(name="both", include_base_tools=False, tool_ids=[tool.id], parallel_tool_calls=True)
    calls = (
        '[[call:send_invoice {"customer": "Ada", "amount": 120}]] [[call:read_meter {"room": "cellar"}]] [[parallel]]'
    )
    message = {"role": "user", "content": calls}
    client.agents.messages.create(agent.id, messages=[message], client_tools=[CLIENT_TOOL])  # pyright: ignore[reportArgumentType]
    page = open_page(server.url, "#/approvals")
    card = page.locator("article", has_text="cellar")
    expect(card.get_by_role("button", name="Approve")).to_have_count(0)
    card.get_by_role("link", name="Decide them one by one in the chat").click()
    page.locator(".tool.held", has_text="send_invoice").get_by_role("button", name="Approve").click()
    meter = page.locator(".tool.held", has_text="read_meter")
    meter.get_by_label("Result of the client's tool").fill("42 kWh")
    meter.get_by_role("button", name="Send result").click()
    expect(page.locator(".message.assistant").last).to_contain_text("42 kWh")


def test_several_approvals_are_given_at_once(open_page: Open, server: ServerProcess, client: Letta) -> None:
    tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
    made = [client.agents.create(name=f"b{n}", include_base_tools=False, tool_ids=[tool.id]) for n in range(3)]
    for agent in made:
        ask_for_approval(client, agent.id)
    page = open_page(server.url, "#/approvals")
    expect(page.locator("article")).to_have_count(3)
    for box in page.get_by_label("Choose this request").all():
        box.check()
    page.get_by_role("button", name="Approve 3").click()
    expect(page.get_by_text("Nothing waits for a decision")).to_be_visible()
    for agent in made:
        page.goto(f"{server.url}/#/agents/{agent.id}/chat")
        expect(page.locator(".message.assistant")).to_contain_text("sent 120 to Ada")
        client.agents.delete(agent.id)


def test_hostile_content_does_nothing(open_page: Open, server: ServerProcess, client: Letta) -> None:
    source = f"def tell() -> str:\n    '''Tell.'''\n    return {SCRIPT!r} * 200\n"
    tool = client.tools.upsert(source_code=source)
    agent = client.agents.create(
        name="hostile",
        include_base_tools=False,
        tool_ids=[tool.id],
        memory_blocks=[{"label": "human", "value": HOSTILE}],
    )
    client.agents.update(agent.id, name="<b>hostile</b> & co")
    client.agents.messages.create(agent.id, input=HOSTILE)
    client.agents.messages.create(agent.id, input="Call tell")
    page = open_page(server.url, f"#/agents/{agent.id}/chat")
    expect(page.locator("h1")).to_have_text("<b>hostile</b> & co")
    expect(page.locator(".message.assistant").first).to_contain_text("You said:")
    expect(page.locator(".message.user").first).to_contain_text("⟨U+202E⟩")
    assert page.locator(".messages script, .messages img, .messages a[href^=javascript]").count() == 0
    for path in (f"#/agents/{agent.id}", "#/"):
        page.goto(f"{server.url}/{path}")
        expect(page.locator("main")).to_be_visible()
    assert "owned" not in page.title()


def test_a_server_with_a_key_asks_for_it(open_page: Open, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", HOLDFAST_API_KEY="open sesame") as server:
        page = open_page(server.url)
        page.get_by_label("API key").fill("open sesame")
        page.get_by_role("button", name="Open the console").click()
        expect(page.get_by_role("button", name="Create a demo agent")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_issue(
    open_page: Open, server: ServerProcess, client: Letta, billing: Any, scheme: str, shot: Shot
) -> None:
    ask_for_approval(client, billing.id)
    [run] = client.runs.list(agent_id=billing.id).items
    page = open_page(server.url, color_scheme=scheme, bypass_csp=True)
    pages = {
        "agents": "#/",
        "agent": f"#/agents/{billing.id}",
        "chat": f"#/agents/{billing.id}/chat",
        "approvals": "#/approvals",
        "runs": "#/runs",
        "run": f"#/runs/{run.id}",
        "overview": "#/overview",
    }
    found: dict[str, list[str]] = {}
    for name, path in pages.items():
        page.goto(f"{server.url}/{path}")
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator("[aria-busy]")).to_have_count(0)
        shot(page, f"{name}-{scheme}")  # to look at; the documentation shows others
        page.evaluate("document.querySelectorAll('main details').forEach(fold => { fold.open = true; })")
        page.add_script_tag(path=str(AXE))
        report = page.evaluate("axe.run()")
        serious = [one for one in report["violations"] if one["impact"] in ("serious", "critical")]
        if serious:
            found[name] = [f"{one['id']}: {one['nodes'][0]['html']}" for one in serious]
    assert found == {}, json.dumps(found, indent=1)


def test_every_view_can_be_reached_with_the_keyboard(open_page: Open, server: ServerProcess, client: Letta) -> None:
    page = open_page(server.url, "#/overview")
    expect(page.locator("h1")).to_have_text("Overview")
    for key, heading in (("p", "Approvals"), ("r", "Runs"), ("a", "Agents")):
        page.keyboard.press(key)
        expect(page.locator("h1")).to_have_text(heading)


def test_a_phone_shows_no_page_wider_than_itself(
    open_page: Open, server: ServerProcess, client: Letta, billing: Any
) -> None:
    ask_for_approval(client, billing.id)
    [run] = client.runs.list(agent_id=billing.id).items
    page = open_page(server.url, viewport={"width": 390, "height": 800})
    own = (f"#/runs/{run.id}", f"#/agents/{billing.id}", f"#/agents/{billing.id}/chat")
    for path in ("#/", "#/approvals", "#/runs", "#/overview", *own):
        page.goto(f"{server.url}/{path}")
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator("main > [aria-busy]")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_a_view_that_could_not_be_fetched_says_so_and_can_be_tried_again(
    open_page: Open, server: ServerProcess
) -> None:
    page = open_page(server.url)
    page.route("**/views/overview.js", lambda route: route.abort())
    page.goto(f"{server.url}/#/overview")
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("This page could not be loaded")
    page.unroute("**/views/overview.js")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
