"""The tool `run_code`: programs that a model writes, in the server's own sandbox."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ..served import ServedClient, served

pytestmark = pytest.mark.slow

SIGNS = (("add", "+"), ("multiply", "*"))


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path) as client:
        yield client


async def run(client: ServedClient, code: str, language: str = "python") -> Any:
    agent = await client.agent(tools=["run_code"])
    body = {"args": {"code": code, "language": language}}
    ran = await client.ask("POST", f"/v1/agents/{agent.id}/tools/run_code/run", body)
    return json.loads(ran["func_return"]) if ran["status"] == "success" else "".join(ran["stderr"])


async def test_an_agent_runs_a_program_and_reads_what_came_of_it(client: ServedClient) -> None:
    agent = await client.agent(tools=["run_code"])
    code = "import sys\nprint('one')\nprint('two', file=sys.stderr)\nsum(range(10))"
    answer = await client.say(agent.id, "Call run_code with " + json.dumps({"code": code, "language": "python"}))
    returned = next(each for each in answer.messages if each.message_type == "tool_return_message")
    assert (returned.status, json.loads(returned.tool_return)) == (
        "success",
        {"results": ["45"], "logs": {"stdout": ["one\n"], "stderr": ["two\n"]}},
    )


async def test_a_program_that_fails_says_where_and_what_it_had_printed(client: ServedClient) -> None:
    told = await run(client, "print('begun')\ndef f():\n    return 1 / 0\nf()")
    assert told["logs"]["stdout"] == ["begun\n"]
    assert (told["error"]["name"], told["error"]["value"]) == ("ZeroDivisionError", "division by zero")
    assert "line 3" in told["error"]["traceback"]
    assert "run_code.py" not in told["error"]["traceback"]
    assert (await run(client, "def"))["error"]["name"] == "SyntaxError"
    assert (await run(client, "raise SystemExit(3)"))["error"]["name"] == "SystemExit"
    assert await run(client, "x = 1") == {"results": [], "logs": {"stdout": [], "stderr": []}}


async def test_javascript_runs_where_node_is(client: ServedClient) -> None:
    if shutil.which("node") is None:
        assert "Node is not installed" in await run(client, "1", "js")
        return
    told = await run(client, "console.log('é'); console.error('e'); const path = require('path'); 1 + 2", "js")
    assert told == {"results": ["3"], "logs": {"stdout": ["é\n"], "stderr": ["e\n"]}}
    failed = await run(client, "console.log('begun');\nthrow new TypeError('no')", "js")
    assert failed["logs"]["stdout"] == ["begun\n"]
    assert (failed["error"]["name"], failed["error"]["value"]) == ("TypeError", "no")


async def test_a_program_sees_no_secret_of_the_agent(client: ServedClient) -> None:
    agent = await client.agent(tools=["run_code"], secrets={"CODE_WORD": "sesame"})
    code = "import os\n[os.environ.get('CODE_WORD'), 'HOLDFAST_CALL_ID' in os.environ]"
    body = {"args": {"code": code, "language": "python"}}
    ran = await client.ask("POST", f"/v1/agents/{agent.id}/tools/run_code/run", body)
    assert json.loads(ran["func_return"])["results"] == ["[None, True]"]
    answer = await client.say(agent.id, "Call run_code with " + json.dumps(body["args"]))
    returned = next(each for each in answer.messages if each.message_type == "tool_return_message")
    assert json.loads(returned.tool_return)["results"] == ["[None, True]"]


async def test_a_python_program_calls_the_agents_own_tools_but_none_that_needs_approval(client: ServedClient) -> None:
    sources = [f'def {name}(a: int, b: int) -> int:\n    """Count."""\n    return a {sign} b\n' for name, sign in SIGNS]
    tools = [await client.tools.upsert(source_code=source) for source in sources]
    await client.tools.update(tools[1].id, default_requires_approval=True)
    agent = await client.agent(tools=["run_code"], tool_ids=[tool.id for tool in tools])

    async def say(code: str, language: str = "python") -> Any:
        asked = "Call run_code with " + json.dumps({"code": code, "language": language})
        answer = await client.say(agent.id, asked)
        return json.loads(
            next(each.tool_return for each in answer.messages if each.message_type == "tool_return_message")
        )

    assert (await say("add(add(4, 5), 6)"))["results"] == ["15"]
    assert (await say("multiply(4, 5)"))["error"]["name"] == "PermissionError"
    assert (await say("def add(a, b):\n    return 'mine'\nadd(4, 5)"))["results"] == ["'mine'"]
    if shutil.which("node") is not None:
        assert (await say("const add = (a, b) => a; add(4, 5)", "js"))["results"] == ["4"]


async def test_other_languages_are_refused_in_words(client: ServedClient) -> None:
    assert "Python and JavaScript" in await run(client, "1", "java")


async def test_what_other_programs_print_is_in_the_logs_in_its_order(client: ServedClient) -> None:
    code = (
        "import os, subprocess, sys\nprint('one')\nsubprocess.run(['echo', 'two'])\nos.system('echo three >&2')\n"
        "sys.__stdout__.write('four')\nsys.__stdout__.flush()\nsys.stdout.close()"
    )
    assert await run(client, code) == {"results": [], "logs": {"stdout": ["one\ntwo\nfour"], "stderr": ["three\n"]}}


async def test_half_a_character_is_no_reason_to_die(client: ServedClient) -> None:
    assert (await run(client, "'\\ud800'"))["results"] == ["'\\ud800'"]
    assert (await run(client, "print('a\\ud800')"))["logs"]["stdout"] == ["a\\ud800\n"]
    assert (await run(client, "raise ValueError('a\\ud800')"))["error"]["value"] == "a\ufffd"
