"""One run in the console: why it waits, its steps, its events, what the model was sent; cancel and fork."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from letta_client import Letta
from playwright.sync_api import expect

from tests.serving import ServerProcess

from .conftest import Open, Shot, ask_for_approval


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


def test_a_failed_try_is_marked_in_the_waterfall(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="unlucky", include_base_tools=False)
    client.agents.messages.create(agent.id, input="Hello [[error:overloaded]] [[error_times:1]] [[retry_after:0.01]]")
    [run] = client.runs.list(agent_id=agent.id).items
    page = open_page(server.url, f"#/runs/{run.id}")
    expect(page.locator(".waterfall .mark.retry")).to_have_count(1)
    expect(page.locator(".marks")).to_contain_text("a try failed, and another follows")


def test_a_compaction_is_marked_in_the_waterfall(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="full", include_base_tools=False)
    for number in range(4):
        client.agents.messages.create(agent.id, input=f"{number} {'words ' * 200} [[no_reasoning]] [[say:yes]]")
    client.agents.messages.create(agent.id, input="Too much [[error:context]] [[error_times:1]]")
    run = client.runs.list(agent_id=agent.id, limit=1).items[0]
    page = open_page(server.url, f"#/runs/{run.id}")
    expect(page.locator(".waterfall .mark.compaction")).to_have_count(1)
    expect(page.locator(".marks")).to_contain_text("message(s) were summarised")


def test_a_run_that_waits_for_its_next_try_says_when_it_comes(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    agent = client.agents.create(name="limited", include_base_tools=False)
    text = "Wait [[error:overloaded]] [[error_times:1]] [[retry_after:30]]"
    run = client.agents.messages.create_async(agent.id, messages=[{"role": "user", "content": text}])
    page = open_page(server.url, f"#/runs/{run.id}")
    expect(page.locator(".why")).to_contain_text("before try 2 of")
    expect(page.locator(".why")).to_contain_text("Driven by:")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".status").first).to_have_text("cancelled")


def test_a_fork_from_a_step_ends_with_that_step(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="steps", memory_blocks=[{"label": "human", "value": ""}])
    client.agents.messages.create(agent.id, input="remember that I like tea [[no_reasoning]]")
    [run] = client.runs.list(agent_id=agent.id).items
    page = open_page(server.url, f"#/runs/{run.id}")
    rows = page.locator(".waterfall tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first.locator(".span")).not_to_have_count(0)
    rows.first.get_by_role("button", name="Fork from here").click()
    page.wait_for_url("**/chat/conv-*")
    expect(page.locator(".tool.success")).to_be_visible()
    assert page.locator(".message.assistant").count() == 0


def test_events_are_listed_by_their_numbers(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="logged", include_base_tools=False)
    message = {"role": "user", "content": "Hello [[no_reasoning]] [[tokens:5]]"}
    run = client.agents.messages.create_async(agent.id, messages=[message])  # pyright: ignore[reportArgumentType]
    page = open_page(server.url, f"#/runs/{run.id}")
    expect(page.locator(".status.completed").first).to_be_visible()
    page.get_by_role("button", name="Load the events").click()
    expect(page.locator(".events tbody tr").last).to_contain_text("usage_statistics")
    numbers = [int(text) for text in page.locator(".events tbody td:first-child").all_inner_texts()]
    assert numbers == list(range(1, len(numbers) + 1))
    page.locator(".events tbody button").first.click()
    expect(page.locator(".events pre")).to_contain_text('"seq_id": 1')


class TestTracing:
    @pytest.fixture
    def tracing_server(self, tmp_path: Path) -> Generator[ServerProcess]:
        with ServerProcess(tmp_path / "data", HOLDFAST_TRACE_PROVIDER="1") as started:
            yield started

    def test_what_the_model_was_sent_and_answered_is_shown(
        self, open_page: Open, tracing_server: ServerProcess
    ) -> None:
        client = tracing_server.client()
        agent = client.agents.create(name="traced", include_base_tools=False)
        client.agents.messages.create(agent.id, input="trace this")
        [run] = client.runs.list(agent_id=agent.id).items
        page = open_page(tracing_server.url, f"#/runs/{run.id}")
        page.locator(".trace summary").click()
        expect(page.locator(".trace")).to_contain_text("trace this")
        expect(page.locator(".trace")).to_contain_text("Response")
