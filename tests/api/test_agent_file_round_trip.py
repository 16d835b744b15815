"""An agent that is exported and imported again is the same agent: everything but its ids, on both databases. So are
the agents of its groups, its folders with their files, its MCP servers and the identities that it belongs to."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.mcp import McpServer
from holdfast.core.messages import Message
from holdfast.core.model_history import are_one_reply
from holdfast.core.records import Tool
from holdfast.ids import DEFAULT_ORG
from holdfast.ids import new as new_id
from holdfast.llm.base import ModelInfo
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.store import agents as agent_rows
from holdfast.store import mcp_servers as server_rows
from holdfast.store import messages as message_rows
from holdfast.store import threads as thread_rows
from holdfast.store import tools as tool_rows
from holdfast.store.transaction import Transaction
from tests.core.strategies import MAYBE, WORDS, orderly_histories
from tests.effort import examples
from tests.properties.settings_cases import MODELS, addressed, changes

from .resources import ROLL, Served, serving

pytestmark = pytest.mark.slow

NAMES = st.text("abc -_'é0", min_size=1, max_size=9).filter(str.strip)
JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | WORDS, lambda one: st.lists(one, max_size=2))
OBJECTS = st.dictionaries(WORDS, JSON, max_size=2)
LABELS = st.lists(st.text("abc", min_size=1, max_size=3), unique=True, max_size=3)
TOOLS = ("roll", "flip", "memory_insert", "send_message")
RULES = st.lists(
    st.sampled_from(TOOLS).flatmap(
        lambda tool: st.sampled_from(
            [
                {"type": "exit_loop", "tool_name": tool},
                {"type": "continue_loop", "tool_name": tool, "prompt_template": "Go on with {{ tool_name }}"},
                {"type": "requires_approval", "tool_name": tool},
                {"type": "required_before_exit", "tool_name": tool},
                {"type": "max_count_per_step", "tool_name": tool, "max_count_limit": 3},
                {"type": "constrain_child_tools", "tool_name": tool, "children": ["flip"]},
                {"type": "parent_last_tool", "tool_name": tool, "children": ["roll", "flip"]},
                {"type": "conditional", "tool_name": tool, "child_output_mapping": {"1": "roll"}},
            ]
        )
    ),
    max_size=4,
)
COMPACTION = st.none() | st.fixed_dictionaries(
    {"mode": st.sampled_from(["all", "sliding_window"])},
    optional={"prompt": WORDS, "clip_chars": st.none() | st.integers(1, 9), "sliding_window_percentage": st.just(0.5)},
)


@st.composite
def agents(draw: st.DrawFn) -> dict[str, Any]:
    info = draw(st.sampled_from(MODELS))
    blocks = [
        {
            "label": label,
            "value": draw(WORDS),
            "description": draw(MAYBE),
            "read_only": draw(st.booleans()),
            "limit": draw(st.sampled_from([100, 5_000])),
            "metadata": draw(OBJECTS),
            "tags": draw(LABELS),
        }
        for label in draw(LABELS)
    ]
    return {
        **addressed(draw(changes()), info.handle),
        "name": draw(NAMES),
        "agent_type": draw(st.sampled_from(["letta_v1_agent", "memgpt_agent", "react_agent", "sleeptime_agent"])),
        "system": draw(WORDS),
        "description": draw(MAYBE),
        "metadata": draw(st.none() | OBJECTS),
        "memory_blocks": blocks,
        "tools": draw(st.lists(st.sampled_from(TOOLS), unique=True)),
        "tool_rules": draw(RULES),
        "tags": draw(LABELS),
        "secrets": {name.upper(): "hush" for name in draw(LABELS)},
        "compaction_settings": draw(COMPACTION),
        "timezone": draw(st.sampled_from(["UTC", "Europe/Lisbon"])),
        "message_buffer_autoclear": draw(st.booleans()),
        "max_files_open": draw(st.none() | st.integers(0, 9)),
        "per_file_view_window_char_limit": draw(st.none() | st.integers(0, 9)),
        "hidden": draw(st.sampled_from([None, True, False])),
        "include_base_tools": False,
        "include_base_tool_rules": False,
        "initial_message_sequence": [],
    }


TEXTS = st.text("ab \n<é", max_size=40)
FILES = st.dictionaries(st.sampled_from(["a.txt", "b.md", "c.html", "d.json", "e.py"]), TEXTS, max_size=3)
FOLDERS = st.lists(
    st.fixed_dictionaries(
        {"files": FILES, "description": MAYBE, "instructions": MAYBE, "metadata": st.none() | OBJECTS}
    ),
    max_size=2,
)
GROUPS = st.lists(
    st.fixed_dictionaries(
        {
            "config": st.sampled_from(
                [
                    {"manager_type": "supervisor"},
                    {"manager_type": "dynamic", "termination_token": "ENOUGH", "max_turns": 3},
                    {"manager_type": "dynamic", "termination_token": None},
                    {"manager_type": "sleeptime", "sleeptime_agent_frequency": 2},
                    {"manager_type": "sleeptime"},
                ]
            ),
            "members": st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
            "description": WORDS,
            "hidden": st.sampled_from([None, True, False]),
            "shares": st.booleans(),
        }
    ),
    max_size=2,
)
PROPERTIES = st.lists(
    st.sampled_from(
        [
            {"key": "plan", "value": "gold", "type": "string"},
            {"key": "age", "value": 7, "type": "number"},
            {"key": "vip", "value": True, "type": "boolean"},
            {"key": "more", "value": {"a": [1]}, "type": "json"},
        ]
    ),
    max_size=3,
    unique_by=lambda each: str(each["key"]),
)
SERVERS = st.lists(
    st.sampled_from(
        [
            {"kind": "streamable_http", "url": "https://192.0.2.1/mcp"},
            {"kind": "sse", "url": "https://{{ HOST }}/sse", "auth_header": "X-Key"},
            {"kind": "stdio", "command": "tides", "args": ("--port", "7")},
        ]
    ),
    max_size=2,
    unique_by=lambda server: server["kind"],
)


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent has around it. `elsewhere`: the file is imported where none of it is."""

    folders: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    servers: list[dict[str, Any]]
    properties: list[list[dict[str, Any]]]  # of identities
    sleeptime: Literal["on", "off", "never"]
    elsewhere: bool


WORLDS = st.builds(
    World,
    folders=FOLDERS,
    groups=GROUPS,
    servers=SERVERS,
    properties=st.lists(PROPERTIES, max_size=2),
    sleeptime=st.sampled_from(["on", "off", "never"]),
    elsewhere=st.booleans(),
)


class EveryProvider(ModelCatalog):
    async def find(self, handle: str) -> ModelInfo:
        return next(info for info in MODELS if info.handle == handle)


async def give_history(served: Served, agent_id: str, rows: list[Message]) -> None:
    """In the place of the system message that the agent was created with."""
    new = [msgspec.structs.replace(row, id=f"{row.id}-of-{agent_id}") for row in rows]

    async def write(tx: Transaction) -> None:
        first = await thread_rows.window_ids(tx, agent_id)
        await thread_rows.reset_window(tx, agent_id)
        await message_rows.replace_parts(tx, first[0], new[0].parts)
        await message_rows.insert_many(tx, agent_id, new[1:])
        await thread_rows.append(tx, agent_id, [row.id for row in new[1:]])

    await served.deps.database.write(write)


async def stored(served: Served, agent_id: str) -> tuple[Any, ...]:
    """All that the database holds of an agent, without ids and ages."""

    async def read(tx: Transaction) -> tuple[Any, ...]:
        agent = await agent_rows.get(tx, agent_id)
        window = await thread_rows.window(tx, agent_id)
        rows = [
            msgspec.structs.replace(row, id="", run_id=None, step_id=None, created_us=row.created_us if place else 0)
            for place, row in enumerate(window)
        ]
        paired = [are_one_reply(before, row) for before, row in pairwise(window)]
        return msgspec.structs.replace(agent, id="", created_us=0, updated_us=0), rows, paired

    return await served.deps.database.read(read)


async def shown(served: Served, agent_id: str) -> dict[str, Any]:
    include = ["agent.tools", "agent.blocks", "agent.tags", "agent.secrets"]
    state = await served.ok("GET", f"/v1/agents/{agent_id}", include=include)
    for relation in ("blocks", "secrets"):
        state[relation] = [{**one, "id": None, "agent_id": None} for one in state[relation]]
    unlike = ("id", "created_at", "updated_at", "message_ids", "memory", "tool_exec_environment_variables")
    return {name: value for name, value in state.items() if name not in unlike}


async def check(served: Served, fields: dict[str, Any], rows: list[Message]) -> None:
    made = await served.create(**fields)
    await give_history(served, made["id"], rows)
    before = (await stored(served, made["id"]), await shown(served, made["id"]))
    text = (await served.http.get(f"/v1/agents/{made['id']}/export")).content
    answer = await served.http.post(
        "/v1/agents/import", files={"file": ("a.af", text)}, data={"append_copy_suffix": "false"}
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["repairs"] == []
    [copy] = answer.json()["agent_ids"]
    assert (await stored(served, copy), await shown(served, copy)) == before
    again = json.loads((await served.http.get(f"/v1/agents/{copy}/export")).content)
    assert again | {"created_at": None} == json.loads(text) | {"created_at": None}


def test_export_and_import_give_the_same_agent(database_url: str, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        served = runner.run(stack.enter_async_context(serving(database_url, tmp_path, EveryProvider())))
        for name in ("roll", "flip"):
            runner.run(served.create_tool(ROLL.replace("roll_dice", name)))

        @examples(25)
        @given(fields=agents(), rows=orderly_histories())
        def holds(fields: dict[str, Any], rows: list[Message]) -> None:
            runner.run(check(served, fields, rows))

        try:
            holds()
        finally:
            runner.run(stack.aclose())


# --- what an agent has around it -------------------------------------------------------------------------------------

NUMBERS = count()  # folders, servers and tools of two examples have different names


async def made_folder(served: Served, wanted: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in wanted.items() if name != "files"}
    folder = await served.ok("POST", "/v1/folders/", {"name": f"folder {next(NUMBERS)}", **fields})
    for name, text in wanted["files"].items():
        answer = await served.http.post(f"/v1/folders/{folder['id']}/upload", files={"file": (name, text.encode())})
        assert answer.status_code == 200, answer.text
    while await served.deps.tasks.sweep():
        await served.deps.tasks.settled()
    return folder


async def made_server(served: Served, wanted: dict[str, Any]) -> tuple[McpServer, Tool]:
    """Nobody connects to it. The tool is one that it was found to offer."""
    server = McpServer(
        id=new_id("mcp_server"), name=f"server {next(NUMBERS)}", organization_id=DEFAULT_ORG, created_us=1, **wanted
    )
    name = f"tide_{next(NUMBERS)}"
    schema: dict[str, Any] = {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}}
    tool = Tool(
        id=new_id("tool"),
        name=name,
        tool_type="external_mcp",
        description="",
        json_schema=schema,
        tags=(f"mcp:{server.name}",),
        metadata={
            "mcp": {"server_name": server.name, "server_id": server.id, "tool_name": "tide/now", "annotations": {}}
        },
        mcp_server_id=server.id,
        mcp_name="tide/now",
        created_us=served.deps.clock.now_us(),
    )

    async def write(tx: Transaction) -> None:
        assert await server_rows.insert(tx, server)
        assert await tool_rows.insert(tx, tool)

    await served.deps.database.write(write)
    return server, tool


async def made_groups(served: Served, main: dict[str, Any], world: World) -> None:
    members = [await served.create(name=f"member {number}", include_base_tools=False) for number in range(3)]
    has_sleeptime = world.sleeptime != "never"
    for number, group in enumerate(world.groups):
        is_sleeptime = group["config"]["manager_type"] == "sleeptime"
        if is_sleeptime and has_sleeptime:
            continue
        has_sleeptime = has_sleeptime or is_sleeptime
        shared = [(await served.create_block(f"board{number}"))["id"]] if group["shares"] else []
        await served.ok(
            "POST",
            "/v1/groups/",
            {
                "agent_ids": [members[place]["id"] for place in group["members"]],
                "description": group["description"],
                "manager_config": {**group["config"], "manager_agent_id": main["id"]},
                "shared_block_ids": shared,
                "hidden": group["hidden"],
            },
        )


async def made_world(served: Served, world: World) -> tuple[dict[str, Any], list[str]]:
    """The agent, and the paths of what is deleted before it is imported elsewhere."""
    folders = [await made_folder(served, wanted) for wanted in world.folders]
    servers = [await made_server(served, wanted) for wanted in world.servers]
    main = await served.create(
        name="main",
        memory_blocks=[{"label": "human", "value": "Ada"}],
        folder_ids=[folder["id"] for folder in folders],
        tool_ids=[tool.id for _, tool in servers],
        enable_sleeptime=None if world.sleeptime == "never" else True,
    )
    if world.sleeptime == "off":
        await served.ok("PATCH", f"/v1/agents/{main['id']}", {"enable_sleeptime": False})
    await made_groups(served, main, world)
    if world.folders and world.folders[0]["files"]:
        [first, *_] = (await served.ok("GET", f"/v1/agents/{main['id']}/files"))["files"]
        await served.ok("PATCH", f"/v1/agents/{main['id']}/files/{first['file_id']}/close")
    owned = {"agent_ids": [main["id"]], "block_ids": [block["id"] for block in main["blocks"]][:1]}
    identities = [
        await served.ok(
            "POST",
            "/v1/identities/",
            {
                "identifier_key": f"key {next(NUMBERS)}",
                "name": "Ada",
                "identity_type": "user",
                "properties": properties,
                **owned,
            },
        )
        for properties in world.properties
    ]
    return main, [
        *(f"/v1/folders/{folder['id']}" for folder in folders),
        *(f"/v1/mcp-servers/{server.id}" for server, _ in servers),
        *(f"/v1/identities/{identity['id']}" for identity in identities),
    ]


async def surroundings(served: Served, agent_id: str) -> dict[str, Any]:
    """All that is around an agent, by names in the place of ids."""
    include = ["agent.managed_group", "agent.sources", "agent.identities", "agent.tools", "agent.blocks"]
    state = await served.ok("GET", f"/v1/agents/{agent_id}", include=include)
    groups = [
        group
        for group in await served.ok("GET", "/v1/groups/", show_hidden_groups=True, limit=1_000)
        if group["manager_agent_id"] == agent_id
    ]
    names: dict[str, str] = {}
    for member in {member for group in groups for member in group["agent_ids"]}:
        names[member] = (await served.ok("GET", f"/v1/agents/{member}"))["name"]
    files = (await served.ok("GET", f"/v1/agents/{agent_id}/files", limit=100))["files"]
    texts = [
        {
            key: value
            for key, value in file.items()
            if key not in ("id", "source_id", "created_at", "updated_at", "chunks_embedded")
        }
        for folder in state["sources"]
        for file in await served.ok("GET", f"/v1/folders/{folder['id']}/files", include_content=True, order="asc")
    ]
    unlike = ("id", "file_id", "folder_id")
    return {
        "sleeptime": state["enable_sleeptime"],
        "groups": sorted(
            (
                group["manager_type"],
                group["description"],
                [names[member] for member in group["agent_ids"]],
                len(group["shared_block_ids"]),
                str(
                    [group[name] for name in ("max_turns", "termination_token", "sleeptime_agent_frequency", "hidden")]
                ),
            )
            for group in groups
        ),
        "folders": [
            [folder[name] for name in ("name", "description", "instructions", "metadata")]
            for folder in state["sources"]
        ],
        "files": texts,
        "windows": [{name: value for name, value in file.items() if name not in unlike} for file in files],
        "identities": [
            [identity[name] for name in ("identifier_key", "name", "identity_type", "properties")]
            for identity in state["identities"]
        ],
        "tools": [
            (tool["name"], tool["tool_type"], tool["json_schema"], "mcp" in tool["metadata_"])
            for tool in state["tools"]
        ],
        "blocks": [(block["label"], block["value"]) for block in state["blocks"]],
    }


async def check_world(served: Served, world: World) -> None:
    main, around = await made_world(served, world)
    before = await surroundings(served, main["id"])
    told = await served.ok("GET", f"/v1/agents/{main['id']}/export", include_identities=True)
    for path in around if world.elsewhere else ():
        assert (await served.http.delete(path)).is_success
    answer = await served.http.post(
        "/v1/agents/import",
        files={"file": ("a.af", json.dumps(told).encode())},
        data={"append_copy_suffix": "false"},
    )
    assert answer.status_code == 200, answer.text
    assert (answer.json()["repairs"], answer.json()["warnings"]) == ([], [])
    while await served.deps.tasks.sweep():
        await served.deps.tasks.settled()
    copy = answer.json()["agent_ids"][0]
    assert await surroundings(served, copy) == before
    again = await served.ok("GET", f"/v1/agents/{copy}/export", include_identities=True)
    assert again | {"created_at": None} == told | {"created_at": None}


def test_export_and_import_give_the_same_surroundings(database_url: str, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        around = serving(database_url, tmp_path, mcp_stdio=True, allowed_hosts=("192.0.2.1",))
        served = runner.run(stack.enter_async_context(around))

        @examples(15)
        @given(world=WORLDS)
        def holds(world: World) -> None:
            runner.run(check_world(served, world))

        try:
            holds()
        finally:
            runner.run(stack.aclose())
