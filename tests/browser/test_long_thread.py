"""A thread of 5,000 messages: quick to open, smooth to scroll, every message reachable, few of them in the page."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from letta_client import Letta
from playwright.sync_api import Page, expect

from tests.serving import ServerProcess

from .conftest import Open, heap_of

MESSAGES = 5_000
MOST_NODES = 600  # of the whole page, whatever the thread's length
SMOOTH_MS = 100  # of work for one screen of scrolling, at the 95th percentile

# Numbers of the messages that are in the page, in the order in which they stand there.
NUMBERS = "() => [...document.querySelectorAll('.item')].map(row => Number(/number (\\d+)/.exec(row.textContent)?.[1]))"
SHOWN = "text => document.querySelector('.messages')?.textContent.includes(text) && performance.now()"
NODES = "() => document.querySelectorAll('*').length"
# Scrolls by so many pixels, and says how long the page had to work before it could show that.
SCROLL = """(by) => new Promise(resolve => {
  const list = document.querySelector('.messages'), begun = performance.now();
  list.scrollTop += by;
  requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - begun)));
})"""
MOVED = """() => {
  const {scrollTop, scrollHeight, clientHeight} = document.querySelector('.messages');
  return [scrollTop, scrollHeight - scrollTop - clientHeight];
}"""


@pytest.fixture(scope="module")
def long_agent(server: ServerProcess) -> str:
    """Made by an import, which takes a second or two; 2,500 turns would take a minute."""
    client = server.client()
    template = client.agents.create(name="template", include_base_tools=False)
    client.agents.messages.create(template.id, input="Hello [[no_reasoning]]")
    file = json.loads(client.agents.export_file(template.id))
    [agent] = file["agents"]
    system, user, assistant = agent["messages"]

    def said(number: int) -> dict[str, Any]:
        text = f"number {number} " + "and some more words, of which there are not always the same " * (number % 5)
        model = assistant if number % 2 else user
        return {**model, "id": f"message-{number + 1}", "otid": None, "content": [{"type": "text", "text": text}]}

    agent["messages"] = [system, *(said(number) for number in range(MESSAGES))]
    agent["in_context_message_ids"] = [message["id"] for message in agent["messages"]]
    content = io.BytesIO(json.dumps(file).encode())
    imported = client.agents.import_file(file=("long.af", content), name="long")
    client.agents.delete(template.id)
    return imported.agent_ids[0]


def numbers_in(page: Page) -> list[int]:
    found: list[int] = page.evaluate(NUMBERS)
    assert found == list(range(found[0], found[-1] + 1)), "rows are missing, doubled or out of order"
    return found


@pytest.mark.timeout(120)
def test_a_thread_of_5000_messages_is_scrolled_to_its_beginning_and_back(
    open_page: Open, server: ServerProcess, client: Letta, long_agent: str, record_property: Any
) -> None:
    page = open_page(server.url, f"#/agents/{long_agent}/chat")
    painted = page.wait_for_function(SHOWN, arg=f"number {MESSAGES - 1} ").json_value()
    contentful = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    heap_first = heap_of(page)
    seen: list[int] = []
    most_nodes = page.evaluate(NODES)
    times: list[float] = []
    # Upwards: each screen must continue the one before, so that nothing is skipped.
    first = MESSAGES
    while first > 0:
        here = numbers_in(page)
        assert here[-1] >= first - 1, "a gap between two screens"
        seen.extend(number for number in reversed(here) if number < first)
        first = min(first, here[0])
        most_nodes = max(most_nodes, page.evaluate(NODES))
        if page.evaluate(MOVED)[0] <= 1 and first > 0:  # the next page of history is on its way
            page.wait_for_function("() => document.querySelector('.messages').scrollTop > 1")
        times.append(page.evaluate(SCROLL, -1_200))
    assert seen == list(range(MESSAGES - 1, -1, -1)), "each message once, newest first"
    # And back, in long leaps over rows that are no longer drawn.
    while page.evaluate(MOVED)[1] > 1:
        times.append(page.evaluate(SCROLL, 20_000))
        numbers_in(page)
        most_nodes = max(most_nodes, page.evaluate(NODES))
    assert numbers_in(page)[-1] == MESSAGES - 1
    slow = sorted(times)[int(len(times) * 0.95)]
    figures = {
        "first contentful paint, ms": round(contentful),
        "newest message shown after, ms": round(painted),
        "JS heap after opening, kB": heap_first // 1000,
        "JS heap with all messages loaded, kB": heap_of(page) // 1000,
        "most nodes in the page": most_nodes,
        "one screen of scrolling, 95th percentile, ms": round(slow, 1),
    }
    for name, figure in figures.items():
        record_property(name, figure)
    print(f"{MESSAGES} messages: {figures}")
    assert most_nodes <= MOST_NODES
    assert slow <= SMOOTH_MS


def test_a_conversation_is_read_page_by_page_too(
    open_page: Open, server: ServerProcess, client: Letta, long_agent: str
) -> None:
    """Its list has another order than that of an agent's own history."""
    conversation = client.conversations.fork("default", agent_id=long_agent)
    page = open_page(server.url, f"#/agents/{long_agent}/chat/{conversation.id}")
    page.wait_for_function(SHOWN, arg=f"number {MESSAGES - 1} ")
    first = MESSAGES
    while first > MESSAGES - 250:
        here = numbers_in(page)
        assert here[-1] >= first - 1, "a gap between two screens"
        first = min(first, here[0])
        if page.evaluate(MOVED)[0] <= 1:
            page.wait_for_function("() => document.querySelector('.messages').scrollTop > 1")
        page.evaluate(SCROLL, -1_200)


def test_what_is_read_stays_in_place_while_earlier_messages_and_an_answer_come(
    open_page: Open, server: ServerProcess, client: Letta, long_agent: str
) -> None:
    page = open_page(server.url, f"#/agents/{long_agent}/chat")
    last = page.get_by_text(re.compile(rf"^number {MESSAGES - 1} "))
    expect(last).to_be_visible()
    page.locator(".messages").evaluate("list => { list.scrollTop = 0; }")
    page.wait_for_function("() => document.querySelector('.messages').scrollTop > 1")
    reading = page.evaluate(
        "() => { const list = document.querySelector('.messages').getBoundingClientRect();"
        " const rows = [...document.querySelectorAll('.item')];"
        " const row = rows.find(row => row.getBoundingClientRect().bottom > list.top + 5);"
        " window.row = row; return row.getBoundingClientRect().top; }"
    )
    with page.expect_response(re.compile(r"/messages\?limit=100&order=desc$")):  # the console looks for news
        client.agents.messages.create(long_agent, input="from elsewhere [[no_reasoning]] [[say:done]]")
    page.evaluate("() => new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    assert abs(page.evaluate("() => window.row.getBoundingClientRect().top") - reading) < 2
