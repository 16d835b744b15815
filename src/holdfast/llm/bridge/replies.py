"""Events in: what pydantic-ai makes of a stream, as our deltas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from pydantic_ai.messages import (
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import StreamedResponse
from pydantic_ai.usage import RequestUsage

from holdfast.core.deltas import (
    CallDelta,
    Delta,
    Finish,
    FinishReason,
    OmittedDelta,
    ReasoningDelta,
    RedactedDelta,
    TextDelta,
    UsageDelta,
)
from holdfast.core.usage import Usage
from holdfast.errors import BadReply, Refused
from holdfast.llm.base import ModelRequest
from holdfast.llm.bridge import signatures
from holdfast.llm.bridge.messages import BETWEEN_SUMMARIES, REDACTED
from holdfast.llm.bridge.signatures import Proof
from holdfast.llm.bridge.vendor import Vendor
from holdfast.llm.tool_calls import CallIds, own_name, own_names

# What vendors call each figure, so that one that was not mentioned is not taken for zero.
_CACHED: Final = frozenset({"cached_tokens", "cachedContentTokenCount", "cacheReadInputTokens"})
_WRITTEN: Final = frozenset({"cache_write_tokens", "cacheWriteInputTokens"})
_REASONED: Final = frozenset({"reasoning_tokens", "thoughtsTokenCount"})
_FINISHES: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length", "tool_call": "tool_calls"}


class _Block:
    """Something that is being said or thought: one part, or several summaries of one piece of reasoning."""

    def __init__(self, part: TextPart | ThinkingPart, index: int, by: str) -> None:
        self.is_thought = isinstance(part, ThinkingPart)
        self.first = index
        self.proof = signatures.of(part, by)
        self.lengths = [0]

    def goes_on_with(self, part: TextPart | ThinkingPart) -> bool:
        return self.is_thought and isinstance(part, ThinkingPart) and part.id is not None and part.id == self.proof.id

    def count(self, text: str) -> None:
        self.lengths[-1] += len(text)

    def learn(self, part: TextPart | ThinkingPart, index: int) -> None:
        """The whole part knows more than its beginning. Of a signature in pieces it knows only the last one."""
        if index == self.first:
            self.proof = msgspec.structs.replace(signatures.of(part, self.proof.by), signature=self.proof.signature)


class Translation:
    """One reply. Deltas come as the events do; a proof comes when its block has ended."""

    def __init__(self, request: ModelRequest, vendor: Vendor) -> None:
        self._vendor = vendor
        self._names = own_names(request.tools)
        self._ids = CallIds(request)
        self._block: _Block | None = None
        self._reasoned: str | None = None  # the id of the reasoning that came last
        self._calls: dict[int, int] = {}  # the index of a part, and of the call that it is
        self._made = 0  # more than there are indices, when one is used again for another call
        self._wordless: set[int] = set()  # calls of which no argument has been heard

    def deltas(self, event: ModelResponseStreamEvent) -> Iterator[Delta]:
        match event:
            case PartStartEvent(index=index, part=ToolCallPart() as part):
                yield from self._close()
                if part.tool_name or index not in self._calls:
                    yield self._begin_call(index, part)
                else:  # more of a call that the library took for whole
                    yield from self._go_on_with_call(index, ToolCallPartDelta(args_delta=_arguments(part)))
            case PartStartEvent(index=index, part=TextPart() | ThinkingPart() as part):
                yield from self._begin(index, part)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta() as delta):
                yield from self._go_on_with_call(index, delta)
            case PartDeltaEvent(delta=TextPartDelta() | ThinkingPartDelta() as delta):
                yield from self._go_on(delta)
            case PartEndEvent(index=index, part=TextPart() | ThinkingPart() as part) if self._block is not None:
                self._block.learn(part, index)
            case _:
                pass  # tools that run at the vendor's, which are never asked for

    def end(self, streamed: StreamedResponse, figures: set[str]) -> Iterator[Delta]:
        """Nothing is finished that the vendor did not say is."""
        yield from self._close()
        yield from (CallDelta(index, arguments="{}") for index in sorted(self._wordless))
        if figures or streamed.usage.total_tokens:
            yield UsageDelta(usage(streamed.usage, figures))
        if (reason := self._reason(streamed)) is not None:
            yield Finish(reason)

    def _begin(self, index: int, part: TextPart | ThinkingPart) -> Iterator[Delta]:
        if isinstance(part, ThinkingPart) and part.id in REDACTED:
            yield from self._close()
            yield RedactedDelta(part.signature or "")
            return
        block = self._block
        if block is not None and block.goes_on_with(part):
            yield ReasoningDelta(BETWEEN_SUMMARIES)
            block.lengths.append(0)
        else:
            yield from self._close()
            block = self._block = _Block(part, index, self._vendor.system)
        yield from self._text(block, part.content)

    def _go_on(self, delta: TextPartDelta | ThinkingPartDelta) -> Iterator[Delta]:
        block = self._block
        if block is None:
            return
        if isinstance(delta, ThinkingPartDelta) and delta.signature_delta:
            signature = (block.proof.signature or "") + delta.signature_delta
            block.proof = msgspec.structs.replace(block.proof, signature=signature)
        yield from self._text(block, delta.content_delta or "")

    def _text(self, block: _Block, text: str) -> Iterator[Delta]:
        if text:
            block.count(text)
            yield ReasoningDelta(text) if block.is_thought else TextDelta(text)

    def _close(self) -> Iterator[Delta]:
        block, self._block = self._block, None
        if block is None:
            return
        proof, has_text = block.proof, any(block.lengths)
        if block.is_thought:
            # Without a signature an id is worth nothing: the vendor keeps no copy of what it stands for.
            proof = proof if proof.signature or proof.details else Proof(proof.by)
            self._reasoned = proof.id or self._reasoned
            proof = msgspec.structs.replace(proof, pieces=tuple(block.lengths) if len(block.lengths) > 1 else ())
        else:
            # What was said needs no id: it is sent again in full.
            proof = msgspec.structs.replace(proof, id=None)
        signature = signatures.written(proof, self._vendor.bare)
        if signature is None:
            return
        if has_text:
            yield ReasoningDelta("", signature) if block.is_thought else TextDelta("", signature)
        elif block.is_thought or proof.details:
            yield OmittedDelta(signature)

    def _begin_call(self, index: int, part: ToolCallPart) -> CallDelta:
        number = self._calls[index] = self._made
        self._made += 1
        arguments = _arguments(part)
        if not arguments:
            self._wordless.add(number)
        proof = self._led_to(signatures.of(part, self._vendor.system))
        return CallDelta(
            number,
            self._ids.own(part.tool_call_id),
            own_name(part.tool_name, self._names),
            arguments,
            signatures.written(proof, self._vendor.bare),
        )

    def _go_on_with_call(self, index: int, delta: ToolCallPartDelta) -> Iterator[Delta]:
        if index in self._calls and delta.args_delta:
            arguments = delta.args_delta
            self._wordless.discard(self._calls[index])
            text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
            yield CallDelta(self._calls[index], arguments=text)

    def _led_to(self, proof: Proof) -> Proof:
        return msgspec.structs.replace(proof, after=self._reasoned) if proof.id is not None else proof

    def _reason(self, streamed: StreamedResponse) -> FinishReason | None:
        details = streamed.provider_details or {}
        finish_reason, reason = details.get("finish_reason"), streamed.finish_reason
        if reason == "content_filter":
            why = (
                details.get("refusal")
                or details.get("block_reason_message")
                or details.get("block_reason")
                or finish_reason
            )
            raise Refused(f"The model refused to answer: {why or 'its content filter gave no reason'}.")
        if reason == "error":
            raise BadReply(f"The model could not complete its reply: {finish_reason}.")
        if finish_reason is None:
            return None
        finish = _FINISHES.get(reason or "stop", "stop")
        return "tool_calls" if self._calls and finish == "stop" else finish


def _arguments(part: ToolCallPart) -> str:
    if isinstance(part.args, str):
        return part.args
    return part.args_as_json_str() if part.args else ""


def usage(counted: RequestUsage, figures: set[str]) -> Usage:
    return Usage(
        counted.input_tokens,
        counted.output_tokens,
        counted.cache_read_tokens if counted.cache_read_tokens or figures & _CACHED else None,
        counted.cache_write_tokens if counted.cache_write_tokens or figures & _WRITTEN else None,
        counted.output_reasoning_tokens if counted.output_reasoning_tokens or figures & _REASONED else None,
    )
