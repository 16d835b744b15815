"""What somebody does first: the commands of the README, and the sentences that come to mind."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from letta_client import AsyncLetta

from tests.conformance.conftest import MakeAgent, create_agent
from tests.conformance.modes import send
from tests.serving import ServerProcess

README = Path(__file__).parents[2] / "README.md"
TYPES = ("letta_v1_agent", "memgpt_agent", "memgpt_v2_agent")
DICE = '''
def roll_dice(num_sides: int = 6) -> str:
    """Roll a die.

    Args:
        num_sides (int): How many sides it has.
    """
    return f"one of {num_sides} sides"
'''


async def memory_of(client: AsyncLetta, agent: str) -> str:
    return (await client.agents.blocks.retrieve("human", agent_id=agent)).value


def test_the_program_of_the_readme_runs_as_it_stands(server: ServerProcess) -> None:
    [program] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    there = program.replace("http://127.0.0.1:8283", server.url)
    assert there != program
    ran = subprocess.run([sys.executable, "-c", there], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "You said: Hello!\n"), ran.stderr


@pytest.fixture
async def dice(client: AsyncLetta, tool_ids: dict[str, str]) -> AsyncGenerator[str]:
    """The server is shared, and other tests have a tool of this name: it is theirs again afterwards."""
    theirs = (await client.tools.retrieve(tool_ids["roll_dice"])).source_code
    assert theirs is not None
    yield (await client.tools.upsert(source_code=DICE)).id
    await client.tools.upsert(source_code=theirs)


@pytest.mark.parametrize("agent_type", TYPES)
async def test_a_tool_is_used_when_it_is_asked_for_as_people_ask(
    client: AsyncLetta, dice: str, agent_type: str
) -> None:
    fields: dict[str, Any] = {"include_base_tools": True, "include_base_tool_rules": True}
    agent = await create_agent(client, [dice], agent_type=agent_type, parallel=False, **fields)
    for text, sides in (("roll a 16 sided dice with roll_dice", 16), ("use roll_dice", 6), ("Roll a d20, please", 20)):
        told = await send(client, "blocking", agent, text)
        assert told.text == f"roll_dice returned one of {sides} sides."
        assert told.stop_reason == "end_turn"


@pytest.mark.parametrize("agent_type", TYPES)
async def test_an_agent_remembers_what_it_is_told_to_and_tells_it_when_asked(
    client: AsyncLetta, make_agent: MakeAgent, agent_type: str
) -> None:
    fields: dict[str, Any] = {"include_base_tools": True, "include_base_tool_rules": True}
    human = [{"label": "human", "value": "My name is Ada."}]
    agent = await make_agent(agent_type=agent_type, parallel=False, memory_blocks=human, **fields)
    assert (await send(client, "blocking", agent, "What's my name?")).text == "My memory says: human: My name is Ada."
    told = await send(client, "blocking", agent, "Please remember that I like tea.")
    assert told.text == "I will remember: I like tea"
    assert await memory_of(client, agent) == "My name is Ada.\nI like tea"
    asked = await send(client, "blocking", agent, "What do you know about me?")
    assert asked.text == "My memory says: human: My name is Ada.\nI like tea."
