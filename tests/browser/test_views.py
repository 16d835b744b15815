"""The inbox, runs, agents and the overview; hostile content; a key; accessibility; size and speed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from letta_client import Letta
from playwright.sync_api import Page, expect

from tests.serving import ServerProcess

from .conftest import INVOICE, Open

AXE = Path(__file__).parents[2] / ".venv" / "browser" / "axe.min.js"
SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
HOSTILE = f"{SCRIPT} [x](javascript:alert(1)) \u202etxet\u202c \u200bzero"
Shot = Callable[[Page, str], None]


@pytest.fixture
def billing(client: Letta) -> Any:
    tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
    agent = client.agents.create(name="billing", include_base_tools=False, tool_ids=[tool.id])
    yield agent
    client.agents.delete(agent.id)


def ask_for_approval(client: Letta, agent_id: str, amount: int = 120) -> None:
    client.agents.messages.create(agent_id, input=f"Call send_invoice with customer 'Ada' and amount {amount}")


def test_the_first_run_takes_three_clicks(open_page: Open, tmp_path: Path, shot: Shot) -> None:
    with ServerProcess(tmp_path / "data") as server:
        page = open_page(server.url)
        shot(page, "first-run")
        page.get_by_role("button", name="Create a demo agent").click()
        page.get_by_role("button", name=re.compile("Call send_invoice")).click()
        page.get_by_role("button", name="Send", exact=True).click()
        page.locator(".tool.held").get_by_role("button", name="Approve").click()
        expect(page.locator(".message.assistant")).to_contain_text("An invoice over 120 euros was sent to Ada.")
        shot(page, "chat")


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


def test_a_run_shows_why_it_waits_and_can_be_cancelled(
    open_page: Open, server: ServerProcess, client: Letta, billing: Any, shot: Shot
) -> None:
    ask_for_approval(client, billing.id)
    [run] = client.runs.list(agent_id=billing.id).items
    page = open_page(server.url, f"#/runs/{run.id}")
    expect(page.locator(".why")).to_contain_text("a person to approve or deny send_invoice")
    expect(page.locator(".waterfall tbody tr")).to_have_count(1)
    shot(page, "run")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".status").first).to_have_text("cancelled")
    assert client.runs.retrieve(run.id).status == "cancelled"


def test_the_context_bar_adds_up_to_the_api(open_page: Open, server: ServerProcess, client: Letta, shot: Shot) -> None:
    agent = client.agents.create(name="context", memory_blocks=[{"label": "human", "value": "Ada likes tea."}])
    client.agents.messages.create(agent.id, input="Hello")
    page = open_page(server.url, f"#/agents/{agent.id}")
    told = page.request.get(f"{server.url}/v1/agents/{agent.id}/context").json()
    expect(page.locator("[data-total]")).to_have_attribute("data-total", str(told["context_window_size_current"]))
    parts = [int(text.replace(",", "")) for text in page.locator("[data-section]").all_inner_texts()]
    assert sum(parts) == told["context_window_size_current"]
    shot(page, "agent")


def test_memory_and_approval_switches_are_written(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="memory", memory_blocks=[{"label": "human", "value": "Ada"}])
    page = open_page(server.url, f"#/agents/{agent.id}")
    page.get_by_role("textbox", name="human").fill("Ada likes tea.")
    page.get_by_role("button", name="Save").first.click()
    page.locator("[data-tool=memory_insert]").get_by_label("needs approval").check()
    expect(page.locator("[data-tool=memory_insert]").get_by_label("needs approval")).to_be_checked()
    assert client.agents.blocks.retrieve("human", agent_id=agent.id).value == "Ada likes tea."
    rules = client.agents.retrieve(agent.id).tool_rules or []
    assert [rule.tool_name for rule in rules if rule.type == "requires_approval"] == ["memory_insert"]


def test_a_tool_is_tried_without_a_conversation(open_page: Open, server: ServerProcess, client: Letta) -> None:
    tool = client.tools.upsert(source_code=INVOICE)
    agent = client.agents.create(name="trying", include_base_tools=False, tool_ids=[tool.id])
    page = open_page(server.url, f"#/agents/{agent.id}")
    page.get_by_text("Try it").click()
    page.get_by_label(re.compile("customer")).fill("Ada")
    page.get_by_label(re.compile("amount")).fill("7")
    page.get_by_role("button", name="Run outside any conversation").click()
    expect(page.locator(".try")).to_contain_text("sent 7 to Ada")


def test_an_agent_is_exported_and_imported(
    open_page: Open, server: ServerProcess, client: Letta, tmp_path: Path
) -> None:
    agent = client.agents.create(name="traveller", include_base_tools=False)
    page = open_page(server.url, f"#/agents/{agent.id}")
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Export").click()
    file = tmp_path / downloading.value.suggested_filename
    downloading.value.save_as(file)
    assert file.name == "traveller.af"
    client.agents.delete(agent.id)
    page.goto(f"{server.url}/#/")
    page.locator("input[type=file]").set_input_files(str(file))
    expect(page.get_by_text("traveller.af: 1 imported")).to_be_visible()
    assert len(client.agents.list(name="traveller_copy").items + client.agents.list(name="traveller").items) == 1


def test_a_file_is_uploaded_and_its_ingestion_is_shown(
    open_page: Open, server: ServerProcess, client: Letta, tmp_path: Path
) -> None:
    folder = client.folders.create(name="shelf")
    agent = client.agents.create(name="reader", include_base_tools=False)
    client.agents.folders.attach(folder.id, agent_id=agent.id)
    page = open_page(server.url, f"#/agents/{agent.id}")
    (tmp_path / "tea.txt").write_text("Ada likes tea.")
    page.locator(".folder input[type=file]").set_input_files(str(tmp_path / "tea.txt"))
    expect(page.locator(".folder tr")).to_contain_text("tea.txt")
    expect(page.locator(".folder .status.completed")).to_be_visible()


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
        shot(page, f"{name}-{scheme}")
        page.add_script_tag(path=str(AXE))
        report = page.evaluate("axe.run()")
        serious = [one for one in report["violations"] if one["impact"] in ("serious", "critical")]
        if serious:
            found[name] = [f"{one['id']}: {one['nodes'][0]['html']}" for one in serious]
    assert found == {}, json.dumps(found, indent=1)


def test_the_console_is_small_and_quick(
    open_page: Open, server: ServerProcess, client: Letta, record_property: Any
) -> None:
    """Sizes are exact. Times are reported, and only compared with a limit that no machine should miss."""
    page = open_page(server.url)
    expect(page.locator("main")).to_be_visible()
    sizes = page.evaluate("performance.getEntriesByType('resource').map(e => [e.name, e.encodedBodySize])")
    total = sum(size for name, size in sizes if "/console/" in name)
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    record_property("console bytes, gzipped", total)
    record_property("first contentful paint, ms", paint)
    print(f"console: {total} bytes gzipped, first contentful paint {paint} ms")
    assert 0 < total <= 150_000


def test_every_view_can_be_reached_with_the_keyboard(open_page: Open, server: ServerProcess, client: Letta) -> None:
    page = open_page(server.url, "#/overview")
    expect(page.locator("h1")).to_have_text("Overview")
    for key, heading in (("p", "Approvals"), ("r", "Runs"), ("a", "Agents")):
        page.keyboard.press(key)
        expect(page.locator("h1")).to_have_text(heading)


def test_a_phone_shows_no_page_wider_than_itself(
    open_page: Open, server: ServerProcess, client: Letta, billing: Any
) -> None:
    page = open_page(server.url)
    page.set_viewport_size({"width": 390, "height": 800})
    for path in ("#/", "#/approvals", "#/runs", "#/overview", f"#/agents/{billing.id}", f"#/agents/{billing.id}/chat"):
        page.goto(f"{server.url}/{path}")
        expect(page.locator("main h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_a_page_kept_open_does_not_grow(open_page: Open, server: ServerProcess, client: Letta) -> None:
    """Many streams in one tab: what was shown is kept, what was streamed is not."""
    agent = client.agents.create(name="long", include_base_tools=False)
    page = open_page(server.url, f"#/agents/{agent.id}/chat")

    def heap() -> int:
        session = page.context.new_cdp_session(page)
        session.send("HeapProfiler.collectGarbage")
        return session.send("Runtime.getHeapUsage")["usedSize"]

    def turns(number: int) -> None:
        for _ in range(number):
            page.get_by_label("Message", exact=True).fill("[[tokens:300]] [[no_reasoning]]")
            page.get_by_role("button", name="Send", exact=True).click()
            expect(page.locator(".working")).to_be_hidden()

    turns(5)
    before = heap()
    turns(20)
    grown = (heap() - before) / 20
    print(f"a turn of 300 tokens leaves {grown / 1000:.1f} kB in the page")
    assert grown < 100_000
