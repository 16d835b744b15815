"""Commands that ask a running server, against one: what they print, what they change, how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from letta_client import Letta

from holdfast.cli import main
from tests.serving import ServerProcess

INVOICE = '''
def send_invoice(customer: str, amount: int) -> str:
    """Send an invoice.

    Args:
        customer: Who is to pay.
        amount: How much, in euros.
    """
    return f"sent {amount} to {customer}"
'''
ASK = "Call send_invoice with customer 'Ada' and amount 120"

Command = Callable[..., str]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("holdfast"), HOLDFAST_DEFAULT_MODEL="holdfast/offline") as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Letta:
    return server.client()


@pytest.fixture
def command(server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command and gives what it printed."""
    monkeypatch.setenv("HOLDFAST_URL", server.url)

    def run(*given: str, code: int = 0) -> str:
        ended = main(given)
        shown = capsys.readouterr()
        assert ended == code, shown.err
        return shown.out if code == 0 else shown.out + shown.err

    return run


@pytest.fixture
def billing(client: Letta) -> Generator[Any]:
    tool = client.tools.upsert(source_code=INVOICE, default_requires_approval=True)
    agent = client.agents.create(name="billing", include_base_tools=False, tool_ids=[tool.id])
    yield agent
    client.agents.delete(agent.id)


def test_agents_are_listed_shown_by_name_and_deleted(command: Command, client: Letta) -> None:
    agent = client.agents.create(name="scout", include_base_tools=False)
    assert agent.id in command("agents")
    assert [one["name"] for one in json.loads(command("agents", "--json"))] == ["scout"]
    assert json.loads(command("agents", "show", "scout", "--json"))["id"] == agent.id
    assert "holdfast/offline" in command("agents", "show", agent.id)
    assert "Deleted scout" in command("agents", "delete", "scout")
    assert "There are no agents yet" in command("agents")
    assert "There is no agent called 'scout'" in command("agents", "show", "scout", code=2)


def test_two_agents_of_one_name_are_told_apart_by_id(command: Command, client: Letta) -> None:
    made = [client.agents.create(name="twin", include_base_tools=False) for _ in range(2)]
    assert "Several agents are called 'twin'" in command("agents", "show", "twin", code=2)
    for agent in made:
        client.agents.delete(agent.id)


def test_an_option_counts_before_and_after_an_action(command: Command, client: Letta) -> None:
    agent = client.agents.create(name="option", include_base_tools=False)
    before, after = command("agents", "--json", "show", "option"), command("agents", "show", "option", "--json")
    assert json.loads(before)["id"] == json.loads(after)["id"] == agent.id
    client.agents.delete(agent.id)


def test_the_word_list_may_be_said(command: Command, client: Letta, billing: Any) -> None:
    client.agents.messages.create(billing.id, input=ASK)
    for noun in ("agents", "runs", "approvals", "tools"):
        listed = command(noun, "--json")
        assert len(json.loads(listed)) >= 1
        assert command(noun, "list", "--json") == listed
    assert len(json.loads(command("agents", "list", "--limit", "1", "--json"))) == 1
    [run] = json.loads(command("runs", "list", "--agent", billing.name, "--json"))
    assert run["agent_id"] == billing.id


def test_a_call_is_approved(command: Command, client: Letta, billing: Any) -> None:
    client.agents.messages.create(billing.id, input=ASK)
    [run] = client.runs.list(agent_id=billing.id).items
    assert '"customer":"Ada"' in command("approvals")
    assert "Approved." in command("approvals", "approve", run.id)
    assert "Nothing waits" in command("approvals")
    assert "sent 120 to Ada" in str(client.agents.messages.list(billing.id).items[-1].content)  # pyright: ignore


def test_a_call_is_denied_by_its_own_id_with_a_reason(command: Command, client: Letta, billing: Any) -> None:
    client.agents.messages.create(billing.id, input=ASK)
    [waiting] = json.loads(command("approvals", "--json"))
    call = waiting["tool_calls"][0]["tool_call_id"]
    assert "Denied." in command("approvals", "deny", call, "--reason", "too much")
    assert "too much" in str(client.agents.messages.list(billing.id).items)
    assert "Nothing waits for a decision under run-none" in command("approvals", "approve", "run-none", code=2)


def test_runs_are_listed_shown_followed_and_explained(command: Command, client: Letta) -> None:
    agent = client.agents.create(name="runner", include_base_tools=False)
    list(client.agents.messages.create(agent.id, input="Hello", streaming=True, stream_tokens=True, background=True))
    [run] = json.loads(command("runs", "--agent", "runner", "--json"))
    assert run["id"] in command("runs", "--status", "completed")
    assert "end_turn" in command("runs", "show", run["id"])
    assert command("runs", "why", run["id"]) == command("why", run["id"])
    watched = command("runs", "watch", run["id"])
    assert "You" in watched
    assert "end_turn" in watched
    client.agents.delete(agent.id)


def test_a_run_is_cancelled(command: Command, client: Letta, billing: Any) -> None:
    client.agents.messages.create(billing.id, input=ASK)
    [run] = client.runs.list(agent_id=billing.id).items
    assert "cancelled" in command("runs", "cancel", run.id)
    assert client.runs.retrieve(run.id).status == "cancelled"


def test_tools_are_listed_and_shown(command: Command, billing: Any) -> None:
    assert "send_invoice" in command("tools")
    assert "custom" in command("tools", "show", "send_invoice")
    assert "There is no tool called 'none'" in command("tools", "show", "none", code=2)


def test_chat_with_one_message_prints_the_answer_without_colour(server: ServerProcess, client: Letta) -> None:
    agent = client.agents.create(name="talker", include_base_tools=False)
    given = [sys.executable, "-m", "holdfast", "chat", "talker", "--url", server.url, "-m", "Hello [[no_reasoning]]"]
    ended = subprocess.run(given, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "You said: Hello\n"
    assert "\x1b" not in ended.stdout + ended.stderr
    client.agents.delete(agent.id)


def test_chat_in_a_pipe_says_how_to_approve(server: ServerProcess, billing: Any) -> None:
    given = [sys.executable, "-m", "holdfast", "chat", billing.id, "--url", server.url]
    ended = subprocess.run(given, input=ASK, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "holdfast approvals approve run-" in ended.stderr


class TestApply:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        (tmp_path / "letter.py").write_text(INVOICE.replace("send_invoice", "post_letter"))
        path = tmp_path / "team.toml"
        path.write_text("""
name = "team"
tools = [{source = "letter.py", requires_approval = true}]
blocks = [{label = "handbook", value = "Be kind."}]
archives = [{name = "library"}]
[[agents]]
name = "clerk"
model = "holdfast/offline"
description = "Writes invoices."
tools = ["post_letter"]
blocks = ["handbook"]
archives = ["library"]
memory = {human = "Ada"}
""")
        return path

    def test_shows_the_difference_applies_it_and_finds_nothing_the_second_time(
        self, command: Command, client: Letta, file: Path
    ) -> None:
        shown = command("apply", str(file), "--dry-run")
        assert shown.splitlines() == ["+ tool post_letter", "+ block handbook", "+ archive library", "+ agent clerk"]
        assert "Applied" in command("apply", str(file), "--yes")
        [agent] = client.agents.list(name="clerk", include=["agent.tools", "agent.blocks"]).items
        assert [tool.name for tool in agent.tools or [] if tool.name == "post_letter"] == ["post_letter"]
        assert {block.label for block in agent.blocks or []} == {"human", "handbook"}
        assert command("apply", str(file), "--yes") == "Everything is as described.\n"

        client.agents.blocks.update("human", agent_id=agent.id, value="Ada likes tea.")
        file.write_text(
            file.read_text().replace("Be kind.", "Be brief.").replace("Writes invoices.", "Writes letters.")
        )
        shown = command("apply", str(file), "--yes")
        assert 'value: "Be kind." → "Be brief."' in shown
        assert 'description: "Writes invoices." → "Writes letters."' in shown
        assert client.agents.blocks.retrieve("human", agent_id=agent.id).value == "Ada likes tea."

        file.write_text('name = "team"\n')
        assert command("apply", str(file), "--yes") == "Everything is as described.\n"
        pruned = command("apply", str(file), "--yes", "--prune")
        assert "- agent clerk" in pruned
        assert "- block handbook" in pruned
        assert "- tool post_letter" in pruned
        assert client.agents.list(name="clerk").items == []

    def test_does_nothing_unasked(self, command: Command, file: Path) -> None:
        assert "add --yes" in command("apply", str(file), code=2)

    @pytest.mark.parametrize(
        ("name", "text", "sentence"),
        [
            ("a.json", '{"name": "x", "agentz": []}', "agentz"),
            ("a.toml", "name = ", "a.toml"),
            ("a.txt", "", "YAML, TOML or JSON"),
            ("a.yaml", "name: [", "a.yaml"),
            ("a.yaml", "name: x\ntools: [{source: none.py}]", "none.py cannot be read"),
        ],
    )
    def test_a_file_that_cannot_be_read_is_a_sentence(
        self, command: Command, tmp_path: Path, name: str, text: str, sentence: str
    ) -> None:
        (tmp_path / name).write_text(text)
        assert sentence in command("apply", str(tmp_path / name), code=2)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_name_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    shown = capsys.readouterr().out
    for word in ("serve", "approvals", "approve", "watch"):
        assert word in shown


def test_bash_completes_commands_actions_and_options() -> None:
    script = subprocess.run(
        [sys.executable, "-m", "holdfast", "completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    asked = 'COMP_WORDS=(holdfast approvals ap); COMP_CWORD=2; _holdfast; echo "${COMPREPLY[@]}"'
    told = subprocess.run(["bash", "-c", script + asked], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["approve"]
