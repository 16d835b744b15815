from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from holdfast.wire.conversations import (
    CompactionRequest,
    ConversationCompactionRequest,
    ConversationRecompileRequest,
    CreateConversation,
    ForkConversation,
    ResetMessagesRequest,
    UpdateConversation,
)
from holdfast.wire.requests import (
    ApprovalCreate,
    ApprovalReturn,
    CancelAgentRunRequest,
    ConversationMessageRequest,
    LettaAsyncRequest,
    LettaMessageRequest,
    LettaRequest,
    LettaStreamingRequest,
    MessageCreate,
    RetrieveStreamRequest,
    ToolReturn,
    ToolReturnCreate,
)

HELLO = {"role": "user", "content": "hello"}
APPROVAL = {"type": "approval", "approvals": [{"type": "approval", "tool_call_id": "c", "approve": True}]}
RETURN = {"tool_call_id": "c", "tool_return": "42", "status": "success"}


def refusal(model: type[BaseModel], body: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    return str(refused.value)


def test_a_request_has_the_documented_defaults() -> None:
    request = LettaMessageRequest.model_validate({"input": "hi"})
    assert request.model_dump() == {
        "messages": None,
        "input": "hi",
        "max_steps": 50,
        "include_return_message_types": None,
        "client_tools": None,
        "client_skills": None,
        "override_model": None,
        "override_system": None,
        "include_compaction_messages": False,
        "return_logprobs": False,
        "top_logprobs": None,
        "return_token_ids": False,
        "use_assistant_message": True,
        "assistant_message_tool_name": "send_message",
        "assistant_message_tool_kwarg": "message",
        "enable_thinking": True,
        "streaming": False,
        "stream_tokens": False,
        "include_pings": True,
        "background": False,
    }


def test_conversations_stream_unless_told_otherwise_and_agents_do_not() -> None:
    assert ConversationMessageRequest.model_validate({"input": "hi"}).streaming is True
    assert LettaMessageRequest.model_validate({"input": "hi"}).streaming is False


@pytest.mark.parametrize("body", [{}, {"input": "hi", "messages": [HELLO]}, {"messages": None, "input": None}])
def test_exactly_one_of_messages_and_input_is_wanted(body: dict[str, Any]) -> None:
    assert "Exactly one of `messages` and `input`" in refusal(LettaRequest, body)


def test_an_empty_list_of_messages_is_refused() -> None:
    assert "Messages must not be empty" in refusal(LettaRequest, {"messages": []})


@pytest.mark.parametrize("option", [{"stream_tokens": True}, {"background": True}, {"include_pings": False}])
def test_stream_options_without_a_stream_are_refused_on_the_main_route_only(option: dict[str, Any]) -> None:
    body = {"input": "hi", "streaming": False} | option
    assert "Streaming options set without streaming enabled." in refusal(LettaMessageRequest, body)
    assert LettaMessageRequest.model_validate(body | {"streaming": True}).streaming
    assert not LettaStreamingRequest.model_validate(body).streaming
    assert not ConversationMessageRequest.model_validate(body).streaming


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (HELLO, MessageCreate),
        (HELLO | {"type": None}, MessageCreate),
        (HELLO | {"type": "message"}, MessageCreate),
        ({"approve": True}, ApprovalCreate),
        ({"approval_request_id": "message-1"}, ApprovalCreate),
        (APPROVAL, ApprovalCreate),
        ({"type": "tool_return", "tool_returns": [RETURN]}, ToolReturnCreate),
        (MessageCreate(role="user", content="hello"), MessageCreate),
        (ApprovalCreate(approve=True), ApprovalCreate),
    ],
)
def test_the_kind_of_an_item_is_its_type_or_is_told_from_its_keys(item: Any, kind: type[BaseModel]) -> None:
    (read,) = LettaRequest.model_validate({"messages": [item]}).messages or []
    assert type(read) is kind


@pytest.mark.parametrize("item", [{"approvals": []}, {"tool_returns": [RETURN]}, {"type": "poem"}, "hello", 7])
def test_an_item_of_no_known_kind_is_refused(item: Any) -> None:
    refusal(LettaRequest, {"messages": [item]})


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"type": "approval", "tool_call_id": "c", "approve": False}, ApprovalReturn),
        ({"tool_call_id": "c", "approve": False}, ApprovalReturn),
        (RETURN | {"type": "tool"}, ToolReturn),
        (RETURN, ToolReturn),
        (ToolReturn(tool_call_id="c", tool_return="42", status="success"), ToolReturn),
    ],
)
def test_the_kind_of_an_answer_is_its_type_or_is_told_from_its_keys(answer: Any, kind: type[BaseModel]) -> None:
    (read,) = ApprovalCreate.model_validate({"approvals": [answer]}).approvals or []
    assert type(read) is kind


@pytest.mark.parametrize("answer", ["yes", {"type": "poem"}, {}])
def test_an_answer_of_no_known_kind_is_refused(answer: Any) -> None:
    refusal(ApprovalCreate, {"approvals": [answer]})


def test_only_the_first_item_may_be_an_answer() -> None:
    assert LettaRequest.model_validate({"messages": [APPROVAL, HELLO, HELLO]}).messages
    for late in (APPROVAL, {"type": "tool_return", "tool_returns": [RETURN]}):
        assert "Only the first of `messages`" in refusal(LettaRequest, {"messages": [HELLO, late]})


def test_system_is_another_name_of_override_system() -> None:
    assert LettaRequest.model_validate({"input": "x", "system": "be brief"}).override_system == "be brief"
    assert LettaRequest.model_validate({"input": "x", "override_system": "be brief"}).override_system == "be brief"


def test_the_types_to_return_are_a_set_and_unknown_types_are_refused() -> None:
    request = LettaRequest.model_validate({"input": "x", "include_return_message_types": ["assistant_message"]})
    assert request.include_types == {"assistant_message"}
    assert LettaRequest.model_validate({"input": "x"}).include_types is None
    refusal(LettaRequest, {"input": "x", "include_return_message_types": ["ping"]})


def test_a_run_keeps_the_four_fields_clients_read_back() -> None:
    body = {"input": "x", "include_return_message_types": ["tool_call_message"], "use_assistant_message": False}
    assert LettaRequest.model_validate(body).request_config() == {
        "use_assistant_message": False,
        "assistant_message_tool_name": "send_message",
        "assistant_message_tool_kwarg": "message",
        "include_return_message_types": ["tool_call_message"],
    }


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (LettaRequest, {"input": "x", "max_steps": 0}),
        (LettaRequest, {"input": "x", "max_steps": 2**40}),
        (LettaRequest, {"messages": [HELLO | {"otid": "o" * 257}]}),
        (LettaRequest, {"messages": [HELLO | {"otid": "a\x00b"}]}),
        (LettaRequest, {"messages": [HELLO] * 1001}),
        (LettaRequest, {"messages": [HELLO | {"role": "tool"}]}),
        (LettaRequest, {"input": [{"type": "poem"}]}),
        (LettaRequest, {"input": "x", "client_tools": [{"name": ""}]}),
        (LettaAsyncRequest, {"input": "x", "callback_url": "file:///etc/passwd"}),
        (LettaAsyncRequest, {"input": "x", "callback_url": "http://a b"}),
        (CancelAgentRunRequest, {"run_ids": ["run"] * 1001}),
        (RetrieveStreamRequest, {"starting_after": -1}),
        (RetrieveStreamRequest, {"starting_after": 2**63}),
        (CompactionRequest, {"compaction_settings": {"mode": "most"}}),
        (CompactionRequest, {"compaction_settings": {"sliding_window_percentage": 0}}),
        (CreateConversation, {"context_window_limit": 0}),
        (CreateConversation, {"summary": "a\x00b"}),
        (UpdateConversation, {"last_message_at": "yesterday"}),
    ],
)
def test_values_out_of_bounds_are_refused(model: type[BaseModel], body: dict[str, Any]) -> None:
    refusal(model, body)


@pytest.mark.parametrize(
    "model",
    [
        CancelAgentRunRequest,
        RetrieveStreamRequest,
        ResetMessagesRequest,
        CompactionRequest,
        ConversationCompactionRequest,
        ConversationRecompileRequest,
        CreateConversation,
        UpdateConversation,
        ForkConversation,
    ],
)
def test_an_empty_body_and_unknown_fields_are_fine_where_nothing_is_required(model: type[BaseModel]) -> None:
    assert model.model_validate({}) == model.model_validate({"something_newer": 1})


def test_a_callback_url_may_be_any_web_address() -> None:
    request = LettaAsyncRequest.model_validate({"input": "x", "callback_url": "https://example.org/hook?a=1"})
    assert request.callback_url == "https://example.org/hook?a=1"


def test_compaction_settings_override_only_what_was_sent() -> None:
    settings = CompactionRequest.model_validate({"compaction_settings": {"mode": "all", "clip_chars": None}})
    assert settings.compaction_settings is not None
    assert settings.compaction_settings.overrides() == {"mode": "all", "clip_chars": None}


def test_an_update_tells_null_from_absent() -> None:
    update = UpdateConversation.model_validate({"summary": None, "archived": True})
    assert update.model_fields_set == {"summary", "archived"}
