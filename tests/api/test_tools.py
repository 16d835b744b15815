"""Tools over HTTP: writing, finding and running them."""

from __future__ import annotations

import asyncio
import inspect
from enum import Enum
from textwrap import dedent
from typing import Any

import pytest
from letta_client import BadRequestError
from letta_client.types.tool import BaseTool
from pydantic import BaseModel

from holdfast.store import tools as tool_rows

from .resources import ROLL, Served

STRANGER = "tool-123e4567-e89b-42d3-8456-426614174000"
SCHEMA: dict[str, Any] = {
    "name": "plain",
    "description": "p",
    "parameters": {"type": "object", "properties": {}, "required": []},
}
PLAIN = "def plain():\n    return 1\n"


async def version_of(served: Served, tool_id: str) -> int:
    return (await served.deps.database.read(lambda tx: tool_rows.get(tx, tool_id))).version


async def test_the_client_writes_a_tool_from_source(served: Served) -> None:
    tool = await served.client.tools.create(source_code=ROLL, tags=["dice"])
    assert (tool.name, tool.tool_type, tool.description, tool.tags) == ("roll_dice", "custom", "Roll a die.", ["dice"])
    assert tool.json_schema is not None
    parameters: Any = tool.json_schema["parameters"]
    assert parameters["properties"]["sides"]["type"] == "integer"
    assert parameters["required"] == ["sides"]
    assert (tool.return_char_limit, tool.source_type, tool.default_requires_approval) == (50_000, "python", None)
    assert (await served.client.tools.retrieve(tool.id)).model_dump() == tool.model_dump()


async def test_the_same_name_is_the_same_tool(served: Served) -> None:
    first = await served.create_tool(tags=["kept"], default_requires_approval=True)
    again = await served.client.tools.upsert(source_code=ROLL)
    assert (again.id, again.tags, again.default_requires_approval) == (first["id"], ["kept"], None)
    assert await version_of(served, first["id"]) == 1
    await served.create_tool(ROLL.replace("return sides", "return 4"))
    assert await version_of(served, first["id"]) == 2
    assert await served.ok("GET", "/v1/tools/count", name="roll_dice") == 1


async def test_of_many_who_write_one_name_at_once_all_get_the_same_tool(served: Served) -> None:
    made = await asyncio.gather(*(served.create_tool() for _ in range(10)))
    assert len({tool["id"] for tool in made}) == 1


async def test_a_new_source_brings_a_new_schema(served: Served) -> None:
    tool = await served.create_tool(enable_parallel_execution=True, default_requires_approval=True)
    path = f"/v1/tools/{tool['id']}"
    source = ROLL.replace("sides: int)", "sides: int, times: str = 'x')").replace(
        "it has.\n", "it has.\n        times (str): How often.\n"
    )
    changed = await served.ok("PATCH", path, {"source_code": source})
    assert set(changed["json_schema"]["parameters"]["properties"]) == {"sides", "times"}
    assert changed["enable_parallel_execution"] is True
    assert await version_of(served, tool["id"]) == 2
    same = await served.ok("PATCH", path, {"tags": ["t"], "default_requires_approval": None})
    assert (same["tags"], same["default_requires_approval"]) == (["t"], None)
    assert same["json_schema"] == changed["json_schema"]
    assert await version_of(served, tool["id"]) == 2


async def test_a_given_schema_names_the_tool(served: Served) -> None:
    tool = await served.create_tool(PLAIN, json_schema=SCHEMA)
    assert (tool["name"], tool["description"]) == ("plain", "p")
    renamed = await served.ok(
        "PATCH",
        f"/v1/tools/{tool['id']}",
        {"source_code": PLAIN.replace("plain", "other"), "json_schema": SCHEMA | {"name": "other"}},
    )
    assert (renamed["id"], renamed["name"]) == (tool["id"], "other")


@pytest.mark.slow
async def test_a_schema_alone_renames_a_tool_which_still_runs(served: Served) -> None:
    tool = await served.create_tool()
    schema = tool["json_schema"] | {"name": "throw", "description": "Throw a die."}
    renamed = await served.ok("PATCH", f"/v1/tools/{tool['id']}", {"json_schema": schema})
    assert (renamed["id"], renamed["name"], renamed["description"]) == (tool["id"], "throw", "Throw a die.")
    assert renamed["source_code"] == tool["source_code"]
    agent = await served.create(tool_ids=[tool["id"]], include_base_tools=False)
    ran = await served.ok("POST", f"/v1/agents/{agent['id']}/tools/throw/run", {"args": {"sides": 6}})
    assert (ran["status"], ran["func_return"]) == ("success", "6")


async def test_the_rules_of_agents_follow_a_tool_that_is_renamed(served: Served) -> None:
    tool = await served.create_tool(default_requires_approval=True)
    rules = [{"type": "parent_last_tool", "tool_name": "other", "children": ["roll_dice"]}]
    agent = await served.create(tool_ids=[tool["id"]], include_base_tools=False, tool_rules=rules)
    stranger = await served.create(include_base_tools=False, tool_rules=rules)
    renamed = tool["json_schema"] | {"name": "throw"}
    await served.ok("PATCH", f"/v1/tools/{tool['id']}", {"json_schema": renamed})

    async def told(agent_id: str) -> list[tuple[str, str, list[str] | None]]:
        shown = (await served.ok("GET", f"/v1/agents/{agent_id}"))["tool_rules"]
        return sorted((rule["type"], rule["tool_name"], rule.get("children")) for rule in shown)

    assert await told(agent["id"]) == [
        ("parent_last_tool", "other", ["throw"]),
        ("requires_approval", "throw", None),
    ]
    assert await told(stranger["id"]) == [("parent_last_tool", "other", ["roll_dice"])]


class InventoryItem(BaseModel):
    sku: str
    price: float


class Kind(Enum):
    ARRIVAL = "arrival"
    SALE = "sale"


class InventoryEntry(BaseModel):
    item: InventoryItem
    kind: Kind
    others: list[InventoryItem] = []


class InventoryEntryData(BaseModel):
    data: InventoryEntry
    quantity_change: int


def manage_inventory(data: InventoryEntry, quantity_change: int) -> str:
    return f"{data.item.sku} {data.kind.value} {data.others[0].price} {quantity_change + 1} {data.model_dump()['item']}"


class ManageInventory(BaseTool):
    name: str | None = "manage_inventory_tool"
    args_schema: type[BaseModel] | None = InventoryEntryData  # pyright: ignore[reportIncompatibleVariableOverride]
    description: str | None = "Update the inventory."

    def run(self, data: InventoryEntry, quantity_change: int) -> str:
        return f"{data.item.sku} {quantity_change + 1}"


ENTRY: dict[str, Any] = {
    "data": {"item": {"sku": "s1", "price": 2.5}, "kind": "sale", "others": [{"sku": "s2", "price": 4.5}]},
    "quantity_change": 2,
}


MANAGED = "s1 sale 4.5 3 {'sku': 's1', 'price': 2.5}"


@pytest.mark.slow
async def test_the_models_of_an_args_schema_arrive_as_models(served: Served) -> None:
    """As in the client library's documentation: the source alone is sent, and the schema of its arguments."""
    tool = await served.client.tools.upsert_from_function(func=manage_inventory, args_schema=InventoryEntryData)
    schema: Any = tool.json_schema
    assert schema["parameters"]["required"] == ["data", "quantity_change"]
    agent = await served.create(tool_ids=[tool.id], include_base_tools=False)
    path = f"/v1/agents/{agent['id']}/tools/{tool.name}/run"
    assert (await served.ok("POST", path, {"args": ENTRY}))["func_return"] == MANAGED


@pytest.mark.slow
async def test_the_models_of_an_args_schema_arrive_as_models_in_a_function_without_annotations(served: Served) -> None:
    source = dedent(inspect.getsource(manage_inventory))
    source = source.replace("data: InventoryEntry, quantity_change: int", "data, quantity_change")
    assert "InventoryEntry" not in source
    body = {"source_code": source, "args": ENTRY, "args_json_schema": InventoryEntryData.model_json_schema()}
    assert (await served.ok("POST", "/v1/tools/run", body))["tool_return"] == MANAGED


@pytest.mark.slow
async def test_a_tool_class_of_the_client_library_works(served: Served) -> None:
    tool = await served.client.tools.add(tool=ManageInventory(id=""))
    assert (tool.name, tool.description) == ("manage_inventory_tool", "Update the inventory.")
    agent = await served.create(tool_ids=[tool.id], include_base_tools=False)
    ran = await served.ok("POST", f"/v1/agents/{agent['id']}/tools/{tool.name}/run", {"args": ENTRY})
    assert ran["func_return"] == "s1 3", ran


@pytest.mark.slow
async def test_a_tool_without_docstring_or_annotations_is_called_all_the_same(served: Served) -> None:
    tool = await served.create_tool("def add_two_numbers(a, b=2):\n    return a + b\n")
    assert tool["description"] == "Add two numbers"
    parameters = {"type": "object", "properties": {"a": {}, "b": {"type": "integer"}}, "required": ["a"]}
    assert tool["json_schema"]["parameters"] == parameters
    agent = await served.create(tool_ids=[tool["id"]], include_base_tools=False)
    ran = await served.ok("POST", f"/v1/agents/{agent['id']}/tools/add_two_numbers/run", {"args": {"a": 1}})
    assert ran["func_return"] == "3"


BAD: list[tuple[int, dict[str, Any], str]] = [
    (400, {"source_code": "x = 1"}, "function"),
    (400, {"source_code": "def f(:"}, "line"),
    (400, {"source_code": PLAIN, "json_schema": SCHEMA | {"name": "else"}}, "mismatch"),
    (400, {"source_code": PLAIN, "json_schema": {"description": "no name"}}, "name"),
    (400, {"source_code": PLAIN, "json_schema": SCHEMA | {"name": "a b"}}, "name"),
    (400, {"source_code": PLAIN, "json_schema": SCHEMA | {"parameters": 1}}, "parameters"),
    (422, {"source_code": "function plain() {}", "source_type": "typescript"}, "json_schema"),
    (400, {"source_code": PLAIN, "source_type": "cobol"}, "source_type"),
    (422, {"source_code": ROLL, "return_char_limit": 0}, "return_char_limit"),
    (422, {"source_code": ROLL, "return_char_limit": 1_000_001}, "return_char_limit"),
    (422, {"source_code": ROLL, "name": "x"}, "name"),
    (422, {"source_code": ROLL, "tags": [f"egress:allow=h{number}.example" for number in range(201)]}, "at most 200"),
    (422, {}, "source_code"),
]
WRONG_ARGUMENTS: list[tuple[Any, str]] = [
    ({"required": 5}, "required"),
    ({"required": "a"}, "required"),
    ({"required": [1]}, "required"),
    ({"required": {"a": True}}, "required"),
    ({"properties": ["a"]}, "properties"),
    ({"properties": "a"}, "properties"),
    ({"properties": {"a": 5}}, "'a'"),
    ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": 5}, "$defs"),
    ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": 5}}, "$defs"),
]


async def test_a_bad_tool_is_refused_with_a_sentence(served: Served) -> None:
    before = await served.ok("GET", "/v1/tools/count")
    for status, body, fragment in BAD:
        for method in ("POST", "PUT"):
            assert fragment in await served.refused(status, method, "/v1/tools/", body), body
    assert await served.ok("GET", "/v1/tools/count") == before


@pytest.mark.slow
@pytest.mark.parametrize(("schema", "fragment"), WRONG_ARGUMENTS, ids=str)
async def test_a_schema_of_arguments_that_is_none_is_refused(served: Served, schema: Any, fragment: str) -> None:
    tool = await served.create_tool()
    for method, path in (("POST", "/v1/tools/"), ("PUT", "/v1/tools/"), ("PATCH", f"/v1/tools/{tool['id']}")):
        body = {"source_code": ROLL, "args_json_schema": schema}
        assert fragment in await served.refused(400, method, path, body), method
        named = {"source_code": ROLL, "json_schema": {"name": "roll_dice", "parameters": schema}}
        if "$defs" not in schema:  # which are left to vendors there
            assert fragment in await served.refused(400, method, path, named), method
    assert await served.ok("GET", f"/v1/tools/{tool['id']}") == tool
    ran = await served.ok(
        "POST", "/v1/tools/run", {"source_code": ROLL, "args": {"sides": 2}, "args_json_schema": schema}
    )
    assert ran["tool_return"] == "2"  # what cannot be understood guides no conversion


async def test_an_argument_of_any_kind_may_be_described_by_true(served: Served) -> None:
    tool = await served.create_tool(args_json_schema={"properties": {"sides": True}, "required": None})
    assert tool["json_schema"]["parameters"] == {"type": "object", "properties": {"sides": {}}, "required": []}


async def test_a_bad_change_is_refused_and_changes_nothing(served: Served) -> None:
    tool, _ = await served.create_tool(), await served.create_tool(PLAIN, json_schema=SCHEMA)
    path = f"/v1/tools/{tool['id']}"
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"source_code": PLAIN}, "roll_dice"),
        ({"source_code": PLAIN, "json_schema": SCHEMA}, "already exists in your organization"),
        ({"json_schema": SCHEMA}, "already exists in your organization"),
    ]
    for body, fragment in refusals:
        assert fragment in await served.refused(400, "PATCH", path, body)
        assert await served.ok("GET", path) == tool
    await served.refused(422, "PATCH", path, {"return_char_limit": 0})
    await served.refused(404, "PATCH", f"/v1/tools/{STRANGER}", {})
    await served.refused(404, "GET", f"/v1/tools/{STRANGER}")
    await served.refused(404, "DELETE", f"/v1/tools/{STRANGER}")
    await served.refused(422, "GET", "/v1/tools/tool-1")


async def test_a_deleted_tool_leaves_its_agents(served: Served) -> None:
    tool = await served.create_tool()
    agent = await served.create(tool_ids=[tool["id"]], include_base_tools=False)
    assert await served.ok("DELETE", f"/v1/tools/{tool['id']}") is None
    assert await served.ok("GET", f"/v1/agents/{agent['id']}/tools") == []


async def test_tools_that_come_with_the_server_are_protected(served: Served) -> None:
    base = {tool["name"]: tool for tool in await served.ok("POST", "/v1/tools/add-base-tools")}
    insert = base["memory_insert"]
    assert insert["tool_type"].startswith("letta_")
    assert insert["source_code"] is None
    path = f"/v1/tools/{insert['id']}"
    await served.refused(400, "PATCH", path, {"description": "mine now"})
    source = 'def memory_insert():\n    """Do nothing."""\n'
    with pytest.raises(BadRequestError):
        await served.client.tools.create(source_code=source)
    tuned = await served.ok("PATCH", path, {"default_requires_approval": True})
    again = {tool["name"]: tool for tool in await served.ok("POST", "/v1/tools/add-base-tools")}
    assert again["memory_insert"] == tuned
    assert again.keys() == base.keys()


async def test_a_tool_that_comes_with_the_server_leaves_its_agents_when_it_is_deleted_and_stays_as_it_was_tuned(
    served: Served,
) -> None:
    agent = await served.create(tools=["memory_insert"], include_base_tools=False)
    [insert] = await served.ok("GET", f"/v1/agents/{agent['id']}/tools")
    path = f"/v1/tools/{insert['id']}"
    tuned = await served.ok("PATCH", path, {"default_requires_approval": True})
    before = await served.ok("GET", "/v1/tools/", limit=100)
    assert await served.ok("DELETE", path) is None
    assert await served.ok("GET", f"/v1/agents/{agent['id']}/tools") == []
    assert await served.ok("GET", path) == tuned
    assert await served.ok("GET", "/v1/tools/", limit=100) == before
    again = await served.create(tools=["memory_insert"], include_base_tools=False)
    assert [rule["type"] for rule in again["tool_rules"]] == ["requires_approval"]


async def test_lists_and_counts_take_the_same_filters(served: Served) -> None:
    roll = await served.create_tool()
    await served.create_tool(PLAIN, json_schema=SCHEMA)

    async def names(**query: Any) -> set[str]:
        found = {tool["name"] for tool in await served.ok("GET", "/v1/tools/", limit=1000, **query)}
        assert await served.ok("GET", "/v1/tools/count", **query) == len(found)
        return found

    assert await names(tool_types="custom") == {"roll_dice", "plain"}
    assert await names(name="plain") == await names(names=["plain", "none"]) == {"plain"}
    assert await names(tool_ids=[roll["id"]]) == await names(search="DICE") == {"roll_dice"}
    shipped = await names(return_only_letta_tools=True)
    assert {"memory_insert", "conversation_search"} <= shipped
    assert await names(exclude_tool_types="custom") == shipped
    assert await served.ok("GET", "/v1/tools/count", exclude_letta_tools=True) == 2
    assert "nonsense" in await served.refused(400, "GET", "/v1/tools/", tool_types="custom,nonsense")
    listed = [tool.name async for tool in served.client.tools.list(limit=1)]
    assert len(listed) == len(set(listed)) == len(shipped) + 2
    assert listed[:2] == ["plain", "roll_dice"]


async def test_search_puts_names_before_descriptions(served: Served) -> None:
    await served.create_tool(tags=["games"])
    await served.create_tool(PLAIN, json_schema=SCHEMA | {"description": "Not roll_dice."})
    found = await served.client.tools.search(query="roll_dice")
    assert [hit.tool.name for hit in found] == ["roll_dice", "plain"]
    assert [hit.tool.name for hit in await served.client.tools.search(query="roll", tags=["games"])] == ["roll_dice"]
    await served.refused(422, "POST", "/v1/tools/search", {"query": "x", "limit": 101})
    await served.refused(422, "POST", "/v1/tools/search", {"unknown": 1})


async def test_tools_are_found_by_any_of_the_words_and_the_best_come_first(served: Served) -> None:
    await served.create_tool()
    found = [hit.tool.name for hit in await served.client.tools.search(query="Roll messages to somebody", limit=100)]
    assert {"roll_dice", "send_message"} <= set(found)
    both = [hit.tool.name for hit in await served.client.tools.search(query="the dice: roll them", limit=100)]
    assert both[0] == "roll_dice"
    assert await served.client.tools.search(query="marzipan") == []
    assert len(await served.client.tools.search(query=None, limit=100)) == len(
        [tool async for tool in served.client.tools.list()]
    )


async def test_a_schema_can_be_derived_without_storing_a_tool(served: Served) -> None:
    schema = await served.ok("POST", "/v1/tools/generate-schema", {"code": ROLL})
    assert schema["name"] == "roll_dice"
    await served.refused(400, "POST", "/v1/tools/generate-schema", {"code": "x = 1"})


async def test_source_is_run_and_its_output_captured(served: Served) -> None:
    source = "import os\ndef speak(word: str):\n    print(word)\n    return {'said': word, 'env': os.environ['KEY']}\n"
    body = {"source_code": source, "args": {"word": "hi"}, "env_vars": {"KEY": "k"}}
    answer = await served.ok("POST", "/v1/tools/run", body)
    assert (answer["status"], answer["id"], answer["tool_call_id"], answer["name"]) == (
        "success",
        "null",
        "null",
        "speak",
    )
    assert "'said'" in answer["tool_return"] or '"said"' in answer["tool_return"]
    assert "".join(answer["stdout"]).strip() == "hi"
    assert answer["tool_returns"][0]["status"] == "success"


@pytest.mark.slow
async def test_a_tool_that_raises_is_an_answer(served: Served) -> None:
    body: dict[str, Any] = {"source_code": "def bad():\n    raise ValueError('oops')\n", "args": {}}
    answer = await served.ok("POST", "/v1/tools/run", body)
    assert answer["status"] == "error"
    assert "Error executing function bad: ValueError: oops" in answer["tool_return"]
    assert "Traceback" in "".join(answer["stderr"])
    await served.refused(400, "POST", "/v1/tools/run", body | {"source_type": "typescript"})
    await served.refused(400, "POST", "/v1/tools/run", {"source_code": "x = 1", "args": {}})
    await served.refused(422, "POST", "/v1/tools/run", body | {"extra": 1})


async def test_an_attached_tool_runs_with_the_secrets_of_its_agent(served: Served) -> None:
    source = 'import os\ndef tell() -> str:\n    """Tell the secret."""\n    return os.environ.get("KEY", "none")\n'
    tool = await served.create_tool(source)
    one = await served.create(tool_ids=[tool["id"]], secrets={"KEY": "hush"})
    two = await served.create(tool_ids=[tool["id"]])
    run = served.client.agents.tools.run
    told = await run("tell", agent_id=one["id"], args={})
    assert (told.status, told.func_return) == ("success", "hush")
    assert (await run("tell", agent_id=two["id"])).func_return == "none"
    stranger = await served.create()
    assert "tell" in await served.refused(404, "POST", f"/v1/agents/{stranger['id']}/tools/tell/run", {"args": {}})


@pytest.mark.slow
async def test_a_tool_is_told_whose_it_is_when_an_agent_calls_it_and_when_it_is_run_by_hand(served: Served) -> None:
    body = '    """Tell."""\n    return f"{agent_state.name} {agent_state.id}"\n'
    tool = await served.create_tool(f"def who(agent_state) -> str:\n{body}")
    agent = await served.create(name="Ada", include_base_tools=False, tool_ids=[tool["id"]], model="holdfast/offline")
    by_hand = await served.ok("POST", f"/v1/agents/{agent['id']}/tools/who/run", {"args": {}})
    told = await served.ok("POST", f"/v1/agents/{agent['id']}/messages", {"input": "[[call:who {}]]"})
    (called,) = [each for each in told["messages"] if each["message_type"] == "tool_return_message"]
    assert (called["tool_return"], by_hand["func_return"]) == (f"Ada {agent['id']}",) * 2


@pytest.mark.slow
async def test_an_attached_tool_that_fails_says_so_in_stderr(served: Served) -> None:
    tool = await served.create_tool(
        'def bad() -> str:\n    """Fail."""\n    raise KeyError("k")\n', return_char_limit=5
    )
    agent = await served.create(tool_ids=[tool["id"]])
    result = await served.client.agents.tools.run("bad", agent_id=agent["id"])
    assert (result.status, result.func_return) == ("error", None)
    assert "KeyError" in "".join(result.stderr or ())


async def test_a_memory_tool_run_by_hand_edits_the_block(served: Served) -> None:
    agent = await served.create(memory_blocks=[{"label": "human", "value": "Likes tea."}])
    arguments: dict[str, object] = {"label": "human", "old_string": "tea", "new_string": "coffee"}
    result = await served.client.agents.tools.run("memory_replace", agent_id=agent["id"], args=arguments)
    assert result.status == "success"
    block = await served.ok("GET", f"/v1/agents/{agent['id']}/core-memory/blocks/human")
    assert block["value"] == "Likes coffee."
    failed = await served.client.agents.tools.run("memory_replace", agent_id=agent["id"], args=arguments)
    assert (failed.status, failed.func_return) == ("error", None)
    assert failed.stderr
    assert len((await served.ok("GET", f"/v1/agents/{agent['id']}"))["message_ids"]) == 1


async def test_messages_are_searched_by_hand(served: Served) -> None:
    greeting = [{"role": "user", "content": "I like marzipan"}]
    agent = await served.create(initial_message_sequence=greeting)
    run = served.client.agents.tools.run
    result = await run("conversation_search", agent_id=agent["id"], args={"query": "marzipan"})
    assert result.status == "success"
    assert "marzipan" in str(result.func_return)
