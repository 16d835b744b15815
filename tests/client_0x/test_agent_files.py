"""Agent files as 0.x programs use them."""

from __future__ import annotations

import json
from typing import Any

from tests.client_0x.conftest import MakeAgent
from tests.client_0x.sources import ROLL


def test_an_agent_is_exported_and_imported(client: Any, make_agent: MakeAgent) -> None:
    agent = make_agent(
        name="ada",
        memory_blocks=[{"label": "human", "value": "Ada"}],
        tags=["a"],
        tool_ids=[client.tools.upsert(source_code=ROLL).id],
        tool_exec_environment_variables={"KEY": "hush"},
    )
    client.agents.messages.create(agent_id=agent.id, messages=[{"role": "user", "content": "Hello!"}])
    told: Any = client.agents.export_file(agent_id=agent.id)
    assert [each["name"] for each in told["agents"]] == ["ada"]
    text = json.dumps(told)
    answer = client.agents.import_file(file=("ada.af", text.encode()), env_vars_json='{"KEY": "new"}')
    [copy_id] = answer.agent_ids
    copy = client.agents.retrieve(agent_id=copy_id)
    assert (copy.name, copy.tags) == ("ada_copy", ["a"])
    assert [block.value for block in copy.memory.blocks] == ["Ada"]
    assert [tool.name for tool in copy.tools] == ["roll"]
    assert [secret.key for secret in copy.tool_exec_environment_variables] == ["KEY"]
    kinds = [message.message_type for message in client.agents.messages.list(agent_id=copy_id)]
    assert kinds == [message.message_type for message in client.agents.messages.list(agent_id=agent.id)]
    stripped = client.agents.import_file(
        file=("ada.af", text.encode()), strip_messages=True, append_copy_suffix=False, override_existing_tools=False
    )
    assert len(client.agents.retrieve(agent_id=stripped.agent_ids[0]).message_ids) == 1
    for made in (copy_id, *stripped.agent_ids):
        client.agents.delete(agent_id=made)
