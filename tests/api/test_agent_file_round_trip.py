"""An agent that is exported and imported again is the same agent: everything but its ids, on both databases."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.messages import Message
from holdfast.core.model_history import are_one_reply
from holdfast.llm.base import ModelInfo
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.store import agents as agent_rows
from holdfast.store import messages as message_rows
from holdfast.store import threads as thread_rows
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
