"""What programs that were written for the old server rely on first, each told from outside, on both databases."""

from __future__ import annotations

import json
from typing import Any

from holdfast import ids

from .resources import Served

LITERALS = '''
from typing import Literal


async def choose(size: Literal["small", "large"], colour: str | None = None) -> str:
    """Choose.

    Args:
        size: How large.
        colour: Which colour.
    """

    def inner(text: str) -> str:
        return text.upper()

    return inner(size)
'''


async def called(served: Served, agent_id: str, tool: str, **arguments: Any) -> dict[str, Any]:
    return await served.ok("POST", f"/v1/agents/{agent_id}/tools/{tool}/run", {"args": arguments})


async def prompt(served: Served, agent_id: str, **query: Any) -> str:
    return (await served.ok("GET", f"/v1/agents/{agent_id}/context", **query))["core_memory"]


async def test_an_agent_of_which_only_the_model_is_said_has_what_it_always_had(served: Served) -> None:
    made = await served.create(model="holdfast/offline")
    whole = await served.ok("GET", f"/v1/agents/{made['id']}", include=["agent.tools", "agent.blocks"])
    assert (len(whole["tools"]), whole["blocks"], len(whole["message_ids"])) == (3, [], 1)
    assert whole["timezone"] == "UTC"
    assert whole["name"].isalpha() and whole["name"][0].isupper() and sum(map(str.isupper, whole["name"])) == 2
    assert (await served.ok("GET", f"/v1/agents/{made['id']}"))["tools"] == []


async def test_what_a_tool_of_one_agent_writes_into_a_shared_block_the_other_sees(served: Served) -> None:
    block = await served.create_block("human", value="Ada.")
    first, second = [await served.create(name=name, block_ids=[block["id"]]) for name in ("first", "second")]
    ran = await called(served, first["id"], "memory_insert", label="human", new_string="Likes tea.")
    assert ran["status"] == "success", ran
    assert "Likes tea." in await prompt(served, second["id"])


async def test_a_block_that_agents_may_only_read_can_be_written_by_its_owner(served: Served) -> None:
    block = await served.create_block("human", value="Ada.", read_only=True)
    agent = await served.create(block_ids=[block["id"]])
    ran = await called(served, agent["id"], "memory_replace", label="human", old_string="Ada", new_string="Eve")
    assert ran["status"] == "error"
    assert (await served.ok("GET", f"/v1/blocks/{block['id']}"))["value"] == "Ada."
    assert (await served.ok("PATCH", f"/v1/blocks/{block['id']}", {"value": "Eve."}))["value"] == "Eve."


async def test_a_text_that_stands_twice_is_not_replaced_and_the_lines_are_told(served: Served) -> None:
    agent = await served.create(memory_blocks=[{"label": "human", "value": "tea\ncake\ntea"}])
    ran = await called(served, agent["id"], "memory_replace", label="human", old_string="tea", new_string="rum")
    told = json.dumps(ran)
    assert ran["status"] == "error" and "1" in told and "3" in told
    assert "rum" not in await prompt(served, agent["id"])


async def test_no_block_grows_beyond_its_limit(served: Served) -> None:
    agent = await served.create(memory_blocks=[{"label": "human", "value": "Ada", "limit": 10}])
    block = agent["blocks"][0]["id"]
    await served.refused(422, "PATCH", f"/v1/blocks/{block}", {"value": "a" * 11})
    ran = await called(served, agent["id"], "memory_insert", label="human", new_string="a" * 11)
    assert ran["status"] == "error", ran
    assert (await served.ok("GET", f"/v1/blocks/{block}"))["value"] == "Ada"


async def test_a_tool_is_one_tool_however_often_it_is_written_and_its_schema_follows_its_source(served: Served) -> None:
    first = await served.ok("PUT", "/v1/tools/", {"source_code": LITERALS})
    assert (await served.ok("PUT", "/v1/tools/", {"source_code": LITERALS}))["id"] == first["id"]
    parameters = first["json_schema"]["parameters"]
    assert parameters["properties"]["size"]["enum"] == ["small", "large"]
    assert parameters["required"] == ["size"]
    changed = LITERALS.replace("size:", "extent:").replace("inner(size)", "inner(extent)")
    patched = await served.ok("PATCH", f"/v1/tools/{first['id']}", {"source_code": changed})
    assert patched["json_schema"]["parameters"]["required"] == ["extent"]


async def test_an_edited_block_is_seen_by_the_next_turn_of_a_conversation_that_was_there(served: Served) -> None:
    agent = await served.create(memory_blocks=[{"label": "human", "value": "Ada."}])
    conversation = await served.ok("POST", "/v1/conversations/", {}, agent_id=agent["id"])
    messages = f"/v1/conversations/{conversation['id']}/messages"
    await served.ok("POST", messages, {"input": "Hello", "streaming": False})
    await served.ok("PATCH", f"/v1/blocks/{agent['blocks'][0]['id']}", {"value": "Now called Eve."})
    await served.ok("POST", messages, {"input": "Hello", "streaming": False})
    seen = await served.ok("GET", f"/v1/agents/{agent['id']}/context", conversation_id=conversation["id"])
    assert "Now called Eve." in json.dumps(seen)


async def test_ids_that_are_none_are_told_from_ids_of_nobody(served: Served) -> None:
    answer = await served.http.get("/v1/agents/agent-7")
    assert answer.status_code == 422 and "examples" in answer.text
    assert await served.refused(404, "GET", f"/v1/agents/{ids.new('agent')}") == "Agent not found"
