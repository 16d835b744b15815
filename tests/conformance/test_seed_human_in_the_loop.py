"""A person in the loop, as an application with the blocking client goes about it: ask, answer, look, go on."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Generator, Iterable
from typing import Any

import httpx
import pytest
from letta_client import APIError, Letta

from tests.conformance.answers import answer, approval, returned
from tests.conformance.modes import Json
from tests.conformance.receiver import Receiver
from tests.conformance.vendors import Vendor, with_every_vendor
from tests.serving import ServerProcess

pytestmark = with_every_vendor

ASK = "Trigger secret_code for 'the back door'"
ASK_FOUR = (
    "Go ahead. "
    + " ".join(f'[[call:secret_code {{"input_text": "{whose}"}}]]' for whose in ("ada", "bob", "cyd"))
    + ' [[call:roll_dice {"num_sides": 16}]]'
)
THANKS = [{"role": "user", "content": "Much obliged for that code.", "otid": str(uuid.uuid4())}]
CODE = "4711-0815"
BROKEN = "[[error:server@2]] [[message:TEST: broken on purpose]]"
Answer = Callable[[str], list[Json]]


@pytest.fixture
def sync(server: ServerProcess) -> Generator[Any]:
    """Untyped on purpose: an application reads whatever attribute a message happens to have."""
    with server.client(max_retries=0, http_client=httpx.Client(verify=False, timeout=60)) as client:
        yield client


@pytest.fixture
def agent(sync: Letta, vendor: Vendor, tool_ids: dict[str, str]) -> Generator[str]:
    made = sync.agents.create(
        name="guarded",
        agent_type="letta_v1_agent",
        model=vendor.model,
        include_base_tools=False,
        include_base_tool_rules=False,
        tool_ids=[tool_ids["secret_code"], tool_ids["roll_dice"]],
        tool_rules=[],
    )
    sync.agents.update(agent_id=made.id, parallel_tool_calls=True)
    yield made.id
    sync.agents.delete(agent_id=made.id)


def yes(call_id: str) -> list[Json]:
    return answer([approval(call_id, True)])


def no(call_id: str) -> list[Json]:
    return answer([approval(call_id, False, f"there is no need, it is {CODE}")])


def mine(call_id: str) -> list[Json]:
    return answer([returned(call_id, CODE)])


def ask(sync: Any, agent: str, said: str = ASK) -> Any:
    """The answer that ends in an approval request."""
    asked = sync.agents.messages.create(agent_id=agent, messages=[{"role": "user", "content": said}])
    assert asked.messages[-1].message_type == "approval_request_message"
    return asked


def call_of(asked: Any) -> str:
    return asked.messages[-1].tool_call.tool_call_id


def stream(sync: Any, agent: str, messages: list[Any], *, tokens: bool = True) -> list[Any]:
    return list(gathered(sync.agents.messages.stream(agent_id=agent, messages=messages, stream_tokens=tokens)))


def gathered(chunks: Iterable[Any]) -> Iterable[Any]:
    """Neighbouring chunks of one type become one message; pings are for the connection, not for us."""
    current: Any = None
    for chunk in chunks:
        if chunk.message_type == "ping":
            continue
        if current is not None and current.message_type == chunk.message_type:
            if hasattr(chunk, "content"):
                current.content += chunk.content
            continue
        if current is not None:
            yield current
        current = chunk
    if current is not None:
        yield current


def context(sync: Any, agent: str) -> Any:
    return sync.get(f"/v1/agents/{agent}/context", cast_to=dict[str, Any])


def newest_id(sync: Any, agent: str) -> str:
    return sync.agents.messages.list(agent_id=agent, limit=1).items[0].id


def check_ended(messages: list[Any]) -> None:
    assert [message.message_type for message in messages[-2:]] == ["stop_reason", "usage_statistics"]
    assert messages[-1].total_tokens > 0


# --- what does not fit is refused ---


def test_send_approval_without_pending_request(sync: Any, agent: str) -> None:
    with pytest.raises(APIError, match="No tool call is currently awaiting approval"):
        sync.agents.messages.create(agent_id=agent, messages=yes(str(uuid.uuid4())))


def test_send_user_message_with_pending_request(sync: Any, agent: str) -> None:
    asked = ask(sync, agent)

    with pytest.raises(APIError, match="Please approve or deny the pending request before continuing"):
        sync.agents.messages.create(agent_id=agent, messages=[{"role": "user", "content": "And?"}])

    sync.agents.messages.create(agent_id=agent, messages=yes(call_of(asked)))


def test_send_approval_message_with_incorrect_request_id(sync: Any, agent: str) -> None:
    asked = ask(sync, agent)

    with pytest.raises(APIError, match="Invalid tool call IDs"):
        sync.agents.messages.create(agent_id=agent, messages=yes(str(uuid.uuid4())))

    sync.agents.messages.create(agent_id=agent, messages=yes(call_of(asked)))


# --- asking ---


def test_invoke_approval_request(sync: Any, agent: str) -> None:
    request = ask(sync, agent).messages[-1]

    assert request.tool_call.name == "secret_code"
    assert [call.name for call in request.tool_calls] == ["secret_code"]
    assert json.loads(request.tool_call.arguments).keys() == {"input_text"}
    assert context(sync, agent)["num_messages"] > 0
    pending = sync.agents.retrieve(agent_id=agent, include=["agent.pending_approval"]).to_dict()["pending_approval"]
    assert pending["tool_call"]["name"] == "secret_code"
    assert [call["tool_call_id"] for call in pending["tool_calls"]] == [request.tool_call.tool_call_id]

    sync.agents.messages.create(agent_id=agent, messages=yes(request.tool_call.tool_call_id))

    after = sync.agents.retrieve(agent_id=agent, include=["agent.pending_approval"])
    assert after.pending_approval is None


def test_invoke_approval_request_stream(sync: Any, agent: str) -> None:
    messages = stream(sync, agent, [{"role": "user", "content": ASK}])

    assert messages[-3].message_type == "approval_request_message"
    assert messages[-3].tool_call.name == "secret_code"
    check_ended(messages)
    assert context(sync, agent)["num_messages"] > 0
    sync.agents.messages.create(agent_id=agent, messages=yes(messages[-3].tool_call.tool_call_id))


def test_invoke_tool_after_turning_off_requires_approval(sync: Any, agent: str) -> None:
    stream(sync, agent, yes(call_of(ask(sync, agent))))
    sync.agents.tools.update_approval(agent_id=agent, tool_name="secret_code", body_requires_approval=False)

    messages = stream(sync, agent, [{"role": "user", "content": ASK}])

    assert [message.message_type for message in messages] == [
        "reasoning_message",
        "tool_call_message",
        "tool_return_message",
        "reasoning_message",
        "assistant_message",
        "stop_reason",
        "usage_statistics",
    ]


# --- answering, in each of the three ways ---


def test_approve_tool_call_request(sync: Any, agent: str) -> None:
    call = call_of(ask(sync, agent))

    messages = stream(sync, agent, yes(call))

    assert messages[0].message_type == "tool_return_message"
    assert (messages[0].tool_call_id, messages[0].status) == (call, "success")
    check_ended(messages)


def test_deny_tool_call_request(sync: Any, agent: str) -> None:
    messages = stream(sync, agent, no(call_of(ask(sync, agent))), tokens=False)

    (spoken,) = [message for message in messages if message.message_type == "assistant_message"]
    assert CODE in spoken.content
    check_ended(messages)


def test_client_side_tool_call_request(sync: Any, agent: str) -> None:
    messages = stream(sync, agent, mine(call_of(ask(sync, agent))), tokens=False)

    (spoken,) = [message for message in messages if message.message_type == "assistant_message"]
    assert CODE in spoken.content
    check_ended(messages)


def fetch_after_answer(sync: Any, agent: str, reply: Answer) -> list[Any]:
    """What a client that remembers the last id it saw reads after its answer."""
    cursor = newest_id(sync, agent)
    asked = ask(sync, agent)
    listed = sync.agents.messages.list(agent_id=agent, after=cursor).items
    assert listed[0].message_type == "user_message"
    assert listed[-1].message_type == "approval_request_message"
    assert listed[-1].tool_call.tool_call_id == call_of(asked)
    sync.agents.messages.create(agent_id=agent, messages=reply(call_of(asked)))
    fetched = sync.agents.messages.list(agent_id=agent, after=asked.messages[0].id).items
    assert [message.message_type for message in fetched[:2]] == ["approval_response_message", "tool_return_message"]
    assert fetched[0].approvals[0].tool_call_id == fetched[1].tool_call_id == call_of(asked)
    return fetched


def test_approve_cursor_fetch(sync: Any, agent: str) -> None:
    response, back, *_ = fetch_after_answer(sync, agent, yes)

    assert response.approval_request_id == back.tool_call_id
    assert response.approve is True
    assert response.approvals[0].approve is True
    assert back.status == "success"


def test_deny_cursor_fetch(sync: Any, agent: str) -> None:
    response, back, *_ = fetch_after_answer(sync, agent, no)

    assert response.approvals[0].approve is False
    assert response.approvals[0].reason == f"there is no need, it is {CODE}"
    assert back.status == "error"


def test_client_side_tool_call_cursor_fetch(sync: Any, agent: str) -> None:
    response, back, *_ = fetch_after_answer(sync, agent, mine)

    given = response.approvals[0]
    assert (given.type, given.tool_return, given.status) == ("tool", CODE, "success")
    assert (back.tool_return, back.status) == (CODE, "success")


def check_context(sync: Any, agent: str, reply: Answer) -> None:
    stream(sync, agent, reply(call_of(ask(sync, agent))))
    overview = context(sync, agent)
    listed = sync.agents.messages.list(agent_id=agent).items
    assert overview["num_messages"] == len({message.id for message in listed})


def test_approve_with_context_check(sync: Any, agent: str) -> None:
    check_context(sync, agent, yes)


def test_deny_with_context_check(sync: Any, agent: str) -> None:
    check_context(sync, agent, no)


def test_client_side_tool_call_with_context_check(sync: Any, agent: str) -> None:
    check_context(sync, agent, mine)


def check_follow_up(sync: Any, agent: str, reply: Answer, *more: Json) -> None:
    sync.agents.messages.create(agent_id=agent, messages=[*reply(call_of(ask(sync, agent))), *more])
    messages = stream(sync, agent, THANKS)
    assert [message.message_type for message in messages[:2]] == ["reasoning_message", "assistant_message"]
    assert messages[1].content == f"You said: {THANKS[0]['content']}"
    check_ended(messages)


def test_approve_and_follow_up(sync: Any, agent: str) -> None:
    check_follow_up(sync, agent, yes)


def test_deny_and_follow_up(sync: Any, agent: str) -> None:
    check_follow_up(sync, agent, no)


def test_client_side_tool_call_and_follow_up(sync: Any, agent: str) -> None:
    check_follow_up(sync, agent, mine)


REMARK: Json = {"type": "message", "role": "user", "content": "Letters and digits will do."}


def test_approve_with_user_message(sync: Any, agent: str) -> None:
    check_follow_up(sync, agent, yes, REMARK)


def test_deny_with_user_message(sync: Any, agent: str) -> None:
    check_follow_up(sync, agent, lambda call: answer([approval(call, False)]), REMARK)


def test_client_side_tool_call_with_user_message(sync: Any, agent: str) -> None:
    check_follow_up(sync, agent, mine, REMARK)


def check_error_after_answer(sync: Any, agent: str, reply: Answer) -> None:
    call = call_of(ask(sync, agent, f"{ASK} {BROKEN}"))
    with pytest.raises(APIError, match="TEST: broken on purpose"):
        stream(sync, agent, reply(call))
    messages = stream(sync, agent, THANKS, tokens=False)
    assert [message.message_type for message in messages] == [
        "reasoning_message",
        "assistant_message",
        "stop_reason",
        "usage_statistics",
    ]


def test_approve_and_follow_up_with_error(sync: Any, agent: str) -> None:
    check_error_after_answer(sync, agent, yes)


def test_deny_and_follow_up_with_error(sync: Any, agent: str) -> None:
    check_error_after_answer(sync, agent, no)


def test_client_side_tool_call_and_follow_up_with_error(sync: Any, agent: str) -> None:
    check_error_after_answer(sync, agent, mine)


def test_parallel_tool_calling(sync: Any, agent: str) -> None:
    cursor = newest_id(sync, agent)
    asked = ask(sync, agent, ASK_FOUR)
    free, request = asked.messages[-2:]
    assert [call.name for call in free.tool_calls] == ["roll_dice"]
    assert [json.loads(call.arguments)["input_text"] for call in request.tool_calls] == ["ada", "bob", "cyd"]
    assert context(sync, agent)["num_messages"] > 0
    dice = free.tool_calls[0].tool_call_id
    ada, bob, cyd = [call.tool_call_id for call in request.tool_calls]

    mixed = answer([approval(ada, True), approval(bob, False), returned(cyd, CODE)])
    answered = sync.agents.messages.create(agent_id=agent, messages=mixed)

    assert [message.message_type for message in answered.messages] == [
        "tool_return_message",
        "reasoning_message",
        "assistant_message",
    ]
    statuses = {back.tool_call_id: back.status for back in answered.messages[0].tool_returns}
    assert statuses == {ada: "success", bob: "error", cyd: "success", dice: "success"}
    assert context(sync, agent)["num_messages"] > 0
    listed = sync.agents.messages.list(agent_id=agent, after=cursor).items
    assert [message.message_type for message in listed] == [
        "user_message",
        "reasoning_message",
        "assistant_message",
        "tool_call_message",
        "approval_request_message",
        "approval_response_message",
        "tool_return_message",
        "reasoning_message",
        "assistant_message",
    ]
    messages = stream(sync, agent, THANKS)
    assert len(messages) == 4
    check_ended(messages)


def test_agent_records_last_stop_reason_after_approval_flow(sync: Any, agent: str) -> None:
    def last() -> Any:
        return sync.agents.retrieve(agent_id=agent).last_stop_reason

    assert last() is None
    asked = ask(sync, agent)
    assert last() == "requires_approval"
    sync.agents.messages.create(agent_id=agent, messages=yes(call_of(asked)))
    assert last() == "end_turn"
    sync.agents.messages.create(agent_id=agent, messages=THANKS)
    assert last() == "end_turn"


def test_approve_with_cancellation(sync: Any, agent: str) -> None:
    call = call_of(ask(sync, agent, f"{ASK} [[delay:2@2]]"))
    chunks = iter(sync.agents.messages.stream(agent_id=agent, messages=yes(call), stream_tokens=True))
    first = [next(chunks), next(chunks)]
    canceller = threading.Thread(target=lambda: sync.agents.messages.cancel(agent_id=agent))
    canceller.start()
    messages = [*first, *chunks]
    canceller.join(timeout=60)

    assert [message.message_type for message in first] == ["ping", "tool_return_message"]
    assert [message.stop_reason for message in messages if message.message_type == "stop_reason"] == ["cancelled"]
    assert sync.runs.list(agent_ids=[agent]).items[0].status == "cancelled"
    assert sync.agents.messages.create(agent_id=agent, messages=THANKS).stop_reason.stop_reason == "end_turn"


async def test_approve_with_cancellation_of_the_approved_tool(
    sync: Any, vendor: Vendor, receiver: Receiver, tool_ids: dict[str, str]
) -> None:
    """The same while the tool itself is at work: it is stopped, and its return says so."""
    made = sync.agents.create(
        name="ringer", model=vendor.model, include_base_tools=False, tool_ids=[tool_ids["ring_gate"]]
    )
    call = call_of(ask(sync, made.id, f'[[call:ring_gate {{"url": "{receiver.url}", "seconds": 60}}]]'))
    run = sync.agents.messages.create_async(agent_id=made.id, messages=yes(call))
    await receiver.until(1)

    assert sync.agents.messages.cancel(agent_id=made.id) == {run.id: "cancelled"}

    listed = sync.runs.messages.list(run_id=run.id).items
    assert [message.message_type for message in listed] == ["approval_response_message", "tool_return_message"]
    assert listed[-1].status == "error"
    assert sync.agents.messages.create(agent_id=made.id, messages=THANKS).stop_reason.stop_reason == "end_turn"
