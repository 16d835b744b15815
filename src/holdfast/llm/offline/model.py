"""The model that ships: deterministic, offline, and able to misbehave on request.

It follows plain instructions ("call the roll_dice tool with 16 sides"), then answers with what the tools returned.
Directives in the message make it stall, slow down, fail or break off; docs/offline-model.md lists them. It is the
default when no provider is configured, and the one model double of the tests.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast import errors
from holdfast.core import compaction, heartbeat_loop
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
from holdfast.core.messages import Text
from holdfast.core.usage import Usage
from holdfast.llm.base import ModelInfo, ModelRequest, NamedTool, ToolSchema
from holdfast.llm.chat.payload import chat_payload
from holdfast.llm.offline import instructions, remembering
from holdfast.llm.offline.arguments import example, properties_of
from holdfast.llm.offline.patterns import lazily
from holdfast.llm.offline.situation import Directives, Situation, call_parts, parsed_text, result_text, situation_of

OFFLINE: Final = ModelInfo(
    handle="holdfast/offline",
    name="offline",
    provider_name="holdfast",
    provider_type="holdfast",
    context_window=128_000,
)
ERRORS: Final[dict[str, Callable[[str], Exception]]] = {
    "rate_limit": errors.RateLimited,
    "overloaded": errors.Overloaded,
    "timeout": errors.ModelTimedOut,
    "auth": errors.AuthRejected,
    "quota": errors.QuotaExceeded,
    "bad_request": errors.Refused,
    "server": errors.ModelUnavailable,
    "context": errors.ContextTooLong,
    "empty": errors.EmptyReply,
    "malformed": errors.BadReply,
    "runtime": RuntimeError,
}
# How many tokens a stream yields before it lets other tasks run.
_TOKENS_PER_BREATH: Final = 32
_MOST_DIGITS: Final = 15  # of a count of tokens
_QUOTED_CHARS: Final = 2_000
_ECHOED_CHARS: Final = 300
_TOKEN = re.compile(r"\s*\S{1,16}|\s+")
_ASKS_FOR_HELP = lazily(
    r"\W*(?:help|what can you do|who are you|what are you|"
    r"(?:what|which) tools (?:do you have|can you (?:use|call)|are there)|"
    r"(?:list|show)(?: me)? (?:your |the )?tools)\W*",
    re.IGNORECASE,
)
_FILLER_WORDS: Final = ("steady", "words", "keep", "coming", "one", "after", "another", "as", "asked")
_FILLER: Final = tuple(TextDelta(f" {word}") for word in _FILLER_WORDS)


class Call(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A reply worked out before its first token: what is streamed, how fast, and how it ends."""

    content: Sequence[Delta]
    usage: Usage
    finish: FinishReason
    ttft: float = 0.0
    delay: float = 0.0
    stalls: bool = False
    error: Exception | None = None
    reports_failure: bool = False  # says what it cost all the same


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class OfflineModel:
    """`open_streams` counts replies that have begun and not ended; zero after every cancel that worked."""

    def __init__(self, new_call_id: Callable[[], str] = new_call_id) -> None:
        self.open_streams = 0
        self._new_call_id = new_call_id
        self._times_failed = Counter[str]()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        self.open_streams += 1
        try:
            script = self._script(request)
            if script.ttft:
                await asyncio.sleep(script.ttft)
            delay = script.delay
            for index, delta in enumerate(script.content, start=1):
                if delay:
                    await asyncio.sleep(delay)
                elif not index % _TOKENS_PER_BREATH:
                    await asyncio.sleep(0)
                yield delta
            if script.stalls:
                await asyncio.Event().wait()
            if script.error is not None:
                if script.reports_failure:
                    yield UsageDelta(script.usage)
                raise script.error
            yield UsageDelta(script.usage)
            yield Finish(script.finish)
        finally:
            self.open_streams -= 1

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return chat_payload(request)

    def _script(self, request: ModelRequest) -> Script:
        prompt_tokens = request.estimated_tokens()
        wanted = summary_source(request)
        if wanted is not None:
            return self._summary_script(wanted, prompt_tokens, request.context_window)
        now = situation_of(request.turns)
        directed = now.directives
        window = directed.count("window")
        _refuse_overflow(prompt_tokens, request.context_window if window is None else window)
        silent = directed.has("empty") or directed.has("no_call")
        calls = [] if silent else choose_calls(request, now)
        content = [] if directed.has("empty") else self._content(request, now, calls)
        script = Script(
            content=content,
            usage=_usage(directed, prompt_tokens, content),
            finish="length" if directed.text("finish") == "length" else "tool_calls" if calls else "stop",
            ttft=directed.seconds("ttft"),
            delay=directed.seconds("delay"),
        )
        return self._with_trouble(script, directed, now.last_text.plain)

    def _content(self, request: ModelRequest, now: Situation, calls: Sequence[Call]) -> list[Delta]:
        directed = now.directives
        # Who is asked for thoughts in an argument of each call does not reason by itself.
        thinks_in_calls = any(heartbeat_loop.THINKING in properties_of(tool.parameters) for tool in request.tools)
        content: list[Delta] = [] if thinks_in_calls else [*_reasoning(directed, now, calls)]
        if not calls:
            content += (
                _filler(count) if (count := directed.count("tokens")) is not None else _text(answer(request, now))
            )
        elif len(calls) > 1:
            content += _text(f"Calling {_listed([call.name for call in calls])}.")
        for index, call in enumerate(calls):
            content.append(CallDelta(index, self._new_call_id(), call.name))
            content += [CallDelta(index, arguments=piece) for piece in _TOKEN.findall(call.arguments)]
        return content

    def _with_trouble(self, script: Script, directed: Directives, text: str) -> Script:
        if not directed.found:
            return script
        if directed.has("stall"):
            return msgspec.structs.replace(script, content=(), stalls=True)
        if (count := directed.count("stall_after")) is not None:
            return msgspec.structs.replace(script, content=script.content[:count], stalls=True)
        kind, cut, message = directed.text("error"), directed.count("cut"), directed.text("message")
        if (kind is None and cut is None) or not self._fails_again(directed, text):
            return script
        if cut is not None:
            error: Exception = errors.ModelUnavailable(message or "The stream ended before the reply did.")
        else:
            error = made_error(kind or "", message, directed.seconds("retry_after"))
        count = (directed.count("error_after") or 0) if cut is None else cut
        reports = directed.has("usage")
        return msgspec.structs.replace(script, content=script.content[:count], error=error, reports_failure=reports)

    def _fails_again(self, directed: Directives, text: str) -> bool:
        times = directed.count("error_times")
        if times is None:
            return True
        self._times_failed[text] += 1
        return self._times_failed[text] <= times

    def _summary_script(self, source: str, prompt_tokens: int, context_window: int) -> Script:
        _refuse_overflow(prompt_tokens, context_window)
        directed = parsed_text(source).directives
        failure = directed.text("summary_error")
        if failure is not None and self._fails_again(directed, "a summary"):
            raise made_error(failure, directed.text("message"))
        lines = [line.removeprefix("User: ") for line in source.splitlines() if line.startswith("User: ")]
        text = f"Earlier, {len(source.splitlines())} lines were exchanged."
        if lines:
            text += (
                f" The user first said: {_shortened(lines[0], 200)} The user last said: {_shortened(lines[-1], 200)}"
            )
        content = _text(directed.text("summary") or text)
        return Script(content=content, usage=Usage(prompt_tokens, len(content), 0, reasoning_tokens=0), finish="stop")


def choose_calls(request: ModelRequest, now: Situation) -> list[Call]:
    """What to call now: directed calls, what was asked for, what an alert insists on, what is forced; in this order."""
    directed = now.directives
    offered = {tool.name: tool for tool in request.tools}
    due = _due_calls(request, now)
    if not due and request.tool_choice != "none":
        demanded = [instructions.loose_call(offered[name], now.last_text.plain) for name in now.demanded(request.tools)]
        due = [_encoded(call) for call in demanded] or _forced_call(request, now)
    together = request.parallel_tool_calls or directed.has("parallel")
    return due if together else due[:1]


def answer(request: ModelRequest, now: Situation) -> str:
    directed = now.directives.text("say")
    if directed is not None:
        return directed
    shaped = _shaped_answer(request.response_format)
    if shaped is not None:
        return shaped
    if now.returns:
        kept = _kept(now)
        if kept is not None:
            return f"I will remember: {_shortened(kept, _ECHOED_CHARS)}"
        return " ".join(
            _return_sentence(returned.name, returned.status, result_text(returned)) for returned in now.returns
        )
    text = now.last_text.plain
    known = remembering.answer_from_memory(text, request.system) or _help(text, request.tools)
    if known is not None:
        return known
    return f"You said: {_shortened(text, _ECHOED_CHARS)}" if text else "There is nothing new to answer."


def _kept(now: Situation) -> str | None:
    """What was to be remembered, if a memory tool alone was called and did it."""
    done = all(returned.status == "success" and returned.name in remembering.KEEPING for returned in now.returns)
    return remembering.fact_to_keep(now.last_text.plain) if done else None


def _help(text: str, tools: Sequence[ToolSchema]) -> str | None:
    if not _ASKS_FOR_HELP().fullmatch(text):
        return None
    names = [tool.name for tool in tools if tool.name != "send_message"]
    offer = f"I can call {_listed(names)}: say “use {names[0]}”." if names else "I have no tools."
    if not remembering.KEEPING.isdisjoint(names):
        offer += " To have something remembered, say “remember that I like tea”."
    return f"I am the offline model: I do what I am told, and repeat what else you say. {offer}"


def made_error(kind: str, message: str | None, retry_after: float = 0.0) -> Exception:
    if kind not in ERRORS:
        return errors.Refused(f"The directive [[error:{kind}]] is unknown; there are: {', '.join(ERRORS)}.")
    error = ERRORS[kind](message or f"The offline model failed as directed: {kind}.")
    if isinstance(error, errors.ModelError):
        error.retry_after = retry_after or None
    return error


def summary_source(request: ModelRequest) -> str | None:
    """The text to summarise when compaction asks, else None."""
    last = request.turns[-1].parts[-1] if request.turns and request.turns[-1].parts else None
    if not isinstance(last, Text) or not last.text.startswith(compaction.REQUEST_TAG):
        return None
    earlier = [
        part.text for turn in request.turns for part in turn.parts if isinstance(part, Text) and part is not last
    ]
    return "\n".join([request.system, *earlier, last.text])


def _due_calls(request: ModelRequest, now: Situation) -> list[Call]:
    directed = now.directives
    explicit = [(one, Call(*call_parts(one.value or ""))) for one in directed.every("call")]
    due = [call for one, call in explicit if one.model_call is not None]
    planned = [(call, 0) for one, call in explicit if one.model_call is None]
    planned += [(_encoded(call), call.stage) for call in _calls_in_text(request, now.last_text.plain)]
    left = Counter[str]() if directed.has("repeat") else Counter(now.called)
    open_calls: list[tuple[Call, int]] = []
    for call, stage in planned:
        if left[call.name] > 0:
            left[call.name] -= 1
        else:
            open_calls.append((call, stage))
    stage_now = min((stage for _, stage in open_calls), default=0)
    return due + [call for call, stage in open_calls if stage == stage_now]


def _calls_in_text(request: ModelRequest, text: str) -> Sequence[instructions.PlannedCall]:
    """What is asked for by verb and name; else what is to be remembered or looked up; else what else can be meant."""
    offered = _callable(request)
    return (
        instructions.planned_calls(text, offered)
        or remembering.memory_calls(text, request.system, offered)
        or instructions.understood_calls(text, offered)
    )


def _callable(request: ModelRequest) -> list[ToolSchema]:
    """What the vendor would let a model call; directives are not bound by it."""
    match request.tool_choice:
        case NamedTool(name):
            return [tool for tool in request.tools if tool.name == name]
        case "none":
            return []
        case _:
            return list(request.tools)


def _forced_call(request: ModelRequest, now: Situation) -> list[Call]:
    choice = request.tool_choice
    if choice in ("auto", "none") or not request.tools:
        return []
    wanted = choice.name if isinstance(choice, NamedTool) else "send_message"
    uncalled = [tool for tool in request.tools if tool.name not in now.called]
    named = [tool for tool in request.tools if tool.name == wanted]
    tool = (named or uncalled or list(request.tools))[0]
    call = instructions.loose_call(tool, now.last_text.plain)
    if tool.name == "send_message":
        count = now.directives.count("tokens")
        words = answer(request, now) if count is None else "".join(delta.text for delta in _filler(count))
        call = instructions.PlannedCall(tool.name, call.arguments | {"message": words})
    return [_encoded(call)]


def _encoded(call: instructions.PlannedCall) -> Call:
    return Call(call.name, msgspec.json.format(msgspec.json.encode(call.arguments), indent=0).decode())


def _refuse_overflow(prompt_tokens: int, window: int) -> None:
    if prompt_tokens > window:
        raise errors.ContextTooLong(f"The request has about {prompt_tokens} tokens; the context window holds {window}.")


def _reasoning(directed: Directives, now: Situation, calls: Sequence[Call]) -> list[Delta]:
    wanted = directed.text("reasoning")
    if directed.has("no_reasoning"):
        return []
    if wanted == "omitted":
        return [OmittedDelta()]
    if wanted == "redacted":
        return [RedactedDelta("b2ZmbGluZQ==")]
    if wanted is not None:
        return [ReasoningDelta(delta.text) for delta in _filler(directed.count("reasoning") or 0)]
    if calls:
        thought = f"This needs {_listed([call.name for call in calls])}."
    elif now.returns:
        thought = "The results are in; I report them."
    else:
        thought = "Nothing needs to be called; I answer directly."
    return [ReasoningDelta(piece) for piece in _TOKEN.findall(thought)]


def _usage(directed: Directives, prompt_tokens: int, content: Sequence[Delta]) -> Usage:
    reasoning = sum(isinstance(delta, ReasoningDelta) for delta in content)
    completion_tokens = len(content) or 1  # who says nothing has still ended its turn, and is charged for saying so
    given = directed.text("usage")
    if given is None:
        return Usage(prompt_tokens, completion_tokens, 0, reasoning_tokens=reasoning)
    prompt, completion, cached, thought = [_figure(given.split(","), index) for index in range(4)]
    return Usage(
        prompt_tokens if prompt is None else prompt,
        completion_tokens if completion is None else completion,
        0 if cached is None else cached,
        reasoning_tokens=reasoning if thought is None else thought,
    )


def _figure(given: Sequence[str], index: int) -> int | None:
    text = given[index].strip() if index < len(given) else ""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _shaped_answer(response_format: dict[str, Any] | None) -> str | None:
    match (response_format or {}).get("type"):
        case "json_schema":
            schema: dict[str, Any] = (response_format or {}).get("json_schema") or {}
            inner: dict[str, Any] = schema.get("schema") or schema
            return msgspec.json.encode(example(inner, inner)).decode()
        case "json_object":
            return '{"answer":"offline"}'
        case _:
            return None


def _return_sentence(name: str, status: str, text: str) -> str:
    shown = _shortened(text, _QUOTED_CHARS)
    sentence = f"{name} returned {shown}" if status == "success" else f"{name} failed: {shown}"
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def _filler(count: int) -> list[TextDelta]:
    if not count:
        return []
    repeated = list(_FILLER) * (count // len(_FILLER) + 1)
    return [TextDelta(_FILLER_WORDS[0]), *repeated[1:count]]


def _text(text: str) -> list[TextDelta]:
    return [TextDelta(piece) for piece in _TOKEN.findall(text)]


def _listed(names: Sequence[str]) -> str:
    counted = [name if count == 1 else f"{name} ({count} times)" for name, count in Counter(names).items()]
    return counted[0] if len(counted) == 1 else f"{', '.join(counted[:-1])} and {counted[-1]}"


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
