"""letta-code from npm: its default agent, its tools, which run beside the program, and kill -9 on either side."""

from __future__ import annotations

from pathlib import Path

import pytest
from letta_client.types import ToolReturnMessage
from letta_client.types.agents import ApprovalRequestMessage

from tests.programs.letta_code import Answer, Gate, LettaCode, call
from tests.serving import ServerProcess


def stored(server: ServerProcess, answer: Answer) -> list[object]:
    with server.client() as client:
        return list(client.conversations.messages.list(answer.conversation_id, order="asc", limit=100))


def types(messages: list[object]) -> list[str]:
    return [str(getattr(message, "message_type", "")) for message in messages]


def returns(messages: list[object]) -> list[tuple[str, str]]:
    return [(each.status, str(each.tool_return)) for each in messages if isinstance(each, ToolReturnMessage)]


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def test_the_default_agent_is_made_answers_and_is_found_again(letta_code: LettaCode, server: ServerProcess) -> None:
    first = letta_code.run("Hello there [[no_reasoning]]")
    assert first.result == "You said: Hello there"
    assert types(stored(server, first)) == ["system_message", "user_message", "assistant_message"]
    again = letta_code.run("Are you there? [[no_reasoning]]", "--conversation", first.conversation_id)
    assert (again.result, again.agent_id) == ("You said: Are you there?", first.agent_id)
    assert types(stored(server, first))[3:] == ["user_message", "assistant_message"]
    with server.client() as client:
        (agent,) = client.agents.list(include=["agent.blocks"])
    assert (agent.id, agent.name) == (first.agent_id, "Letta Code")
    assert {"persona", "human"} <= {str(block.label) for block in agent.blocks}


def test_a_task_is_done_with_the_tools_of_the_program(letta_code: LettaCode, server: ServerProcess) -> None:
    note = letta_code.project / "note.txt"
    answer = letta_code.run(
        "Work [[no_reasoning]] "
        + call("Write", 1, file_path=str(note), content="tea at four")
        + call("Bash", 2, command="tr a-z A-Z < note.txt", description="shout")
    )
    assert note.read_text() == "tea at four"
    assert "TEA AT FOUR" in answer.result
    messages = stored(server, answer)
    asked = [each.tool_call.name for each in messages if isinstance(each, ApprovalRequestMessage)]
    assert asked == ["Write", "Bash"]
    assert [status for status, _ in returns(messages)] == ["success", "success"]
    assert returns(messages)[1][1].strip() == "TEA AT FOUR"
    assert types(messages)[-1] == "assistant_message"


def test_several_tools_of_one_reply_all_return(letta_code: LettaCode, server: ServerProcess) -> None:
    answer = letta_code.run(
        "Work [[no_reasoning]] [[parallel]] "
        + "".join(call("Bash", 1, command=f"echo {word}", description=word) for word in ("one", "two", "three"))
    )
    assert [word in answer.result for word in ("one", "two", "three")] == [True] * 3
    requests = [each for each in stored(server, answer) if isinstance(each, ApprovalRequestMessage)]
    assert len(requests) == 1


def test_a_server_killed_while_a_tool_runs_takes_its_result_after_the_restart(
    letta_code: LettaCode, server: ServerProcess, gate: Gate
) -> None:
    program = letta_code.start(gate.prompt)
    gate.wait_until_begun()
    server.kill()
    server.start()
    gate.let_through("all is well")
    check_resumed(letta_code, server, letta_code.finish(program))


def test_a_result_that_finds_no_server_is_sent_again_after_the_restart(
    letta_code: LettaCode, server: ServerProcess, gate: Gate
) -> None:
    program = letta_code.start(gate.prompt)
    gate.wait_until_begun()
    server.kill()
    gate.let_through("all is well")
    assert program.stderr is not None
    assert any("retrying" in line for line in program.stderr)  # three times, within seven seconds
    server.start()
    check_resumed(letta_code, server, letta_code.finish(program))


def check_resumed(letta_code: LettaCode, server: ServerProcess, answer: Answer) -> None:
    assert answer.result == "Bash returned all is well."
    assert (letta_code.project / "runs.txt").read_text() == "ran\n"
    messages = stored(server, answer)
    assert types(messages).count("approval_request_message") == 1
    assert returns(messages) == [("success", "all is well")]
    assert types(messages)[-1] == "assistant_message"


def test_a_program_killed_in_a_tool_goes_on_in_the_same_conversation(
    letta_code: LettaCode, server: ServerProcess, gate: Gate
) -> None:
    program = letta_code.start(gate.prompt)
    gate.wait_until_begun()
    letta_code.kill(program)
    with server.client() as client:
        (agent,) = client.agents.list()
        (conversation,) = client.conversations.list(agent_id=agent.id)
    answer = letta_code.run("Go on [[no_reasoning]]", "--conversation", conversation.id)
    assert (answer.result, answer.conversation_id) == ("You said: Go on", conversation.id)
    ((status, text),) = returns(stored(server, answer))  # the program itself refuses the call that it has left
    assert status == "error"
    assert "interrupted" in text
    assert (letta_code.project / "runs.txt").read_text() == "ran\n"
