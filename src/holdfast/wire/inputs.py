"""From a request to core values. Well-formed requests that make no sense are refused here with a 400."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from holdfast.core.messages import (
    AnyPart,
    Approve,
    ClientReturn,
    Content,
    Decision,
    Deny,
    Image,
    OmittedReasoning,
    Parts,
    Reasoning,
    RedactedReasoning,
    Text,
    readable_image,
)
from holdfast.errors import Invalid
from holdfast.wire.requests import (
    AnyContent,
    ApprovalCreate,
    ApprovalReturn,
    Base64Image,
    ImageContent,
    LettaImage,
    LettaRequest,
    MessageCreate,
    OmittedReasoningContent,
    ReasoningContent,
    RedactedReasoningContent,
    ReturnContent,
    TextContent,
    ToolReturn,
    ToolReturnCreate,
    UrlImage,
)

PartT = TypeVar("PartT", bound=AnyPart)
InputRole = Literal["user", "system", "assistant"]


class UnresolvedImage(Image, frozen=True, tag="unresolved_image"):
    """Stands where an image will be once its url is fetched. No store can read it back: resolve it first."""

    @property
    def url(self) -> str:
        return self.data


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: InputRole
    parts: Parts
    otid: str | None = None
    name: str | None = None
    sender_id: str | None = None
    group_id: str | None = None
    batch_item_id: str | None = None


class ParsedInput(msgspec.Struct, frozen=True, kw_only=True):
    """`decisions` is None for a plain request; an empty tuple is an approval that decides nothing."""

    messages: tuple[NewMessage, ...] = ()
    decisions: tuple[Decision, ...] | None = None
    decision_otid: str | None = None
    otids: tuple[str, ...] = ()  # the client's, in the order of the request
    request_key: str | None = None  # same otids and content; None unless every item had an otid

    @property
    def image_urls(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.url for part in self._parts() if isinstance(part, UnresolvedImage)))

    def _parts(self) -> Iterator[AnyPart]:
        for message in self.messages:
            yield from message.parts
        for decision in self.decisions or ():
            if isinstance(decision, ClientReturn) and not isinstance(decision.content, str):
                yield from decision.content


def input_of(request: LettaRequest) -> ParsedInput:
    items = request.messages
    if items is None:
        return ParsedInput(messages=(_message(MessageCreate(role="user", content=request.input or "")),))
    first = items[0]
    otids = tuple(item.otid for item in items if item.otid)
    answer = None if isinstance(first, MessageCreate) else first
    messages = tuple(_message(item) for item in items if isinstance(item, MessageCreate))
    decisions = None if answer is None else _decisions(answer)
    return ParsedInput(
        messages=messages,
        decisions=decisions,
        decision_otid=(answer and answer.otid) or None,
        otids=otids,
        request_key=_request_key(otids, messages, decisions) if len(otids) == len(items) else None,
    )


def resolve_images(parsed: ParsedInput, images: Mapping[str, Image]) -> ParsedInput:
    """`images` by url; it must hold every one of `parsed.image_urls`."""
    messages = tuple(
        msgspec.structs.replace(message, parts=tuple(_resolved(part, images) for part in message.parts))
        for message in parsed.messages
    )
    decisions = parsed.decisions and tuple(_resolved_decision(each, images) for each in parsed.decisions)
    return msgspec.structs.replace(parsed, messages=messages, decisions=decisions)


def _resolved(part: PartT, images: Mapping[str, Image]) -> PartT | Image:
    return images[part.url] if isinstance(part, UnresolvedImage) else part


def _resolved_decision(decision: Decision, images: Mapping[str, Image]) -> Decision:
    if not isinstance(decision, ClientReturn) or isinstance(decision.content, str):
        return decision
    return msgspec.structs.replace(decision, content=tuple(_resolved(part, images) for part in decision.content))


def _request_key(otids: Sequence[str], messages: Sequence[NewMessage], decisions: Sequence[Decision] | None) -> str:
    """The content is part of it: some clients count their otids from one again, and that is no repetition."""
    whole = msgspec.json.encode((otids, messages, decisions))
    return hashlib.blake2b(whole, digest_size=16, person=b"holdfast-request").hexdigest()


# --- answers to held calls -------------------------------------------------------------------------------------------


def _is_legacy(item: ApprovalCreate) -> bool:
    return item.approvals is None and (item.approve is not None or item.approval_request_id is not None)


def _decisions(item: ApprovalCreate | ToolReturnCreate) -> tuple[Decision, ...]:
    if isinstance(item, ToolReturnCreate):
        return tuple(_client_return(each) for each in item.tool_returns)
    if _is_legacy(item):
        return (_verdict(item.approval_request_id or "", bool(item.approve), item.reason),)
    return tuple(_decision(each) for each in item.approvals or ())


def _decision(answer: ApprovalReturn | ToolReturn) -> Decision:
    if isinstance(answer, ToolReturn):
        return _client_return(answer)
    return _verdict(answer.tool_call_id, answer.approve, answer.reason)


def _verdict(call_id: str, approve: bool, reason: str | None) -> Approve | Deny:
    return Approve(call_id, reason) if approve else Deny(call_id, reason)


def _client_return(given: ToolReturn) -> ClientReturn:
    return ClientReturn(
        given.tool_call_id,
        _return_content(given.tool_return),
        given.status,
        None if given.stdout is None else tuple(given.stdout),
        None if given.stderr is None else tuple(given.stderr),
    )


def _return_content(content: str | list[ReturnContent]) -> Content:
    if isinstance(content, str):
        return content
    return tuple(_text(part) if isinstance(part, TextContent) else _image(part) for part in content)


# --- messages --------------------------------------------------------------------------------------------------------


def _message(item: MessageCreate) -> NewMessage:
    parts = _parts(item.role, item.content)
    if not any(isinstance(part, Image) or (isinstance(part, Text) and part.text.strip()) for part in parts):
        raise Invalid("Message content is empty or invalid")
    return NewMessage(
        role=item.role,
        parts=parts,
        otid=item.otid or None,
        name=item.name,
        sender_id=item.sender_id,
        group_id=item.group_id,
        batch_item_id=item.batch_item_id,
    )


def _parts(role: InputRole, content: str | list[AnyContent]) -> Parts:
    if isinstance(content, str):
        return (Text(content),)
    # Vendors refuse a message that holds an empty text, even next to an image.
    return tuple(_part(role, part) for part in content if not isinstance(part, TextContent) or part.text)


def _part(role: InputRole, part: AnyContent) -> AnyPart:
    match part:
        case TextContent():
            return _text(part)
        case ImageContent() if role == "user":
            return _image(part)
        case ReasoningContent() if role == "assistant":
            return Reasoning(part.reasoning, part.signature)
        case RedactedReasoningContent() if role == "assistant":
            return RedactedReasoning(part.data)
        case OmittedReasoningContent() if role == "assistant":
            return OmittedReasoning(part.signature)
        case _:
            raise Invalid(f"Content of type '{part.type}' cannot be sent in a message of role '{role}'")


def _text(part: TextContent) -> Text:
    return Text(part.text, part.signature)


def _image(part: ImageContent) -> Image:
    match part.source:
        case Base64Image(media_type=media_type, data=data, detail=detail):
            return _readable(media_type, data, detail)
        case UrlImage(url=url):
            return _image_at(url)
        case LettaImage():
            raise Invalid("Images of source type 'letta' are not supported. Send the image as base64 or as a url.")


def _image_at(url: str) -> Image:
    scheme = url.partition(":")[0].lower()
    if scheme in ("http", "https"):
        return UnresolvedImage(media_type="", data=url)
    if scheme == "data":
        return _image_in(url)
    raise Invalid(f"Unsupported image URL scheme '{scheme[:32]}'. Use http, https or data.")


def _readable(media_type: str, data: str, detail: str | None = None) -> Image:
    image = readable_image(media_type, data, detail)
    if image is None:
        raise Invalid(f"What was sent as {media_type} is not an image in base64: its data or its media type is wrong.")
    return image


def _image_in(data_url: str) -> Image:
    head, comma, payload = data_url[len("data:") :].partition(",")
    media_type, *parameters = (piece.strip().lower() for piece in head.split(";"))
    if not comma or not payload or not media_type.startswith("image/"):
        raise Invalid("An image in a data: URL must look like data:image/png;base64,…")
    is_encoded = "base64" in parameters
    return _readable(media_type, payload if is_encoded else base64.b64encode(unquote_to_bytes(payload)).decode())
