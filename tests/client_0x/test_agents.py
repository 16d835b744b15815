"""Agents as 0.x programs use them: what is created is read back whole, without asking for its parts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client_0x.conftest import MakeAgent
from tests.client_0x.refusals import refused
from tests.client_0x.sources import ROLL


def parts_of(agent: Any) -> dict[str, Any]:
    return {
        "tools": sorted(tool.name for tool in agent.tools),
        "blocks": {block.label: block.value for block in agent.memory.blocks},
        "tags": agent.tags,
        "secrets": [secret.key for secret in agent.tool_exec_environment_variables],
    }


WHOLE = {"tools": ["roll"], "blocks": {"human": "Ada", "persona": "kind"}, "tags": ["a", "b"], "secrets": ["KEY"]}


@pytest.fixture
def agent(client: Any, make_agent: MakeAgent) -> Any:
    return make_agent(
        name="ada",
        memory_blocks=[{"label": "human", "value": "Ada"}, {"label": "persona", "value": "kind"}],
        tags=["a", "b"],
        tool_ids=[client.tools.upsert(source_code=ROLL).id],
        tool_exec_environment_variables={"KEY": "hush"},
    )


def test_what_is_created_is_read_and_listed_whole(client: Any, agent: Any) -> None:
    assert parts_of(agent) == WHOLE
    assert parts_of(client.agents.retrieve(agent_id=agent.id)) == WHOLE
    assert [parts_of(found) for found in client.agents.list(name="ada")] == [WHOLE]
    assert [found.id for found in client.agents.list(tags=["a", "b"], match_all_tags=True)] == [agent.id]
    assert client.agents.list(tags=["nobody's"]) == []
    assert client.agents.count() >= 1


def test_named_relations_are_filled_and_the_others_empty(client: Any, agent: Any) -> None:
    shown = client.agents.retrieve(agent_id=agent.id, include_relationships=["tools"])
    assert parts_of(shown) == {"tools": ["roll"], "blocks": {}, "tags": [], "secrets": []}
    (listed,) = client.agents.list(name="ada", include_relationships=["memory"])
    assert parts_of(listed) == WHOLE | {"tools": [], "secrets": []}


def test_a_modified_agent_is_answered_whole_and_stays_modified(client: Any, agent: Any) -> None:
    expected = WHOLE | {"tags": ["c"]}
    answer = client.agents.modify(agent_id=agent.id, name="eva", tags=["c"], description="knows much")
    assert (answer.name, answer.description, parts_of(answer)) == ("eva", "knows much", expected)
    assert parts_of(client.agents.retrieve(agent_id=agent.id)) == expected


def test_what_is_read_can_be_written_back_and_changes_nothing(client: Any, agent: Any) -> None:
    read = client.agents.retrieve(agent_id=agent.id)
    client.agents.modify(
        agent_id=agent.id,
        name=read.name,
        system=read.system,
        tool_ids=[tool.id for tool in read.tools],
        block_ids=[block.id for block in read.memory.blocks],
        tool_rules=read.tool_rules,
        tags=read.tags,
        timezone=read.timezone,
    )
    again = client.agents.retrieve(agent_id=agent.id)
    changed = {name for name, value in read.dict().items() if again.dict()[name] != value}
    assert changed <= {"updated_at"}


def test_tools_that_are_attached_and_detached_are_answered_with_the_agent(client: Any, make_agent: MakeAgent) -> None:
    tool = client.tools.upsert(source_code=ROLL)
    agent = make_agent()
    attached = client.agents.tools.attach(agent_id=agent.id, tool_id=tool.id)
    assert [found.name for found in attached.tools] == ["roll"]
    guarded = client.agents.tools.modify_approval(agent_id=agent.id, tool_name="roll", requires_approval=True)
    assert [rule.type for rule in guarded.tool_rules] == ["requires_approval"]
    assert [found.name for found in client.agents.tools.list(agent_id=agent.id)] == ["roll"]
    for _ in range(2):
        detached = client.agents.tools.detach(agent_id=agent.id, tool_id=tool.id)
        assert (detached.tools, detached.tool_rules) == ([], [])


def test_an_unknown_agent_is_404_and_a_malformed_id_422(client: Any) -> None:
    with refused(404):
        client.agents.retrieve(agent_id="agent-123e4567-e89b-42d3-8456-426614174000")
    with refused(422):
        client.agents.retrieve(agent_id="nobody")
