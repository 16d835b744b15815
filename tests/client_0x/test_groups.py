"""Identities, groups and sleeptime with the last 0.x client, which has methods for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MakeAgent = Callable[..., Any]


def test_identities_are_made_changed_and_found(client: Any, make_agent: MakeAgent) -> None:
    made = client.identities.create(identifier_key="ada-0x", name="Ada", identity_type="user")
    try:
        agent = make_agent(identity_ids=[made.id])
        assert agent.identity_ids == [made.id]
        assert client.agents.retrieve(agent_id=agent.id).identity_ids == [made.id]
        assert [each.id for each in client.agents.list(identifier_keys=["ada-0x"])] == [agent.id]
        assert [each.id for each in client.agents.list(identity_id=made.id)] == [agent.id]
        changed = client.identities.modify(identity_id=made.id, name="Ada L.")
        assert (changed.name, changed.agent_ids) == ("Ada L.", [agent.id])
        upserted = client.identities.upsert(identifier_key="ada-0x", name="Ada", identity_type="user")
        assert upserted.id == made.id
        properties = [{"key": "plan", "value": "free", "type": "string"}]
        client.identities.properties.upsert(identity_id=made.id, request=properties)
        shown = client.identities.retrieve(identity_id=made.id)
        assert [(each.key, each.value) for each in shown.properties] == [("plan", "free")]
        assert [each.id for each in client.identities.list(identifier_key="ada-0x")] == [made.id]
        assert client.identities.count() >= 1
    finally:
        client.identities.delete(identity_id=made.id)


def test_an_agent_is_looked_after_and_shows_its_group(client: Any) -> None:
    agent = client.agents.create(name="main0x", enable_sleeptime=True)
    try:
        group = client.agents.retrieve(agent_id=agent.id).multi_agent_group
        assert (group.manager_type, group.manager_agent_id) == ("sleeptime", agent.id)
        assert [each.id for each in client.agents.groups.list(agent_id=group.agent_ids[0])] == [group.id]
        config = {"manager_type": "sleeptime", "sleeptime_agent_frequency": 2}
        changed = client.groups.modify(group_id=group.id, manager_config=config)
        assert changed.sleeptime_agent_frequency == 2
        hello = [{"role": "user", "content": "Hello [[say:Hi.]]"}]
        assert len(client.agents.messages.create(agent_id=agent.id, messages=hello).usage.run_ids) == 1
        assert not client.agents.messages.create(agent_id=agent.id, messages=hello).usage.run_ids
    finally:
        client.agents.delete(agent_id=agent.id)


def test_a_group_discusses_a_message(client: Any, make_agent: MakeAgent) -> None:
    agents = [make_agent(name=name).id for name in ("one", "two")]
    group = client.groups.create(agent_ids=agents, description="a team")
    try:
        assert client.groups.retrieve(group_id=group.id).manager_type == "round_robin"
        assert group.id in [each.id for each in client.groups.list()]
        hello = [{"role": "user", "content": "Hello [[say:Hi.]] [[no_reasoning]]"}]
        answer = client.groups.messages.create(group_id=group.id, messages=hello)
        said = [each.content for each in answer.messages if each.message_type == "assistant_message"]
        assert said == ["Hi.", "You said: one: Hi."]
        streamed = list(client.groups.messages.create_stream(group_id=group.id, messages=hello))
        assert [each.message_type for each in streamed[-2:]] == ["stop_reason", "usage_statistics"]
        listed = client.groups.messages.list(group_id=group.id, limit=50)
        assert "Hi." in [getattr(each, "content", None) for each in listed]
        client.groups.messages.reset(group_id=group.id)
    finally:
        client.groups.delete(group_id=group.id)
