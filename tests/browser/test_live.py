"""Views that change by themselves, by the feed of changes and without asking again and again; and the overview, whose
figures are the server's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from letta_client import APIStatusError, Letta
from playwright.sync_api import Page, Request, expect

from tests.serving import ServerProcess

from .conftest import INVOICE, Open
from .test_views import AXE, ask_for_approval

Shot = Callable[[Page, str], None]
A_MINUTE = 60_000


class Asked:
    """Requests of a page for one list, and a clock that can be put forward: whoever asks every so often would ask."""

    def __init__(self, page: Page, path: str) -> None:
        self._page = page
        self.urls: list[str] = []

        def note(request: Request) -> None:
            if re.search(rf"/v1{path}(\?|$)", request.url):
                self.urls.append(request.url)

        page.on("request", note)

    def none_within_a_minute(self) -> None:
        before = len(self.urls)
        self._page.clock.fast_forward(A_MINUTE)
        self._page.evaluate("fetch('v1/health/')")  # whatever was asked for by now was noted before this
        assert self.urls[before:] == []


def opened_live(open_page: Open, url: str, path: str, asked_path: str) -> tuple[Page, Asked]:
    """A page whose clock is ours, once the feed has greeted it and it has read its lists."""
    page = open_page(url)
    asked = Asked(page, asked_path)
    page.clock.install()
    with page.expect_response("**/v1/events/"):
        page.goto(f"{url}/{path}")
        page.reload()
    expect(page.locator("main h1")).to_be_visible()
    expect(page.locator("[aria-busy]")).to_have_count(0)
    page.wait_for_function("import('./console/feed.js').then((feed) => feed.live.value)")
    page.wait_for_load_state()
    page.clock.fast_forward(1_000)  # what the greeting asked for is read
    page.evaluate("fetch('v1/health/').then((answer) => answer.text())")
    return page, asked


@pytest.fixture
def billing(client: Letta) -> Generator[Any]:
    tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
    agent = client.agents.create(name="billing", include_base_tools=False, tool_ids=[tool.id])
    yield agent
    client.agents.delete(agent.id)


def test_the_inbox_and_the_title_change_without_asking_again_and_again(
    open_page: Open, server: ServerProcess, client: Letta, billing: Any
) -> None:
    page, asked = opened_live(open_page, server.url, "#/approvals", "/approvals/")
    asked.none_within_a_minute()
    ask_for_approval(client, billing.id)
    expect(page.locator("article")).to_contain_text("Ada")
    expect(page).to_have_title("(1) Approvals · Holdfast")
    asked.none_within_a_minute()
    client.agents.messages.cancel(billing.id)
    expect(page.get_by_text("Nothing waits for a decision")).to_be_visible()
    expect(page).to_have_title("Approvals · Holdfast")


def test_the_list_of_runs_changes_by_itself(
    open_page: Open, server: ServerProcess, client: Letta, billing: Any
) -> None:
    page, asked = opened_live(open_page, server.url, "#/runs", "/runs/")
    asked.none_within_a_minute()
    ask_for_approval(client, billing.id)
    [run] = client.runs.list(agent_id=billing.id).items
    row = page.locator("tr", has=page.locator(f"a[href='#/runs/{run.id}']"))
    expect(row.locator(".status")).to_have_text("waits for approval")
    client.agents.messages.cancel(billing.id)
    expect(row.locator(".status")).to_have_text("cancelled")


def test_a_run_changes_by_itself(open_page: Open, server: ServerProcess, client: Letta, billing: Any) -> None:
    ask_for_approval(client, billing.id)
    [run] = client.runs.list(agent_id=billing.id).items
    page, asked = opened_live(open_page, server.url, f"#/runs/{run.id}", f"/runs/{run.id}")
    expect(page.locator(".why")).to_contain_text("a person to approve or deny")
    asked.none_within_a_minute()
    client.agents.messages.cancel(billing.id)
    expect(page.locator(".status").first).to_have_text("cancelled")


def test_the_list_of_agents_changes_by_itself(open_page: Open, server: ServerProcess, client: Letta) -> None:
    kept = client.agents.create(name="kept", include_base_tools=False)
    page, asked = opened_live(open_page, server.url, "#/", "/agents/")
    asked.none_within_a_minute()
    made = client.agents.create(name="newcomer", include_base_tools=False)
    expect(page.get_by_role("link", name="newcomer")).to_be_visible()
    client.agents.update(made.id, name="renamed")
    expect(page.get_by_role("link", name="renamed")).to_be_visible()
    client.agents.delete(made.id)
    expect(page.get_by_role("link", name="renamed")).to_have_count(0)
    client.agents.delete(kept.id)


def test_without_the_feed_the_inbox_is_looked_at_every_few_seconds(
    open_page: Open, server: ServerProcess, client: Letta, billing: Any
) -> None:
    page = open_page(server.url)
    page.route("**/v1/events/", lambda route: route.abort())
    page.goto(f"{server.url}/#/approvals")
    page.reload()
    expect(page.get_by_text("Nothing waits for a decision")).to_be_visible()
    ask_for_approval(client, billing.id)
    expect(page.locator("article")).to_contain_text("Ada")
    expect(page).to_have_title("(1) Approvals · Holdfast")


def test_after_a_restart_of_the_server_the_inbox_shows_what_came_meanwhile(open_page: Open, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", HOLDFAST_DEFAULT_MODEL="holdfast/offline") as server:
        client = server.client()
        tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
        agent = client.agents.create(name="billing", include_base_tools=False, tool_ids=[tool.id])
        page = open_page(server.url, "#/approvals")
        expect(page.get_by_text("Nothing waits for a decision")).to_be_visible()
        server.kill()
        expect(page.get_by_text("The server cannot be reached")).to_be_visible()
        server.start()
        ask_for_approval(server.client(), agent.id)
        expect(page.locator("article")).to_contain_text("Ada")
        expect(page.get_by_text("The server cannot be reached")).to_have_count(0)
        page.wait_for_function("import('./console/feed.js').then((feed) => feed.live.value)")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    """A server that has done all sorts of things."""
    environment = {"HOLDFAST_DEFAULT_MODEL": "holdfast/offline", "HOLDFAST_MODEL_RETRIES": "0"}
    with ServerProcess(tmp_path_factory.mktemp("busy"), **environment) as server:
        client = server.client()
        sources = [f"def {name}() -> str:\n    '''Does.'''\n    {body}\n" for name, body in TOOLS.items()]
        tools = [client.tools.upsert(source_code=source) for source in sources]
        guarded = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
        agent = client.agents.create(
            name="busy", include_base_tools=False, tool_ids=[tool.id for tool in [*tools, guarded]]
        )
        for text in ("Hello", "Call search", "Call search", "Call lookup", "Call broken", "Good day", "How are you?"):
            client.agents.messages.create(agent.id, input=text)
        for kind in ("rate_limit", "server", "server"):
            with pytest.raises(APIStatusError):
                client.with_options(max_retries=0).agents.messages.create(agent.id, input=f"[[error:{kind}]]")
        ask_for_approval(client, agent.id)
        yield server


TOOLS = {
    "search": "import time; time.sleep(0.3); return 'found'",
    "lookup": "return 'yes'",
    "broken": "raise ValueError('no')",
}


def test_the_figures_of_the_overview_are_the_servers(open_page: Open, busy: ServerProcess, shot: Shot) -> None:
    page = open_page(busy.url, "#/overview")
    expect(page.locator("[data-figure=runs]")).to_have_text("11")
    told = page.request.get(f"{busy.url}/v1/statistics/").json()
    figures = {
        "runs": sum(told["totals"].values()),
        "failed": told["totals"]["failed"],
        "active": told["queue"]["active"],
        "waiting": told["queue"]["waiting"],
        "held": told["queue"]["held"],
    }
    assert figures == {"runs": 11, "failed": 3, "active": 0, "waiting": 0, "held": 1}
    for name, number in figures.items():
        expect(page.locator(f"[data-figure={name}]")).to_have_text(str(number))
    usage = told["usage"]
    expect(page.locator("[data-figure=tokens-in]")).to_have_text(f"{usage['prompt_tokens']:,}")
    expect(page.locator("[data-figure=tokens-out]")).to_have_text(f"{usage['completion_tokens']:,}")
    for day in told["days"]:
        expect(page.locator(f"[data-day='{day['day']}']")).to_contain_text(f"{day['usage']['prompt_tokens']:,}")
    assert page.locator("[data-tool]").count() == len(told["tools"]) == 3
    expect(page.locator("[data-tool]").first).to_have_attribute("data-tool", "search")
    for tool in told["tools"]:
        cells = page.locator(f"[data-tool={tool['name']}] td")
        expect(cells.nth(0)).to_have_text(str(tool["calls"]))
        expect(cells.nth(1)).to_have_text(str(tool["failures"]))
    for error in told["errors"]:
        expect(page.locator(f"[data-error={error['error_type']}]")).to_contain_text(str(error["runs"]))
    for provider in told["providers"]:
        cells = page.locator(f"[data-provider='{provider['name']}'] td")
        expect(cells.nth(1)).to_have_text(str(provider["calls"]))
    drawn = page.evaluate(
        "(buckets) => import('./console/views/overview.js').then((view) => view.stacked(buckets))", told["buckets"]
    )
    shot(page, "overview")
    assert max(drawn[1]) == 11  # the topmost state of the bucket, on top of all others


def test_the_overview_changes_by_itself_and_with_the_range(open_page: Open, busy: ServerProcess) -> None:
    page = open_page(busy.url, "#/overview")
    runs = page.locator("[data-figure=runs]")
    before = int(runs.inner_text())
    client = busy.client()
    agent = client.agents.create(name="later", include_base_tools=False)
    client.agents.messages.create(agent.id, input="Hello")
    expect(runs).to_have_text(str(before + 1))
    for name in ("hour", "week", "month"):
        with page.expect_response(re.compile(r"/v1/statistics/\?since=.*bucket_s")) as answer:
            page.get_by_text(name, exact=True).click()
        assert len(answer.value.json()["buckets"]) > 20
        expect(page.get_by_role("radio", name=name)).to_be_checked()
        expect(runs).to_have_text(str(before + 1))
    page.reload()
    expect(page.get_by_role("radio", name="month")).to_be_checked()
    client.agents.delete(agent.id)
    expect(runs).to_have_text(str(before))


def test_a_server_that_has_done_nothing_has_an_overview_too(open_page: Open, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        page = open_page(server.url, "#/overview")
        expect(page.locator("[data-figure=runs]")).to_have_text("0")
        expect(page.get_by_text("No tool was called in this time.")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_full_overview(
    open_page: Open, busy: ServerProcess, scheme: str, shot: Shot
) -> None:
    page = open_page(busy.url, "#/overview", color_scheme=scheme, bypass_csp=True)
    expect(page.locator(".chart canvas")).to_be_visible()
    page.set_viewport_size({"width": 1100, "height": 1500})
    shot(page, f"overview-full-{scheme}")
    page.add_script_tag(path=str(AXE))
    report = page.evaluate("axe.run()")
    serious = [one for one in report["violations"] if one["impact"] in ("serious", "critical")]
    assert serious == [], json.dumps(serious, indent=1)


def test_a_full_overview_is_no_wider_than_a_phone(open_page: Open, busy: ServerProcess, shot: Shot) -> None:
    page = open_page(busy.url)
    page.set_viewport_size({"width": 390, "height": 1800})
    page.goto(f"{busy.url}/#/overview")
    expect(page.locator(".chart canvas")).to_be_visible()
    shot(page, "overview-phone")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
