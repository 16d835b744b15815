"""Programs that call tools, with every layer of isolation, and without those that some machines lack."""

from __future__ import annotations

import json
import shutil
from typing import Any

import msgspec
import pytest

from holdfast.core.records import Tool
from holdfast.tools import builtin
from holdfast.tools.base import Job
from holdfast.tools.code_with_tools import with_tools
from holdfast.tools.sandbox import tool_host

from .modes import MODES, opened, text_of

TELL = 'import os\ndef tell():\n    """Tell."""\n    return os.environ["CODE_WORD"]\n'
PATH = {"parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}
LOOK = """
import os
word, found = tell(), []
for pid in range(max(1, os.getppid() - 50), os.getppid() + 3):
    for name in ('environ', 'mem'):
        try:
            with open(f'/proc/{pid}/{name}', 'rb'):
                found += [pid] if int(pid) != os.getpid() else []
        except OSError:
            pass
[word, found, os.environ.get('CODE_WORD')]
"""


HOME = 'import os\ndef home():\n    """Home."""\n    return os.environ["HOME"]\n'
READ = 'def read(path: str):\n    """Read."""\n    return open(path).read()\n'
WRITE = """
import os, tempfile
with open('mine.txt', 'w') as file:
    file.write('mine')
with tempfile.NamedTemporaryFile('w') as file:
    found = [read(os.path.abspath('mine.txt')), os.path.expanduser('~') == os.getcwd()]
for path in (os.path.join(home(), '.netrc'), '/tmp/planted', '../planted'):
    try:
        open(path, 'w')
        found.append(path)
    except OSError:
        pass
found
"""
NAME = "run_code_with_tools"
LEAVE = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n'left'"


def tool(source: str, **fields: Any) -> Tool:
    name = source.rpartition("def ")[2].partition("(")[0]
    known: dict[str, Any] = {"tool_type": "custom", "description": "", "json_schema": {}, "source_code": source}
    return Tool(id=f"tool-{name}", name=name, **known | fields)


def program(code: str, *tools: Tool) -> Job:
    source = builtin.TOOLS[NAME].source or ""
    job = Job(call_id="call-1", tool_name=NAME, source_code=source, arguments={"code": code}, timeout_s=40)
    return with_tools(job, tools, (), {"CODE_WORD": "sesame"})


@pytest.mark.parametrize("mode", MODES)
async def test_a_program_cannot_look_into_the_process_of_the_tools(mode: str) -> None:
    if mode.startswith("bubblewrap") and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    async with opened(mode) as sandbox:
        outcome = await sandbox.run(program(LOOK, tool(TELL)))
    assert outcome.status == "success", outcome
    assert json.loads(text_of(outcome))["results"] == ["['sesame', [], None]"], outcome


@pytest.mark.parametrize("mode", MODES)
async def test_a_program_writes_only_to_its_own_directory_which_tools_can_read(mode: str) -> None:
    if mode.startswith("bubblewrap") and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    async with opened(mode) as sandbox:
        outcome = await sandbox.run(program(WRITE, tool(HOME), tool(READ, json_schema=PATH)))
        assert json.loads(text_of(outcome))["results"] == ["['mine', True]"], outcome
        left = await sandbox.run(program(LEAVE))
        assert json.loads(text_of(left))["results"] == ["'left'"], "a thread that goes on does not hold up the call"


def test_only_tools_that_a_program_names_are_loaded() -> None:
    job = program("tell()", tool(TELL), tool("def other(): pass"))
    assert [each.tool_name for each in job.arguments["tools"]] == ["tell"]
    assert program("untellable", tool(TELL)).arguments["tools"] == []
    assert program("tell", tool(TELL, source_type="typescript")).arguments["refused"].keys() == {"tell"}


def test_secrets_are_not_at_risk_where_nothing_guards_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_host.landlock, "version", lambda: 0)
    job = program("tell()", tool(TELL))
    with pytest.raises(OSError, match="no landlock"):
        tool_host.run_code_with_tools(**job.arguments)
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job).arguments["tools"]
