"""A conversation in the console: words as they come, a stop, a reload, a restart of the server, two tabs."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import pytest
from letta_client import Letta
from playwright.sync_api import Page, Route, expect

from tests.serving import ServerProcess

from .conftest import CLIENT_TOOL, INVOICE, Open

QUICK = "def look_up() -> str:\n    '''Look it up.'''\n    return 'found'\n"
ENDLESS = "def endless() -> str:\n    '''Wait.'''\n    import time\n    time.sleep(600)\n    return 'never'\n"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
# It says fifteen words and then nothing more, until it is stopped: however slow a machine is, the run is under way.
SILENT = "[[tokens:90]] [[stall_after:15]] [[no_reasoning]]"


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


def test_a_message_that_is_sent_while_the_page_looks_for_a_run_is_followed_once(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    """Followed twice, its words were shown twice until the run had ended."""
    agent = client.agents.create(name="hasty", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    looks = re.compile(r"/v1/runs/\?.*active=true")
    held: list[Route] = []
    followed: list[str] = []
    page.route(looks, lambda route: held.append(route))
    page.on("request", lambda request: followed.append(request.url) if request.url.endswith("/stream") else None)
    with page.expect_request(looks):
        page.reload()
    say(page, SILENT)
    expect(page.locator(".message.assistant")).to_be_visible()
    with page.expect_response(looks):
        for route in held:
            route.continue_()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    assert len(followed) == 1


def test_words_are_shown_while_they_come(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="slow", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    say(page, "[[tokens:60]] [[delay:0.05]] [[no_reasoning]]")
    seen = page.wait_for_function(
        "() => { const length = document.querySelector('.message.assistant')?.textContent.length ?? 0;"
        " (window.lengths ??= new Set()).add(length);"
        " return !document.querySelector('.working') && length && [...window.lengths]; }"
    ).json_value()
    assert len(seen) > 5, "it grew in steps"
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.locator("#composer-hint")).to_be_empty()


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
    first = "Stopped before the first word." if "stall" in text else "Stopped."
    expect(page.locator(".stopped")).to_contain_text(f"{first} No tool was running.")
    [run] = client.runs.list(agent_id=agent.id).items
    assert run.status == "cancelled"


def test_a_stop_that_overtakes_its_message_stops_the_run_all_the_same(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    agent = client.agents.create(name="overtaken", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    held: list[Route] = []
    page.route("**/messages/stream", lambda route: held.append(route))
    say(page, "[[stall]]")
    with page.expect_response("**/messages/cancel") as answer:
        page.get_by_role("button", name="Stop").click()
    assert answer.value.status == 409
    [message] = held
    message.continue_()
    expect(page.locator(".stopped")).to_contain_text("Stopped before the first word.")
    [run] = client.runs.list(agent_id=agent.id).items
    assert run.status == "cancelled"


def test_a_stop_tells_apart_what_ran_what_did_not_and_what_is_unknown(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    tools = [client.tools.upsert(source_code=source) for source in (QUICK, ENDLESS)]
    agent = client.agents.create(name="working", include_base_tools=False, tool_ids=[tool.id for tool in tools])
    page = open_page(server.url, chat_of(agent.id))
    say(page, "Call look_up, then call endless")
    expect(page.locator(".tool.success")).to_contain_text("look_up")
    expect(page.locator(".tool", has_text="endless")).to_be_visible()
    page.wait_for_function(
        "async id => (await (await fetch(`v1/runs/?agent_id=${id}`)).json()).length && "
        "(await (await fetch(`v1/runs/${(await (await fetch(`v1/runs/?agent_id=${id}`)).json())[0].id}/why`)).json())"
        ".doing.startsWith('Running endless')",
        arg=agent.id,
    )
    page.get_by_role("button", name="Stop").click()
    stopped = page.locator(".stopped")
    expect(stopped).to_contain_text("Ran to its end: look_up.")
    expect(stopped).to_contain_text("Unknown: endless. It was stopped while it ran, and may have taken effect in part.")


def test_a_call_that_waited_when_it_was_stopped_did_not_run(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
    agent = client.agents.create(name="waiting", include_base_tools=False, tool_ids=[tool.id])
    client.agents.messages.create(agent.id, input="Call send_invoice with customer 'Ada' and amount 3")
    page = open_page(server.url, chat_of(agent.id))
    expect(page.locator(".tool.held")).to_be_visible()
    [run] = client.runs.list(agent_id=agent.id).items
    client.agents.messages.cancel(agent.id, run_ids=[run.id])
    expect(page.locator(".tool.denied")).to_be_visible()  # the console sees it by itself
    outcomes = page.evaluate(
        "async ([agent, run]) => { const { Transcript } = await import('./console/transcript.js');"
        " const t = new Transcript();"
        " t.append(await (await fetch(`v1/agents/${agent}/messages`)).json()); return t.outcomes(run).notRun; }",
        [agent.id, run.id],
    )
    assert outcomes == ["send_invoice"]


def test_a_reload_joins_the_stream_again_without_a_gap(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="reloaded", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    say(page, SILENT)
    expect(page.locator(".message.assistant")).to_be_visible()
    page.reload()
    expect(page.locator(".working")).to_be_visible()
    expect(page.locator(".message.user")).to_have_count(1)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".working")).to_be_hidden()
    stored = [m for m in client.agents.messages.list(agent.id).items if m.message_type == "assistant_message"]
    expect(page.locator(".message.assistant")).to_have_text(str(stored[-1].content))


def test_two_tabs_show_the_same_run(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="shared", include_base_tools=False)
    first = open_page(server.url, chat_of(agent.id))
    say(first, SILENT)
    expect(first.locator(".message.assistant")).to_be_visible()
    second = open_page(server.url, chat_of(agent.id))
    expect(second.locator(".working")).to_be_visible()
    expect(second.locator(".message.assistant")).to_have_text(first.locator(".message.assistant").inner_text())
    second.get_by_role("button", name="Stop").click()
    for page in (first, second):
        expect(page.locator(".working")).to_be_hidden()
        expect(page.locator(".stopped")).to_be_visible()
    assert first.locator(".message.assistant").inner_text() == second.locator(".message.assistant").inner_text()


def test_a_message_that_is_written_during_a_run_is_sent_after_it(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    agent = client.agents.create(name="busy", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    say(page, SILENT)
    expect(page.locator(".message.assistant")).to_be_visible()
    expect(page.locator("#composer-hint")).to_contain_text("waits here, and is sent when the run has ended")
    say(page, "second")
    expect(page.locator(".queued")).to_contain_text("It is sent when this run has ended")
    page.reload()  # what waits outlives a reload
    expect(page.locator(".queued")).to_contain_text("second")
    expect(page.locator(".working")).to_be_visible()
    client.agents.messages.cancel(agent.id)  # by somebody else: the run ends, and nobody held back what waits
    expect(page.locator(".message.assistant").last).to_have_text("You said: second")
    expect(page.locator(".queued")).to_have_count(0)
    kinds = [m.message_type for m in client.agents.messages.list(agent.id).items]
    assert kinds[1:] == ["user_message", "assistant_message", "user_message", "reasoning_message", "assistant_message"]


def test_a_stop_does_not_send_what_waits_until_it_is_asked_to(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    agent = client.agents.create(name="halted", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    say(page, "[[stall]]")
    say(page, "later")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".queued")).to_contain_text("Not sent: the run before it was stopped")
    page.get_by_role("button", name="Send it now").click()
    expect(page.locator(".message.assistant")).to_have_text("You said: later")


def test_conversations_and_forks_are_shown_as_a_tree(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="forked", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    page.get_by_role("button", name="New").click()
    page.wait_for_url("**/chat/conv-*")
    first = page.url.rpartition("/")[2]
    say(page, "in a conversation")
    expect(page.locator(".message.assistant")).to_have_text("You said: in a conversation")
    page.get_by_role("button", name="Fork", exact=True).click()
    page.wait_for_function("before => !location.href.includes(before)", arg=first)
    second = page.url.rpartition("/")[2]
    expect(page.locator(".message.assistant")).to_have_text("You said: in a conversation")
    nested = page.locator(f".tree > li:has(> .leaf a[href$='{first}']) > .tree > li > .leaf a")
    expect(nested).to_have_attribute("href", re.compile(f"{second}$"))
    expect(page.locator(".tree > li > .leaf").first).to_contain_text("Default")


def test_a_conversation_is_shown_in_the_order_in_which_it_was_held(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    agent = client.agents.create(name="ordered", include_base_tools=False)
    conversation = client.conversations.create(agent_id=agent.id)
    for text in ("one", "two"):
        for _ in client.conversations.messages.create(conversation.id, messages=[{"role": "user", "content": text}]):
            pass
    page = open_page(server.url, f"{chat_of(agent.id)}/{conversation.id}")
    rows = page.locator(".item")
    expect(rows).to_have_count(6)
    shown = ["one", "Reasoning", "You said: one", "two", "Reasoning", "You said: two"]
    expect(rows).to_contain_text(shown)


def test_a_fork_from_a_message_leaves_out_what_came_after_it(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    agent = client.agents.create(name="branching", include_base_tools=False)
    for text in ("one", "two"):
        client.agents.messages.create(agent.id, input=f"{text} [[no_reasoning]] [[say:answer {text}]]")
    page = open_page(server.url, chat_of(agent.id))
    first = page.locator(".item:has(.message.assistant)", has_text="answer one")
    first.hover()
    first.get_by_role("button", name="Fork from here").click()
    page.wait_for_url("**/chat/conv-*")
    expect(page.locator(".message.assistant")).to_have_text(["answer one"])


class TestRestartedServer:
    @pytest.fixture
    def own_server(self, tmp_path: Path) -> Generator[ServerProcess]:
        with ServerProcess(tmp_path / "data", HOLDFAST_DEFAULT_MODEL="holdfast/offline") as started:
            yield started

    def test_a_stream_goes_on_when_the_server_was_killed(self, open_page: Open, own_server: ServerProcess) -> None:
        client = own_server.client()
        agent = client.agents.create(name="survivor", include_base_tools=False)
        page = open_page(own_server.url, chat_of(agent.id))
        say(page, SILENT)
        expect(page.locator(".message.assistant")).to_be_visible()
        own_server.kill()
        expect(page.get_by_text("Joining the stream again")).to_be_visible()
        own_server.start()
        expect(page.get_by_text("Working …")).to_be_visible()
        expect(page.locator(".message.assistant")).to_be_visible()
        page.get_by_role("button", name="Stop").click()
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


def test_two_calls_of_one_request_are_decided_one_by_one(open_page: Open, server: ServerProcess, client: Letta) -> None:
    """The server takes all decisions together; approving one call must not approve the other."""
    tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
    agent = client.agents.create(name="pair", include_base_tools=False, tool_ids=[tool.id], parallel_tool_calls=True)
    page = open_page(server.url, chat_of(agent.id))
    calls = [f'[[call:send_invoice {{"customer": "{name}", "amount": 1}}]]' for name in ("Ada", "Bob")]
    say(page, f"{calls[0]} {calls[1]} [[parallel]]")
    ada, bob = (page.locator(".tool", has_text=name) for name in ("Ada", "Bob"))
    ada.get_by_role("button", name="Approve").click()
    expect(ada).to_contain_text(
        "Your decision: approve. It is sent when the other call of this request is decided too."
    )
    assert len(client.runs.list(agent_id=agent.id).items) == 1
    bob.get_by_role("button", name="Deny").click()
    expect(ada).to_contain_text("sent 1 to Ada")
    expect(page.locator(".tool.denied")).to_contain_text("Bob")


def test_a_message_that_is_written_while_a_call_waits_is_sent_after_the_decision(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
    agent = client.agents.create(name="patient", include_base_tools=False, tool_ids=[tool.id])
    page = open_page(server.url, chat_of(agent.id))
    say(page, "Call send_invoice with customer 'Ada' and amount 120")
    expect(page.locator("#composer-hint")).to_contain_text("A call waits for your decision")
    say(page, "and then this")
    expect(page.locator(".queued")).to_contain_text("when the call above is decided")
    page.locator(".tool.held").get_by_role("button", name="Approve").click()
    expect(page.locator(".message.assistant").last).to_have_text("You said: and then this")


def test_a_client_tool_is_answered_in_the_chat(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="metered", include_base_tools=False)
    message = {"role": "user", "content": "Call read_meter with room 'cellar'"}
    client.agents.messages.create(agent.id, messages=[message], client_tools=[CLIENT_TOOL])  # pyright: ignore[reportArgumentType]
    page = open_page(server.url, chat_of(agent.id))
    card = page.locator(".tool.held")
    expect(card).to_contain_text("waits for its client")
    card.get_by_label("Result of the client's tool").fill("42 kWh")
    card.get_by_label("status").select_option(label="success")
    card.get_by_role("button", name="Send result").click()
    expect(page.locator(".message.assistant")).to_contain_text("read_meter returned 42 kWh")


def test_an_image_that_a_tool_returns_is_shown(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="camera", include_base_tools=False)
    message = {"role": "user", "content": "Call read_meter with room 'cellar'"}
    asked = client.agents.messages.create(agent.id, messages=[message], client_tools=[CLIENT_TOOL])  # pyright: ignore[reportArgumentType]
    call = asked.messages[-1].tool_call  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    given = {"type": "tool", "tool_call_id": call.tool_call_id, "status": "success"}  # pyright: ignore[reportUnknownMemberType]
    answer = {"type": "approval", "approvals": [{**given, "tool_return": [{"type": "image", "source": source}]}]}
    client.agents.messages.create(agent.id, messages=[answer])  # pyright: ignore[reportArgumentType]
    page = open_page(server.url, chat_of(agent.id))
    expect(page.locator(".tool img")).to_be_visible()


def test_a_message_from_elsewhere_appears_by_itself(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="shared thread", include_base_tools=False)
    page = open_page(server.url, chat_of(agent.id))
    expect(page.get_by_text("Say something to shared thread")).to_be_visible()
    client.agents.messages.create(agent.id, input="from a program")
    expect(page.locator(".message.assistant")).to_have_text("You said: from a program")
