from __future__ import annotations

from typing import Any

from tests.client_0x.conftest import MakeAgent


def labels(agent: Any) -> list[str]:
    return sorted(block.label for block in agent.memory.blocks)


def test_a_block_is_made_changed_found_and_deleted(client: Any) -> None:
    block = client.blocks.create(label="project", value="one", description="what we do")
    assert client.blocks.retrieve(block_id=block.id).value == "one"
    assert client.blocks.modify(block_id=block.id, value="two").value == "two"
    assert [(found.id, found.value) for found in client.blocks.list(label="project")] == [(block.id, "two")]
    assert client.blocks.count() >= 1
    client.blocks.delete(block_id=block.id)
    assert client.blocks.list(label="project") == []


def test_a_block_is_attached_and_detached_and_the_agent_comes_back(client: Any, make_agent: MakeAgent) -> None:
    agent = make_agent(memory_blocks=[{"label": "human", "value": "Ada"}])
    block = client.blocks.create(label="shared", value="one")
    assert labels(client.agents.blocks.attach(agent_id=agent.id, block_id=block.id)) == ["human", "shared"]
    assert [found.id for found in client.blocks.agents.list(block_id=block.id)] == [agent.id]
    client.agents.blocks.modify(agent_id=agent.id, block_label="shared", value="two")
    assert client.blocks.retrieve(block_id=block.id).value == "two"
    assert client.agents.blocks.retrieve(agent_id=agent.id, block_label="shared").value == "two"
    assert {found.label for found in client.agents.blocks.list(agent_id=agent.id)} == {"human", "shared"}
    assert {found.label for found in client.agents.core_memory.retrieve(agent_id=agent.id).blocks} == {
        "human",
        "shared",
    }
    assert labels(client.agents.blocks.detach(agent_id=agent.id, block_id=block.id)) == ["human"]
    client.blocks.delete(block_id=block.id)
