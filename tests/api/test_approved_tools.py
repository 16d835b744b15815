"""An approval is for one tool: the one that was asked about. Any other tool under its name is refused."""

from __future__ import annotations

from typing import Any

import pytest

from .resources import Served

pytestmark = pytest.mark.slow

Json = dict[str, Any]
ASK = "Call pay with m 'x'"


def source(returns: str, name: str = "pay") -> str:
    described = '"""Pay somebody.\n\n    Args:\n        m (str): Whom.\n    """'
    return f"def {name}(m: str) -> str:\n    {described}\n    {returns}\n"


SAFE = source('return f"SAFE {m}"')
OTHER = source('return f"OTHER {m}"')
TELLS = source("import os; return f\"{os.environ.get('TARGET')} {m}\"")


class Pending:
    """An agent whose call waits for approval."""

    def __init__(self, served: Served, agent: Json, tool: Json, run_id: str, call_id: str) -> None:
        self.served = served
        self.agent_id: str = agent["id"]
        self.tool_id: str = tool["id"]
        self.run_id = run_id
        self.call_id = call_id

    def answer(self, *, approve: bool = True, **request: Any) -> Json:
        decision = {"type": "approval", "tool_call_id": self.call_id, "approve": approve}
        return {"messages": [{"type": "approval", "approvals": [decision]}], **request}

    @property
    def messages(self) -> str:
        return f"/v1/agents/{self.agent_id}/messages"

    async def approve(self, **request: Any) -> Json:
        """What the approved call returned."""
        answer = await self.served.ok("POST", self.messages, self.answer(**request))
        return next(each for each in answer["messages"] if each["message_type"] == "tool_return_message")

    async def refusal(self) -> str:
        return await self.served.refused(409, "POST", self.messages, self.answer())

    async def check_denial_works(self) -> None:
        denied = await self.served.ok("POST", self.messages, self.answer(approve=False))
        assert "denied" in denied["messages"][0]["tool_return"]
        assert denied["stop_reason"]["stop_reason"] == "end_turn"

    async def check_refused(self, because: str) -> None:
        assert because in await self.refusal()
        await self.check_denial_works()

    async def set_secrets(self, **secrets: str) -> None:
        await self.served.ok("PATCH", f"/v1/agents/{self.agent_id}", {"secrets": secrets})

    async def edit_tool(self, **fields: Any) -> None:
        await self.served.ok("PATCH", f"/v1/tools/{self.tool_id}", fields)


async def pending(served: Served, code: str = SAFE, **fields: Any) -> Pending:
    tool = await served.create_tool(code, default_requires_approval=True)
    agent = await served.create(model="holdfast/offline", include_base_tools=False, tool_ids=[tool["id"]], **fields)
    asked = await served.ok("POST", f"/v1/agents/{agent['id']}/messages", {"input": ASK})
    request = asked["messages"][-1]
    assert request["message_type"] == "approval_request_message"
    return Pending(served, agent, tool, request["run_id"], request["tool_calls"][0]["tool_call_id"])


async def test_the_tool_that_was_asked_about_runs_when_nothing_has_changed(served: Served) -> None:
    asked = await pending(served)
    assert (await asked.approve())["tool_return"] == "SAFE x"


async def test_a_tool_that_was_deleted_and_made_again_under_its_name_does_not_run(served: Served) -> None:
    asked = await pending(served)
    await served.ok("DELETE", f"/v1/tools/{asked.tool_id}")
    other = await served.create_tool(OTHER, default_requires_approval=True)
    await served.ok("PATCH", f"/v1/agents/{asked.agent_id}/tools/attach/{other['id']}")
    await asked.check_refused("another tool")


async def test_a_tool_that_was_made_again_with_the_same_source_is_another_tool(served: Served) -> None:
    asked = await pending(served)
    await served.ok("DELETE", f"/v1/tools/{asked.tool_id}")
    same = await served.create_tool(SAFE, default_requires_approval=True)
    await served.ok("PATCH", f"/v1/agents/{asked.agent_id}/tools/attach/{same['id']}")
    await asked.check_refused("another tool")


@pytest.mark.parametrize(
    "fields",
    [
        {"source_code": OTHER},
        {"description": "Harmless."},
        {"pip_requirements": [{"name": "other"}]},
        {"npm_requirements": [{"name": "other"}]},
        {"tags": ["retry-safe"]},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_an_edited_tool_does_not_run_under_an_earlier_approval(served: Served, fields: Json) -> None:
    asked = await pending(served)
    await asked.edit_tool(**fields)
    await asked.check_refused("was changed after approval was asked")


async def test_a_tool_that_was_edited_and_edited_back_does_not_run_under_an_earlier_approval(served: Served) -> None:
    asked = await pending(served)
    await asked.edit_tool(source_code=OTHER)
    await asked.edit_tool(source_code=SAFE)
    await asked.check_refused("was changed after approval was asked")


async def test_what_does_not_change_what_runs_does_not_spoil_an_approval(served: Served) -> None:
    asked = await pending(served)
    await asked.edit_tool(return_char_limit=1_000, metadata={"owner": "ada"}, default_requires_approval=False)
    assert (await asked.approve())["tool_return"] == "SAFE x"


@pytest.mark.parametrize(
    "secrets", [{}, {"TARGET": "good", "MORE": "1"}, {"OTHER": "good"}], ids=["gone", "more", "renamed"]
)
async def test_a_tool_that_would_get_other_secrets_does_not_run_under_an_earlier_approval(
    served: Served, secrets: dict[str, str]
) -> None:
    asked = await pending(served, TELLS, secrets={"TARGET": "good"})
    await asked.set_secrets(**secrets)
    await asked.check_refused("secrets")


async def test_a_tool_that_was_deleted_and_not_made_again_is_not_found_and_nothing_runs(served: Served) -> None:
    asked = await pending(served)
    await served.ok("DELETE", f"/v1/tools/{asked.tool_id}")
    returned = await asked.approve()
    assert (returned["status"], returned["tool_return"]) == ("error", "Tool not found")


@pytest.mark.parametrize("also_deleted", [False, True], ids=["attached", "deleted"])
async def test_a_cancel_withdraws_the_call_whatever_became_of_its_tool(served: Served, also_deleted: bool) -> None:
    asked = await pending(served)
    if also_deleted:
        await served.ok("DELETE", f"/v1/tools/{asked.tool_id}")
    else:
        await asked.edit_tool(source_code=OTHER)
    await served.ok("POST", f"{asked.messages}/cancel", {"run_ids": [asked.run_id]})
    assert await served.ok("GET", "/v1/approvals/") == []


async def test_a_client_tool_of_the_same_name_does_not_hide_the_approved_tool(served: Served) -> None:
    asked = await pending(served)
    hiding: list[Json] = [{"name": "pay", "description": "Pay.", "parameters": {"type": "object", "properties": {}}}]
    assert (await asked.approve(client_tools=hiding))["tool_return"] == "SAFE x"


async def test_a_client_tool_of_the_same_name_does_not_hide_a_call_that_waited_with_the_approved_one(
    served: Served,
) -> None:
    dice = await served.create_tool(source('return f"DICE {m}"', "dice"))
    tool = await served.create_tool(SAFE, default_requires_approval=True)
    agent = await served.create(model="holdfast/offline", include_base_tools=False, tool_ids=[tool["id"], dice["id"]])
    await served.ok("PATCH", f"/v1/agents/{agent['id']}", {"parallel_tool_calls": True})
    path = f"/v1/agents/{agent['id']}/messages"
    asked = await served.ok("POST", path, {"input": '[[call:pay {"m": "x"}]] [[call:dice {"m": "y"}]]'})
    call_id = asked["messages"][-1]["tool_calls"][0]["tool_call_id"]
    answer = Pending(served, agent, tool, "", call_id).answer(client_tools=[{"name": "dice"}, {"name": "pay"}])
    (returned,) = [
        each
        for each in (await served.ok("POST", path, answer))["messages"]
        if each["message_type"] == "tool_return_message"
    ]
    assert [each["tool_return"] for each in returned["tool_returns"]] == ["SAFE x", "DICE y"]


async def test_in_a_new_message_a_client_tool_takes_the_place_of_a_tool_that_needs_approval(served: Served) -> None:
    tool = await served.create_tool(SAFE, default_requires_approval=True)
    agent = await served.create(model="holdfast/offline", include_base_tools=False, tool_ids=[tool["id"]])
    path = f"/v1/agents/{agent['id']}/messages"
    schema = {"type": "object", "properties": {"m": {"type": "string"}}, "required": ["m"]}
    asked = await served.ok("POST", path, {"input": ASK, "client_tools": [{"name": "pay", "parameters": schema}]})
    call_id = asked["messages"][-1]["tool_calls"][0]["tool_call_id"]
    (waiting,) = await served.ok("GET", "/v1/approvals/")
    assert waiting["tool_calls"][0]["client"] is True
    answer = Pending(served, agent, tool, "", call_id).answer()
    assert "must be answered with a tool return" in await served.refused(400, "POST", path, answer)


async def told_of_changed_secrets(asked: Pending) -> list[Any]:
    """What each place tells: the list, the agent, the explanation of the run."""
    served, include = asked.served, "agent.pending_approval"
    (waiting,) = await served.ok("GET", "/v1/approvals/")
    agent = await served.ok("GET", f"/v1/agents/{asked.agent_id}", include=include)
    why = await served.ok("GET", f"/v1/runs/{asked.run_id}/why")
    assert ("TARGET" in why["summary"]) == bool(why["changed_secrets"])
    return [waiting["changed_secrets"], agent["pending_approval"].get("changed_secrets", []), why["changed_secrets"]]


async def test_an_approver_is_told_of_secrets_whose_value_was_swapped(served: Served) -> None:
    asked = await pending(served, TELLS, secrets={"TARGET": "good", "OTHER": "1"})
    assert await told_of_changed_secrets(asked) == [[], [], []]
    await asked.set_secrets(TARGET="evil", OTHER="1")
    assert await told_of_changed_secrets(asked) == [["TARGET"], ["TARGET"], ["TARGET"]]
    assert (await asked.approve())["tool_return"] == "evil x"


async def test_writing_the_same_value_again_is_no_change_of_a_secret(served: Served) -> None:
    asked = await pending(served, TELLS, secrets={"TARGET": "good"})
    await asked.set_secrets(TARGET="good")
    assert await told_of_changed_secrets(asked) == [[], [], []]


async def test_what_a_hold_remembers_of_a_secret_is_not_its_value(served: Served) -> None:
    await pending(served, TELLS, secrets={"TARGET": "a-very-secret-value"})
    assert "a-very-secret-value" not in str(await served.ok("GET", "/v1/approvals/"))
