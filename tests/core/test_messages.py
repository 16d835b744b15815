"""Messages and their parts."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.messages import (
    AnyPart,
    Approve,
    ClientReturn,
    CompactionStats,
    Deny,
    Image,
    Message,
    OmittedReasoning,
    Parts,
    Reasoning,
    RedactedReasoning,
    Role,
    Summary,
    Text,
    ToolCall,
    ToolReturn,
    content_text,
    image_of,
    readable_image,
    text_of,
    wire_message_count,
)

PARTS: list[AnyPart] = [
    Text("ü", "signed"),
    Image("image/png", "AA==", "low"),
    Reasoning("hm", "signed"),
    RedactedReasoning("xx"),
    OmittedReasoning(),
    ToolCall("c1", "note", '{"a":1}'),
    ToolReturn("c1", "note", "error", (Text("a"), Image("image/png", "AA==")), ("out",), ()),
    Approve("c1", "fine"),
    Deny("c1"),
    ClientReturn("c1", "snap", "error"),
    Summary("before", CompactionStats("all", 10, 5, 2, None, 3), shown=True),
]


def row(*parts: AnyPart, role: Role = "assistant") -> Message:
    return Message(id="m", role=role, parts=parts, created_us=0)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_a_part_survives_a_round_trip_through_json(part: AnyPart) -> None:
    assert msgspec.json.decode(msgspec.json.encode((part,)), type=Parts) == (part,)


def test_a_row_knows_its_calls_returns_and_decisions() -> None:
    everything = row(*PARTS)
    assert everything.calls == (PARTS[5],)
    assert everything.returns == (PARTS[6],)
    assert everything.decisions == tuple(PARTS[7:10])


def test_an_approval_row_with_calls_asks_and_one_without_answers() -> None:
    assert row(ToolCall("c1", "note", "{}"), role="approval").is_approval_request
    assert not row(Approve("c1"), role="approval").is_approval_request
    assert not row(ToolCall("c1", "note", "{}"), role="assistant").is_approval_request


def test_the_text_of_a_row_is_what_was_said_not_what_was_thought() -> None:
    assert text_of(PARTS) == "ü\nbefore"


def test_images_in_a_tools_answer_become_a_placeholder() -> None:
    assert content_text("plain") == "plain"
    assert content_text((Text("see"), Image("image/png", "AA=="))) == "see [Image omitted]"


def test_a_row_is_shown_as_one_message_for_each_run_of_like_parts_and_one_for_all_its_calls() -> None:
    call = ToolCall("c1", "note", "{}")
    assert wire_message_count(row(Text("a"), Text("b"))) == 1
    assert wire_message_count(row(Reasoning("a"), Reasoning("b"), Text("c"), call, ToolCall("c2", "note", "{}"))) == 3
    assert wire_message_count(row(RedactedReasoning("x"), RedactedReasoning("y"), OmittedReasoning())) == 3
    assert wire_message_count(row(Text("a"), call, role="approval")) == 2
    assert wire_message_count(row(Approve("c1"), Deny("c2"), role="approval")) == 1
    assert wire_message_count(row(Text("a"), Image("image/png", "AA=="), role="user")) == 1


def test_an_image_is_held_as_vendors_spell_it() -> None:
    assert readable_image("image/png", "iVBORw==", "low") == Image("image/png", "iVBORw==", "low")
    assert readable_image(" IMAGE/JPG ", "/9\nj/\r\n4A") == Image("image/jpeg", "/9j/4A==")


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n...", "image/png"),
        (b"\xff\xd8\xff\xe0...", "image/jpeg"),
        (b"GIF89a...", "image/gif"),
        (b"RIFF\x04\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\x04\0\0\0WAVEfmt ", "image/tiff"),
        (b"something else", "image/tiff"),
    ],
)
def test_what_an_image_is_called_does_not_hide_what_it_is(content: bytes, media_type: str) -> None:
    """Vendors look at the bytes, and refuse an image whose type says otherwise."""
    found = image_of("image/tiff", content)
    assert found is not None
    assert found.media_type == media_type
    assert readable_image("image/tiff", found.data) == found


@pytest.mark.parametrize(
    ("media_type", "data"),
    [
        ("image/png", "!"),
        ("image/png", "ü"),
        ("image/png", " "),
        ("text/html", "iVBORw=="),
        *((f"image/{kind}", "bm90cG5n") for kind in ("png", "jpeg", "jpg", "gif", "webp")),  # notpng
    ],
)
def test_an_image_that_nobody_could_read_is_none(media_type: str, data: str) -> None:
    assert readable_image(media_type, data) is None
