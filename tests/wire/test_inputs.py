from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.messages import (
    AnyPart,
    Approve,
    ClientReturn,
    Decision,
    Deny,
    Image,
    OmittedReasoning,
    Part,
    Reasoning,
    RedactedReasoning,
    Text,
)
from holdfast.errors import Invalid
from holdfast.wire.requests import LettaRequest, NewMessage, ParsedInput, UnresolvedImage, input_of, resolve_images

PICTURE = "https://example.org/cat.png"


def parse(*messages: dict[str, Any]) -> ParsedInput:
    return input_of(LettaRequest.model_validate({"messages": list(messages)}))


def said(content: Any, role: str = "user") -> tuple[AnyPart, ...]:
    return parse({"role": role, "content": content}).messages[0].parts


def image(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


# --- messages ---


def test_input_is_short_for_one_user_message() -> None:
    request = LettaRequest.model_validate({"input": "hi"})
    assert input_of(request) == ParsedInput(messages=(NewMessage(role="user", parts=(Text("hi"),)),))
    parts = LettaRequest.model_validate({"input": [text("a"), text("b")]})
    assert input_of(parts).messages[0].parts == (Text("a"), Text("b"))


def test_a_message_keeps_what_the_client_gave() -> None:
    fields = {"otid": "o", "name": "Ann", "sender_id": "s", "group_id": "g", "batch_item_id": "b"}
    assert parse({"role": "system", "content": "hi"} | fields).messages == (
        NewMessage(role="system", parts=(Text("hi"),), **fields),
    )


@pytest.mark.parametrize("content", ["", "  \n", [], [text("")], [text(" "), text("")]])
def test_empty_content_is_refused(content: Any) -> None:
    with pytest.raises(Invalid, match="Message content is empty or invalid"):
        said(content)


@pytest.mark.parametrize("content", ["", []])
def test_empty_input_is_refused(content: Any) -> None:
    with pytest.raises(Invalid, match="Message content is empty or invalid"):
        input_of(LettaRequest.model_validate({"input": content}))


def test_an_empty_text_next_to_something_is_left_out() -> None:
    assert said([text(""), text("a")]) == (Text("a"),)


def test_an_assistant_message_may_carry_reasoning() -> None:
    content = [
        {"type": "reasoning", "is_native": True, "reasoning": "hm", "signature": "s"},
        {"type": "redacted_reasoning", "data": "d"},
        {"type": "omitted_reasoning"},
        {"type": "text", "text": "so", "signature": "t"},
    ]
    assert said(content, "assistant") == (
        Reasoning("hm", "s"),
        RedactedReasoning("d"),
        OmittedReasoning(),
        Text("so", "t"),
    )


def test_reasoning_alone_is_not_a_message() -> None:
    with pytest.raises(Invalid, match="empty or invalid"):
        said([{"type": "reasoning", "is_native": True, "reasoning": "hm"}], "assistant")


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("user", {"type": "reasoning", "is_native": True, "reasoning": "hm"}),
        ("user", {"type": "redacted_reasoning", "data": "d"}),
        ("user", {"type": "omitted_reasoning"}),
        ("user", {"type": "tool_call", "id": "c", "name": "n", "input": {}}),
        ("user", {"type": "tool_return", "tool_call_id": "c", "content": "x", "is_error": False}),
        ("assistant", {"type": "summarized_reasoning", "id": "r", "summary": [{"index": 0, "text": "x"}]}),
        ("assistant", image(type="url", url=PICTURE)),
    ],
)
def test_content_that_does_not_belong_to_the_role_is_refused(role: str, part: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=f"Content of type '{part['type']}' cannot be sent in a message of role '{role}'"):
        said([part], role)


# --- images ---


def test_a_base64_image_is_kept() -> None:
    sent = image(type="base64", media_type="image/png", data="iVBORw==", detail="low")
    assert said([sent]) == (Image("image/png", "iVBORw==", "low"),)


@pytest.mark.parametrize(
    ("media_type", "data"), [("image/png", "not base64!"), ("image/png", ""), ("text/html", "iVBORw==")]
)
def test_an_image_that_vendors_would_refuse_is_refused_before_it_is_stored(media_type: str, data: str) -> None:
    with pytest.raises(Invalid, match=f"{media_type}.* base64"):
        said([image(type="base64", media_type=media_type, data=data)])
    with pytest.raises(Invalid, match="base64"):
        said([image(type="url", url=f"data:{media_type};base64,{data}")])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("data:image/png;base64,iVBORw==", Image("image/png", "iVBORw==")),
        ("DATA:IMAGE/PNG;charset=x;BASE64,iVBORw==", Image("image/png", "iVBORw==")),
        ("data:image/svg+xml,%3Csvg/%3E", Image("image/svg+xml", "PHN2Zy8+")),
    ],
)
def test_a_data_url_is_taken_apart(url: str, expected: Image) -> None:
    assert said([image(type="url", url=url)]) == (expected,)


@pytest.mark.parametrize("url", ["data:", "data:image/png;base64,", "data:text/plain,hi", "data:image/png;base64"])
def test_a_data_url_without_an_image_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="data: URL"):
        said([image(type="url", url=url)])


@pytest.mark.parametrize("url", ["ftp://example.org/a.png", "file:///a.png", "a.png", ""])
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(Invalid, match="Unsupported image URL scheme"):
        said([image(type="url", url=url)])


def test_an_image_of_the_old_file_store_is_refused() -> None:
    with pytest.raises(Invalid, match="'letta'"):
        said([image(type="letta", file_id="file-1")])


def test_web_images_are_marked_until_they_are_fetched() -> None:
    sent = image(type="url", url=PICTURE)
    parsed = parse(
        {
            "type": "tool_return",
            "tool_returns": [
                {"tool_call_id": "a", "tool_return": [text("see"), sent], "status": "error"},
                {"tool_call_id": "b", "tool_return": "plain", "status": "success"},
            ],
        },
        {"role": "user", "content": [text("this"), sent, image(type="url", url=PICTURE + "?2")]},
    )
    assert parsed.image_urls == (PICTURE, PICTURE + "?2")
    one, two = Image("image/png", "one"), Image("image/png", "two")
    resolved = resolve_images(parsed, {PICTURE: one, PICTURE + "?2": two})
    assert resolved.image_urls == ()
    assert resolved.messages[0].parts == (Text("this"), one, two)
    assert resolved.decisions == (
        ClientReturn("a", (Text("see"), one), "error"),
        ClientReturn("b", "plain"),
    )


def test_verdicts_have_no_images_to_resolve() -> None:
    parsed = parse({"type": "approval", "approvals": [{"tool_call_id": "c", "approve": True}]})
    assert resolve_images(parsed, {}) == parsed
    assert resolve_images(parse({"role": "user", "content": "x"}), {}).decisions is None


def test_an_unresolved_image_cannot_be_mistaken_for_a_stored_part() -> None:
    encoded = msgspec.json.encode(UnresolvedImage("", PICTURE))
    assert issubclass(UnresolvedImage, Part)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(encoded, type=AnyPart)


# --- answers ---


def test_a_plain_request_decides_nothing() -> None:
    parsed = parse({"role": "user", "content": "hi"})
    assert (parsed.decisions, parsed.decision_otid) == (None, None)


def test_answers_of_all_kinds_may_be_mixed_and_followed_by_messages() -> None:
    parsed = parse(
        {
            "type": "approval",
            "otid": "a1",
            "approvals": [
                {"type": "approval", "tool_call_id": "c1", "approve": True, "reason": "fine"},
                {"type": "approval", "tool_call_id": "c2", "approve": False, "reason": "too broad"},
                {
                    "type": "tool",
                    "tool_call_id": "c3",
                    "tool_return": "42",
                    "status": "error",
                    "stdout": ["o"],
                    "stderr": ["e"],
                },
            ],
        },
        {"role": "user", "content": "and hurry"},
    )
    assert parsed.decisions == (
        Approve("c1", "fine"),
        Deny("c2", "too broad"),
        ClientReturn("c3", "42", "error", ("o",), ("e",)),
    )
    assert parsed.decision_otid == "a1"
    assert parsed.messages == (NewMessage(role="user", parts=(Text("and hurry"),)),)


@pytest.mark.parametrize(
    ("item", "decision"),
    [
        ({"approve": True, "approval_request_id": "message-1"}, Approve("message-1")),
        ({"approve": False, "approval_request_id": "m", "reason": "no"}, Deny("m", "no")),
        ({"approval_request_id": "m"}, Deny("m")),
        ({"approve": True}, Approve("")),
    ],
)
def test_the_old_form_of_an_approval_is_understood(item: dict[str, Any], decision: Decision) -> None:
    assert parse(item).decisions == (decision,)


def test_the_list_of_approvals_beats_the_old_fields() -> None:
    answer = {"tool_call_id": "c", "approve": True}
    parsed = parse({"type": "approval", "approvals": [answer], "approve": False, "approval_request_id": "m"})
    assert parsed.decisions == (Approve("c"),)


@pytest.mark.parametrize("item", [{"type": "approval"}, {"type": "approval", "approvals": []}])
def test_an_approval_that_decides_nothing_is_still_an_approval(item: dict[str, Any]) -> None:
    assert parse(item).decisions == ()


# --- otids ---


def keyed(*otids: str | None) -> ParsedInput:
    return parse(*({"role": "user", "content": "x", "otid": otid} for otid in otids))


def test_the_request_key_depends_on_every_otid_and_their_order() -> None:
    assert keyed("a", "b").request_key == keyed("a", "b").request_key
    keys = {parsed.request_key for parsed in (keyed("a", "b"), keyed("b", "a"), keyed("a"), keyed("a", "c"))}
    assert len(keys) == 4 and None not in keys
    assert keyed("a", "b").otids == ("a", "b")


def test_an_otid_with_other_content_is_another_request() -> None:
    texts = [
        {"role": "user", "content": "x", "otid": "a"},
        {"role": "user", "content": "y", "otid": "a"},
        {"role": "system", "content": "x", "otid": "a"},
        {"type": "approval", "approvals": [{"tool_call_id": "c", "approve": True}], "otid": "a"},
        {"type": "approval", "approvals": [{"tool_call_id": "c", "approve": False}], "otid": "a"},
    ]
    assert len({parse(item).request_key for item in texts}) == len(texts)
    assert parse(texts[3]).request_key == parse(texts[3]).request_key


@pytest.mark.parametrize("otids", [(None,), ("",), ("a", None)])
def test_a_request_with_an_item_without_otid_is_never_a_repetition(otids: tuple[str | None, ...]) -> None:
    parsed = keyed(*otids)
    assert parsed.request_key is None
    assert parsed.otids == tuple(otid for otid in otids if otid)
    assert [message.otid for message in parsed.messages] == [otid or None for otid in otids]
