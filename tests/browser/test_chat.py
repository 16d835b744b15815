"""A conversation in the console: words as they come, a stop, a reload, a restart of the server, two tabs."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from letta_client import Letta
from playwright.sync_api import Page, expect

from tests.serving import ServerProcess

from .conftest import INVOICE, Open

SLOW = "[[tokens:60]] [[delay:0.05]] [[no_reasoning]]"


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()


def chat_of(agent_id: str) -> str:
    return f"#/agents/{agent_id}/chat"


def test_a_message_is_answered_and_stays_after_a_reload(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="reader", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    say(page, "Hello **there**")
    expect(page.locator(".message.assistant")).to_contain_text("You said: Hello there")
    expect(page.locator(".message.assistant strong")).to_have_text("there")
    page.reload()
    expect(page.locator(".message")).to_have_count(2)
    expect(page.locator(".message.user")).to_contain_text("Hello **there**")


def test_words_are_shown_while_they_come(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="slow", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    say(page, SLOW)
    answer = page.locator(".message.assistant")
    expect(answer).to_be_visible()
    part = len(answer.inner_text())
    expect(page.locator(".working")).to_be_visible()
    expect(page.locator(".working")).to_be_hidden()
    assert part < len(answer.inner_text())


@pytest.mark.parametrize(
    "text", ["[[stall]]", "[[tokens:400]] [[delay:0.05]]"], ids=["before the first token", "mid-stream"]
)
def test_a_stop_ends_the_run_and_says_what_ran(
    open_page: Open, server: ServerProcess, client: Letta, text: str
) -> None:
    agent = client.agents.create(name="stopped", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    say(page, text)
    expect(page.locator(".working")).to_be_visible()
    if "tokens" in text:
        expect(page.locator(".message.assistant")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".stopped")).to_contain_text("No tool was running")
    [run] = client.runs.list(agent_id=agent.id).items
    assert run.status == "cancelled"


def test_a_reload_joins_the_stream_again_without_a_gap(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="reloaded", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    say(page, SLOW)
    expect(page.locator(".message.assistant")).to_be_visible()
    page.reload()
    expect(page.locator(".working")).to_be_visible()
    expect(page.locator(".message.user")).to_have_count(1)
    expect(page.locator(".working")).to_be_hidden()
    stored = [m for m in client.agents.messages.list(agent.id).items if m.message_type == "assistant_message"]
    expect(page.locator(".message.assistant")).to_have_text(str(stored[-1].content))


def test_two_tabs_show_the_same_run(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="shared", include_base_tools=False)
    first = open_page(server.url, chat_of(agent.id))
    say(first, SLOW)
    expect(first.locator(".message.assistant")).to_be_visible()
    second = open_page(server.url, chat_of(agent.id))
    expect(second.locator(".working")).to_be_visible()
    for page in (first, second):
        expect(page.locator(".working")).to_be_hidden()
    assert first.locator(".message.assistant").inner_text() == second.locator(".message.assistant").inner_text()


def test_a_message_that_is_written_during_a_run_is_sent_after_it(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    agent = client.agents.create(name="busy", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    say(page, SLOW)
    expect(page.locator(".message.assistant")).to_be_visible()
    say(page, "second")
    expect(page.locator(".message.assistant").last).to_have_text("You said: second")
    kinds = [m.message_type for m in client.agents.messages.list(agent.id).items]
    assert kinds[1:] == ["user_message", "assistant_message", "user_message", "reasoning_message", "assistant_message"]


def test_conversations_can_be_started_and_forked(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="forked", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    page.get_by_role("button", name="New").click()
    page.wait_for_url("**/chat/conv-*")
    say(page, "in a conversation")
    expect(page.locator(".message.assistant")).to_have_text("You said: in a conversation")
    began = page.url
    page.get_by_role("button", name="Fork", exact=True).click()
    page.wait_for_function("before => location.href !== before", arg=began)
    expect(page.locator(".message.assistant")).to_have_text("You said: in a conversation")


class TestRestartedServer:
    @pytest.fixture
    def own_server(self, tmp_path: Path) -> Generator[ServerProcess]:
        with ServerProcess(tmp_path / "data", HOLDFAST_DEFAULT_MODEL="holdfast/offline") as started:
            yield started

    def test_a_stream_goes_on_when_the_server_was_killed(self, open_page: Open, own_server: ServerProcess) -> None:
        client = own_server.client()
        agent = client.agents.create(name="survivor", include_base_tools=False)
        page = open_page(own_server.url, chat_of(agent.id))
        say(page, SLOW)
        expect(page.locator(".message.assistant")).to_be_visible()
        own_server.kill()
        expect(page.get_by_text("Joining the stream again")).to_be_visible()
        own_server.start()
        expect(page.locator(".working")).to_be_hidden()
        stored = [m for m in client.agents.messages.list(agent.id).items if m.message_type == "assistant_message"]
        expect(page.locator(".message.assistant")).to_have_text(str(stored[-1].content))


def test_images_are_sent_and_shown(open_page: Open, server: ServerProcess, client: Letta, tmp_path: Path) -> None:
    agent = client.agents.create(name="seeing", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    picture = tmp_path / "dot.png"
    page.screenshot(path=str(picture), clip={"x": 0, "y": 0, "width": 2, "height": 2})
    page.locator("input[type=file]").set_input_files(str(picture))
    say(page, "look")
    expect(page.locator(".message.user img")).to_be_visible()
    expect(page.locator(".message.assistant")).to_be_visible()
    page.reload()
    expect(page.locator(".message.user img")).to_be_visible()


def test_a_long_history_is_read_page_by_page(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="old", include_base_tools=False)
    for number in range(120):
        client.agents.messages.create(agent.id, input=f"message {number} [[no_reasoning]] [[say:answer {number}]]")
    page = open_page(server.url, chat_of(agent.id))
    expect(page.get_by_text("answer 119", exact=True)).to_be_visible()
    assert page.get_by_text("message 0 ").count() == 0
    for seen in ("answer 60", "answer 20", "answer 0"):
        page.locator(".messages").evaluate("list => { list.scrollTop = 0; }")
        expect(page.get_by_text(seen, exact=True)).to_have_count(1)


def test_an_approval_is_given_in_the_chat(open_page: Open, server: ServerProcess, client: Letta) -> None:
    tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
    agent = client.agents.create(name="billing", include_base_tools=False, tool_ids=[tool.id])
    page = open_page(server.url, chat_of(agent.id))
    say(page, "Call send_invoice with customer 'Ada' and amount 120")
    card = page.locator(".tool.held")
    expect(card).to_contain_text("Ada")
    expect(card).to_contain_text("120")
    card.get_by_role("button", name="Approve").click()
    expect(page.locator(".tool.success")).to_contain_text("sent 120 to Ada")
    expect(page.locator(".message.assistant")).to_contain_text("sent 120 to Ada")
