"""One agent in the console: context window, memory, tools, rules, model, archival memory, files, groups, secrets."""

from __future__ import annotations

import re
from pathlib import Path

from letta_client import Letta
from playwright.sync_api import Page, expect

from tests.serving import ServerProcess

from .conftest import INVOICE, Open, Shot


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
    with page.expect_response("**/core-memory/blocks/human"):
        page.get_by_role("button", name="Save").first.click()
    with page.expect_response("**/tools/approval/memory_insert"):
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


def page_of(open_page: Open, server: ServerProcess, agent_id: str) -> Page:
    page = open_page(server.url, f"#/agents/{agent_id}")
    expect(page.locator("h1")).to_be_visible()
    return page


def test_a_section_of_the_context_window_shows_what_fills_it(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    agent = client.agents.create(name="filled", memory_blocks=[{"label": "human", "value": "Ada likes tea."}])
    client.agents.messages.create(agent.id, input="Hello")
    page = page_of(open_page, server, agent.id)
    for section, content in (("Memory blocks", "Ada likes tea."), ("Tools", "memory_insert"), ("Messages", "Hello")):
        page.locator(".legend").get_by_role("button", name=re.compile(f"^{section}")).click()
        expect(page.locator(".filled")).to_contain_text(content)


def test_a_block_is_added_and_detached(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="blocks", include_base_tools=False)
    page = page_of(open_page, server, agent.id)
    page.get_by_text("Add a block").click()
    page.get_by_label("Label").fill("project")
    page.locator("#memory").get_by_label("Text").fill("Tea")
    page.get_by_role("button", name="Add block").click()
    expect(page.get_by_role("textbox", name="project")).to_have_value("Tea")
    assert [block.label for block in client.agents.blocks.list(agent.id)] == ["project"]
    page.get_by_role("button", name="Detach project").click()
    expect(page.get_by_text("No memory blocks")).to_be_visible()
    assert [block.label for block in client.agents.blocks.list(agent.id)] == []


def test_a_form_made_from_a_schema_checks_what_is_written(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    tool = client.tools.upsert(source_code=INVOICE)
    agent = client.agents.create(name="formal", include_base_tools=False, tool_ids=[tool.id])
    page = page_of(open_page, server, agent.id)
    page.get_by_text("Try it").click()
    amount = page.get_by_label(re.compile("amount"))
    expect(page.locator(".try .schema-form")).to_contain_text("How much, in euros.")
    amount.fill("a lot")
    expect(page.locator(".try .schema-form")).to_contain_text("This is not a number.")
    page.get_by_role("button", name="Run outside any conversation").click()
    expect(amount).to_have_attribute("aria-invalid", "true")
    assert page.locator(".try .status").count() == 0


def test_rules_are_sentences_and_can_be_added_and_removed(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
    agent = client.agents.create(name="ruled", include_base_tools=False, tool_ids=[tool.id])
    page = page_of(open_page, server, agent.id)
    page.get_by_label("Tool of the rule").select_option("send_invoice")
    page.get_by_label("What the rule says").select_option(label="is called at most so many times")
    page.get_by_label("How many times").fill("2")
    page.get_by_role("button", name="Add rule").click()
    expect(page.locator(".rules")).to_contain_text("send_invoice is called at most 2 times in a turn.")
    kinds = {rule.type for rule in client.agents.retrieve(agent.id).tool_rules or []}
    assert kinds == {"max_count_per_step", "requires_approval"}
    page.locator(".rules").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No rules")).to_be_visible()
    assert [rule.type for rule in client.agents.retrieve(agent.id).tool_rules or []] == ["requires_approval"]


def test_archival_memory_is_written_searched_and_deleted(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="archive", include_base_tools=False)
    page = page_of(open_page, server, agent.id)
    for text in ("Ada likes tea.", "Bob likes coffee."):
        page.get_by_label("New passage").fill(text)
        page.get_by_role("button", name="Insert").click()
        expect(page.locator(".passages")).to_contain_text(text)
    page.get_by_label("Search archival memory").fill("coffee")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".passages li")).to_have_count(1)
    expect(page.locator(".passages")).to_contain_text("Bob")
    page.get_by_role("button", name="Delete this passage").click()
    expect(page.get_by_text("Nothing was found")).to_be_visible()
    assert [one.text for one in client.agents.passages.list(agent.id)] == ["Ada likes tea."]


def test_settings_of_the_model_are_written(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="tuned", include_base_tools=False)
    page = page_of(open_page, server, agent.id)
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label(re.compile("^temperature")).fill("0.3")
    page.get_by_label(re.compile("^max_output_tokens")).fill("500")
    page.get_by_label(re.compile("reasoning_effort")).select_option(label="low")
    page.get_by_role("button", name="Save settings").click()
    expect(page.get_by_text("They hold from the next run on")).to_be_visible()
    expect(page.get_by_text("This model does not take: reasoning.reasoning_effort.")).to_be_visible()
    said = page.request.get(f"{server.url}/v1/agents/{agent.id}").json()["model_settings"]
    assert (said["temperature"], said["max_output_tokens"]) == (0.3, 500)


def test_secrets_are_written_and_never_shown(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="sealed", include_base_tools=False, secrets={"FIRST": "hush one"})
    page = page_of(open_page, server, agent.id)
    page.get_by_label("Name of a secret").fill("SECOND")
    page.get_by_label("Its value").fill("hush two")
    page.get_by_role("button", name="Save secret").click()
    expect(page.locator(".secrets li")).to_have_count(2)
    assert "hush" not in page.content()
    page.get_by_role("button", name="Remove FIRST").click()
    expect(page.locator(".secrets li")).to_have_count(1)
    kept = client.agents.retrieve(agent.id, include=["agent.secrets"]).secrets or []
    assert [secret.key for secret in kept] == ["SECOND"]


def test_its_conversations_and_its_sleeptime_agent_are_shown(
    open_page: Open, server: ServerProcess, client: Letta
) -> None:
    agent = client.agents.create(name="grouped", include_base_tools=False, enable_sleeptime=True)
    client.conversations.create(agent_id=agent.id, summary="Plans")
    page = page_of(open_page, server, agent.id)
    expect(page.locator("#conversations")).to_contain_text("Plans")
    expect(page.locator("#groups")).to_contain_text("grouped-sleeptime")
    expect(page.locator("#groups")).to_contain_text("led by this agent")


def test_an_agent_file_is_imported_by_dropping_it(open_page: Open, server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="dropped", include_base_tools=False)
    content = client.agents.export_file(agent.id)
    page = open_page(server.url)
    expect(page.locator("h1")).to_have_text("Agents")
    page.evaluate(
        """content => { const carried = new DataTransfer();
          carried.items.add(new File([content], "dropped.af", { type: "application/json" }));
          const drop = { dataTransfer: carried, bubbles: true, cancelable: true };
          document.querySelector("main").dispatchEvent(new DragEvent("drop", drop)); }""",
        content,
    )
    expect(page.get_by_text("dropped.af: 1 imported")).to_be_visible()
    assert len(client.agents.list(name="dropped_copy").items) == 1
