"""The tool `run_code_with_tools`: programs that call the agent's other tools, and those that they must not call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ..served import ServedClient, served

pytestmark = pytest.mark.slow

NAME = "run_code_with_tools"
ADD = 'def add(a: int, b: int = 1) -> int:\n    """Add."""\n    print("adding")\n    return a + b\n'
TELL = '''
import os
WORD = os.environ.get("CODE_WORD")
async def tell() -> dict:
    """Tell."""
    return {"word": WORD, "call": os.environ["HOLDFAST_CALL_ID"], "tool": os.environ["LETTA_TOOL_ID"]}
'''
PAY = 'def pay(amount: int) -> str:\n    """Pay."""\n    return f"paid {amount}"\n'


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path) as client:
        yield client


async def make(client: ServedClient, *sources: str, names: tuple[str, ...] = (), **fields: Any) -> str:
    made = [await client.tools.upsert(source_code=source) for source in sources]
    return (await client.agent(tool_ids=[tool.id for tool in made], tools=[NAME, *names], **fields)).id


async def run(client: ServedClient, agent_id: str, code: str) -> Any:
    """The same by hand and in a run of the agent."""
    ran = await client.ask("POST", f"/v1/agents/{agent_id}/tools/{NAME}/run", {"args": {"code": code}})
    assert ran["status"] == "success", ran
    answer = await client.say(agent_id, f"Call {NAME} with " + json.dumps({"code": code}))
    returned = next(each for each in answer.messages if each.message_type == "tool_return_message")
    assert returned.status == "success", returned
    by_hand, in_run = json.loads(ran["func_return"]), json.loads(returned.tool_return)
    assert by_hand.keys() == in_run.keys()
    return in_run


async def error(client: ServedClient, agent_id: str, code: str) -> tuple[str, str]:
    told = (await run(client, agent_id, code))["error"]
    return told["name"], told["value"]


async def test_a_program_calls_the_tools_of_its_agent(client: ServedClient) -> None:
    agent_id = await make(client, ADD)
    code = "import sys\nprint('one')\ntotal = sum(add(n, b=10) for n in range(2))\nprint('e', file=sys.stderr)\n"
    code += "[total, add(4)]"
    assert await run(client, agent_id, code) == {
        "results": ["[21, 5]"],
        "logs": {"stdout": ["one\nadding\nadding\nadding\n"], "stderr": ["e\n"]},
    }


async def test_a_program_that_calls_no_tool_is_just_a_program(client: ServedClient) -> None:
    agent_id = await make(client)
    assert (await run(client, agent_id, "1 + 1"))["results"] == ["2"]
    name, value = await error(client, agent_id, "add(1)")
    assert (name, value) == ("NameError", "name 'add' is not defined")
    failed = await client.ask("POST", f"/v1/agents/{agent_id}/tools/{NAME}/run", {"args": {}})
    assert "missing arguments: code" in str(failed["stderr"])


async def test_what_a_tool_raises_is_raised_in_the_program(client: ServedClient) -> None:
    body = '    """Fail."""\n    raise {"k": KeyError, "o": Odd}[how](how)\n'
    source = f"class Odd(Exception): pass\ndef fail(how: str):\n{body}"
    agent_id = await make(client, source, ADD)
    code = "try:\n    fail('k')\nexcept KeyError as e:\n    print('caught')\nfail('o')"
    told = await run(client, agent_id, code)
    assert told["logs"]["stdout"] == ["caught\n"]
    assert (told["error"]["name"], told["error"]["value"]) == ("RuntimeError", "Odd: o")
    assert "line 5" in told["error"]["traceback"]
    for code, why in {
        "add()": "missing arguments: a",
        "add(1, c=2)": "unknown arguments: c",
        "add(1, 2, 3)": "takes 2 arguments, not 3",
        "add(1, a=1)": "given a twice",
        "add(object())": "takes plain data",
    }.items():
        name, value = await error(client, agent_id, code)
        assert (name, why in value) == ("TypeError", True), value


async def test_tools_see_the_secrets_of_the_agent_and_the_program_does_not(client: ServedClient) -> None:
    agent_id = await make(client, TELL, secrets={"CODE_WORD": "sesame"})
    told = await run(client, agent_id, "import json, os\njson.dumps([tell(), tell(), os.environ.get('CODE_WORD')])")
    first, second, own = json.loads(told["results"][0][1:-1])
    assert (first["word"], second["word"], own) == ("sesame", "sesame", None)
    assert first["tool"].startswith("tool-")
    assert first["call"] != second["call"], "an id for each call"


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"default_requires_approval": True}, None),
        ({}, {"type": "requires_approval", "tool_name": "pay"}),
        ({}, {"type": "max_count_per_step", "tool_name": "pay", "max_count_limit": 1}),
        ({}, {"type": "parent_last_tool", "tool_name": "add", "children": ["pay"]}),
    ],
    ids=["by the tool", "by a rule of the agent", "counted", "ordered"],
)
async def test_a_tool_that_asks_or_is_bound_by_rules_cannot_be_called(
    client: ServedClient, fields: dict[str, Any], rule: dict[str, Any] | None
) -> None:
    tool = await client.tools.upsert(source_code=PAY, **fields)
    rules: Any = [rule] if rule else []
    agent = await client.agent(tool_ids=[tool.id], tools=[NAME], tool_rules=rules)
    for code in ("pay(1)", "globals()['pay'](1)"):
        name, value = await error(client, agent.id, code)
        assert (name, "cannot be called from code" in value) == ("PermissionError", True), value
    if fields:  # the tool says so itself, whatever becomes of the agent's rule
        await client.ask("PATCH", f"/v1/agents/{agent.id}/tools/approval/pay", {"requires_approval": False})
        assert (await error(client, agent.id, "pay(1)"))[0] == "PermissionError"


async def test_tools_that_run_in_the_server_or_at_the_client_cannot_be_called(client: ServedClient) -> None:
    agent_id = await make(client, names=("memory_insert", "send_message_to_agent_async", "run_code"))
    for code in ("memory_insert(label='a', new_string='b')", "send_message_to_agent_async('m', 'a')"):
        assert "runs in the server" in (await error(client, agent_id, code))[1]
    shadow: Any = {"name": "run_code", "description": "mine", "parameters": {"type": "object", "properties": {}}}
    call = f"Call {NAME} with " + json.dumps({"code": "run_code('1', 'python')"})
    answer = await client.say(agent_id, call, client_tools=[shadow])
    returned = next(each for each in answer.messages if each.message_type == "tool_return_message")
    assert "runs at the client" in returned.tool_return


async def test_a_program_cannot_have_a_program_run_where_the_tools_and_the_secrets_are(client: ServedClient) -> None:
    agent_id = await make(client, TELL, names=("run_code",), secrets={"CODE_WORD": "sesame"})
    spy = "import gc\\n[each.environment for each in gc.get_objects() if type(each).__name__ == 'Job']"
    for code in (f'tell\nrun_code("{spy}", "python")', f"{NAME}('1')"):
        name, value = await error(client, agent_id, code)
        assert (name, "runs programs" in value) == ("PermissionError", True), value


async def test_the_strictest_egress_policy_of_the_tools_that_it_names_counts(tmp_path: Path) -> None:
    look = "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('127.0.0.1', 9))\n1"
    async with served(tmp_path, tool_egress="all") as client:
        await client.tools.upsert(source_code=ADD, tags=["egress:none"])
        agent_id = await make(client, PAY, names=("add",))
        assert (await run(client, agent_id, f"pay(1)\n{look}"))["results"] == ["1"]
        assert (await error(client, agent_id, f"add(1)\n{look}"))[0] in ("PermissionError", "OSError")


async def test_a_program_whose_process_dies_is_an_error_that_says_so(client: ServedClient) -> None:
    agent_id = await make(client, ADD)
    body = {"args": {"code": "import os\nadd(1)\nos._exit(3)"}}
    ran = await client.ask("POST", f"/v1/agents/{agent_id}/tools/{NAME}/run", body)
    assert (ran["status"], "exit code 3" in str(ran["stderr"])) == ("error", True)


async def test_an_approval_of_a_program_does_not_hold_for_a_tool_that_is_changed(client: ServedClient) -> None:
    rules: Any = [{"type": "requires_approval", "tool_name": NAME}]
    agent_id = await make(client, PAY, tool_rules=rules)
    code = json.dumps({"code": "pay(5)"})

    async def ask() -> dict[str, Any]:
        asked = await client.say(agent_id, f"Call {NAME} with {code}")
        (call,) = [each.tool_call for each in asked.messages if each.message_type == "approval_request_message"]
        approval = {"type": "approval", "tool_call_id": call.tool_call_id, "approve": True}
        return {"messages": [{"type": "approval", "approvals": [approval]}]}

    approved = await client.ask("POST", f"/v1/agents/{agent_id}/messages", await ask())
    returned = next(each for each in approved["messages"] if each["message_type"] == "tool_return_message")
    assert json.loads(returned["tool_return"])["results"] == ["'paid 5'"]

    answer = await ask()
    await client.tools.upsert(source_code=PAY.replace("paid", "burnt"))
    await client.refusal(409, "POST", f"/v1/agents/{agent_id}/messages", answer)
