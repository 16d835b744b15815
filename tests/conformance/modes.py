"""One request, five ways to send it. A scenario is written once and sent in every mode that it is marked for.

A `Turn` is a request under way; its `Outcome` has the same shape in every mode, so that the modes can be compared.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal

import httpx
import msgspec
import pytest
from letta_client import APIError, AsyncLetta

from tests.conformance.vendors import ADAPTERS, OFFLINE

Json = dict[str, Any]
Mode = Literal["blocking", "step", "token", "background", "async"]
MODES: dict[str, Mode] = {"B": "blocking", "S": "step", "T": "token", "G": "background", "A": "async"}
STREAMS = ("step", "token", "background")
INPUT_TYPES = ("system_message", "user_message", "approval_response_message")
PATIENCE_S = 60.0


def in_modes(letters: str, adapters: str = "") -> pytest.MarkDecorator:
    """The modes in which it runs with the offline model, and those in which it runs with every adapter besides."""
    if not adapters:
        return pytest.mark.parametrize("mode", [MODES[letter] for letter in letters])
    here = [pytest.param(OFFLINE.name, MODES[letter], id=MODES[letter]) for letter in letters]
    there = [
        pytest.param(vendor.name, MODES[letter], id=f"{MODES[letter]}-{vendor.name}")
        for vendor in ADAPTERS
        for letter in adapters
    ]
    return pytest.mark.parametrize(("vendor", "mode"), [*here, *there], indirect=["vendor"])


class Outcome(msgspec.Struct, kw_only=True):
    """`error` is what the client raised with, or what an asynchronous run left on record. A refusal has no run."""

    mode: Mode
    run_id: str | None = None
    messages: list[Json] = []  # whole, as if nothing had been streamed
    stop_reason: str | None = None
    usage: Json | None = None
    events: list[Json] = []  # of a stream, without pings
    raw: bytes = b""
    status: int = 200
    error: Any = None
    error_text: str = ""

    @property
    def types(self) -> list[str]:
        return [message["message_type"] for message in self.messages]

    @property
    def last(self) -> Json:
        return self.messages[-1]

    @property
    def text(self) -> str:
        return next(message["content"] for message in reversed(self.messages) if "content" in message)

    def only(self, message_type: str) -> Json:
        (found,) = [message for message in self.messages if message["message_type"] == message_type]
        return found


class Turn:
    """A request that has been sent. `until` waits for something a stream says; `outcome` for the end."""

    def __init__(self, client: AsyncLetta, agent_id: str, mode: Mode, body: Json) -> None:
        self.client = client
        self.agent_id = agent_id
        self.mode: Mode = mode
        self.body = body
        self.events: list[Json] = []
        self._began = time.time()
        self._news = asyncio.Condition()
        drive = {"blocking": self._block, "async": self._poll}.get(mode, self._stream)
        self._task: asyncio.Task[Outcome] = asyncio.create_task(drive())

    async def outcome(self) -> Outcome:
        async with asyncio.timeout(PATIENCE_S):
            return await self._task

    async def until(self, wanted: Callable[[Json], bool]) -> Json:
        """The first event that is wanted, whether it has come already or is still to come."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            while True:
                found = next((event for event in self.events if wanted(event)), None)
                if found is not None:
                    return found
                assert not self._task.done(), f"the stream ended without it: {self.events}"
                await self._news.wait()

    async def until_type(self, message_type: str) -> Json:
        return await self.until(lambda event: event["message_type"] == message_type)

    async def run_id(self) -> str:
        """As soon as it is known: a stream tells it first of all, otherwise it is looked up."""
        if self.mode in STREAMS:
            return (await self.until(lambda event: bool(event.get("run_id"))))["run_id"]
        return (await newest_run(self.client, self.agent_id, active=True))["id"]

    async def _block(self) -> Outcome:
        try:
            messages: Any = self.client.agents.messages
            shown = as_json(await messages.create(agent_id=self.agent_id, **self.body))
        except APIError as error:
            return await self._failed(error)
        made: list[Json] = shown["messages"]
        run_id = made[0]["run_id"] if made else (await newest_run(self.client, self.agent_id))["id"]
        stop = shown["stop_reason"]["stop_reason"]
        return Outcome(mode=self.mode, run_id=run_id, messages=made, stop_reason=stop, usage=shown["usage"])

    async def _stream(self) -> Outcome:
        stream = None
        try:
            stream = await self._open()
            async for event in stream:
                await self._hear(as_json(event))
        except APIError as error:
            return await self._failed(error, told(stream.response) if stream else b"")
        finally:
            async with self._news:
                self._news.notify_all()
        outcome = self._heard(told(stream.response))
        if self.mode == "background" and outcome.run_id:
            filtered = "include_return_message_types" in self.body
            await check_replay(self.client, outcome.run_id, outcome.events, filtered=filtered)
        return outcome

    async def _open(self) -> Any:
        messages: Any = self.client.agents.messages
        if self.mode == "step":
            return await messages.create(agent_id=self.agent_id, streaming=True, **self.body)
        options = {"background": True} if self.mode == "background" else {}
        return await messages.stream(agent_id=self.agent_id, stream_tokens=True, **options, **self.body)

    async def _hear(self, event: Json) -> None:
        async with self._news:
            self.events.append(event)
            self._news.notify_all()

    def _heard(self, raw: bytes) -> Outcome:
        events = [event for event in self.events if event["message_type"] != "ping"]
        stops = [event["stop_reason"] for event in events if event["message_type"] == "stop_reason"]
        usages = [event for event in events if event["message_type"] == "usage_statistics"]
        assert len(stops) == 1, f"a stream has one stop event: {events}"
        assert len(usages) <= 1
        check_tail(raw, failed=False)
        return Outcome(
            mode=self.mode,
            run_id=self.events[0]["run_id"],
            messages=accumulated(events),
            stop_reason=stops[0],
            usage=usages[0] if usages else None,
            events=events,
            raw=raw,
        )

    async def _failed(self, error: APIError, raw: bytes = b"") -> Outcome:
        """A status of 200 means that it was raised in mid-stream."""
        outcome = Outcome(
            mode=self.mode, status=getattr(error, "status_code", 0), error=error.body, error_text=str(error), raw=raw
        )
        if outcome.status == 200:
            check_tail(raw, failed=True)
            events = [event for event in self.events if event["message_type"] != "ping"]
            stops = [event["stop_reason"] for event in events if event["message_type"] == "stop_reason"]
            (outcome.stop_reason,) = stops
            outcome.run_id = self.events[0]["run_id"]
            outcome.messages, outcome.events = accumulated(events), events
        else:
            runs = (await self.client.runs.list(agent_id=self.agent_id, limit=1)).items
            run = as_json(runs[0]) if runs else None
            if run and run["status"] == "failed" and run["created_at"].timestamp() > self._began:
                outcome.run_id, outcome.stop_reason = run["id"], run["stop_reason"]
        return outcome

    async def _poll(self) -> Outcome:
        try:
            begun = await self.client.agents.messages.create_async(agent_id=self.agent_id, **self.body)
        except APIError as error:
            return await self._failed(error)
        run = await ended_run(self.client, begun.id)
        listed = await self.client.runs.messages.list(run_id=begun.id, limit=1000)
        messages = [as_json(message) for message in listed.items]
        usage = as_json(await self.client.runs.usage.retrieve(run_id=begun.id))
        steps = await self.client.runs.steps.list(run_id=begun.id, limit=1000)
        error: Any = run["metadata"].get("error")
        return Outcome(
            mode=self.mode,
            run_id=begun.id,
            messages=[message for message in messages if message["message_type"] not in INPUT_TYPES],
            stop_reason=run["stop_reason"],
            usage=usage | {"step_count": len(steps.items)},
            error=error,
            error_text=json.dumps(error) if error else "",
        )


class ConversationTurn(Turn):
    """The same in a conversation, which the client always reads as a stream. `agent_id` is the conversation's."""

    async def _open(self) -> Any:
        messages: Any = self.client.conversations.messages
        options = {"stream_tokens": self.mode != "step", "background": self.mode == "background"}
        return await messages.create(conversation_id=self.agent_id, **options, **self.body)


def begin(client: AsyncLetta, mode: Mode, agent_id: str, said: Any, **options: Any) -> Turn:
    """`said`: a text of the user, or the list of messages as the API takes it. `agent_id` may be a conversation's."""
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    kind = ConversationTurn if agent_id.startswith("conv-") else Turn
    return kind(client, agent_id, mode, {"messages": messages, **options})


async def send(client: AsyncLetta, mode: Mode, agent_id: str, said: Any, **options: Any) -> Outcome:
    return await begin(client, mode, agent_id, said, **options).outcome()


def as_json(model: Any) -> Json:
    """An object of the client's as what it stands for; its own types are too narrow for what we look at."""
    return model.to_dict()


async def newest_run(client: AsyncLetta, agent_id: str, *, active: bool = False) -> Json:
    """With `active`, waits until there is one that has not ended."""

    async def look() -> Json | None:
        found = (await client.runs.list(agent_id=agent_id, limit=1, active=active)).items
        return as_json(found[0]) if found else None

    if active:
        return await eventually(look, "no run became active")
    found = await look()
    assert found is not None, "the agent has no run"
    return found


async def ended_run(client: AsyncLetta, run_id: str, patience_s: float = PATIENCE_S) -> Json:
    async def look() -> Json | None:
        run = as_json(await client.runs.retrieve(run_id=run_id))
        return run if run["status"] not in ("created", "running") else None

    return await eventually(look, f"run {run_id} did not end", patience_s)


async def eventually(probe: Callable[[], Any], otherwise: str, patience_s: float = PATIENCE_S) -> Any:
    """For what can only be asked for, not waited for: the first answer that is not None."""
    deadline = asyncio.get_running_loop().time() + patience_s
    while asyncio.get_running_loop().time() < deadline:
        found = await probe()
        if found is not None:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(otherwise)


def accumulated(events: Sequence[Json]) -> list[Json]:
    """Whole messages out of fragments, the way a client puts them together: by id and otid. What a try that was given
    up had said is dropped."""
    whole: dict[tuple[str, str | None, str], Json] = {}
    for event in events:
        kind = event["message_type"]
        if kind in ("stop_reason", "usage_statistics", "error_message"):
            continue
        if is_retry(event):
            void = event["event_data"]["abandoned_message_ids"]
            whole = {key: message for key, message in whole.items() if key[0] not in void}
            continue
        key = (event["id"], event.get("otid"), kind)
        if key not in whole:
            whole[key] = _opened(event)
        else:
            _extend(whole[key], event)
    return list(whole.values())


def is_retry(event: Json) -> bool:
    return event["message_type"] == "event_message" and event["event_type"] == "retry"


def _opened(event: Json) -> Json:
    fragment: Any = event.get("tool_calls")
    if not isinstance(fragment, dict):
        return dict(event)
    call = {"name": "", "arguments": ""} | _given(fragment)
    return event | {"tool_calls": [call], "tool_call": call}


def _extend(whole: Json, event: Json) -> None:
    for name in ("content", "reasoning"):
        if name in event:
            whole[name] += event[name]
    fragment: Any = event.get("tool_calls")
    if isinstance(fragment, dict):
        given = _given(fragment)
        call = next((each for each in whole["tool_calls"] if each["tool_call_id"] == given["tool_call_id"]), None)
        if call is None:
            call = {"name": "", "arguments": "", "tool_call_id": given["tool_call_id"]}
            whole["tool_calls"].append(call)
        call["name"] += given.get("name", "")
        call["arguments"] += given.get("arguments", "")


def _given(fragment: Any) -> Json:
    return {name: value for name, value in fragment.items() if value is not None}


def check_tail(raw: bytes, *, failed: bool) -> None:
    """One terminal sequence, and nothing after it, byte for byte."""
    assert raw.endswith(b"data: [DONE]\n\n"), raw[-300:]
    assert raw.count(b"[DONE]") == 1
    blocks = raw.decode().removesuffix("\n\n").split("\n\n")
    ends = [block for block in blocks if '"message_type":"stop_reason"' in block]
    assert len(ends) == 1
    assert blocks[-3] == ends[0], blocks[-4:]
    assert ("event: error" in blocks[-2]) is failed
    assert ('"message_type":"usage_statistics"' in blocks[-2]) is not failed


async def check_replay(client: AsyncLetta, run_id: str, streamed: Sequence[Json], *, filtered: bool) -> None:
    """A background run can be read again, from the beginning and from the middle, and says the same. What a filter
    hides leaves a gap in the numbers, and so does a try that was given up."""
    void = {gone for event in streamed if is_retry(event) for gone in event["event_data"]["abandoned_message_ids"]}
    valid = [event for event in streamed if event.get("id") not in void]
    again = await replay(client, run_id)
    assert again == valid
    numbers = [event["seq_id"] for event in again]
    assert numbers == (sorted(set(numbers)) if filtered or void else list(range(1, len(again) + 1)))
    middle = numbers[len(numbers) // 2]
    assert await replay(client, run_id, middle) == [event for event in valid if event["seq_id"] > middle]


async def replay(client: AsyncLetta, run_id: str, after: int = 0) -> list[Json]:
    stream = await client.runs.messages.stream(run_id, starting_after=after, include_pings=False)
    return [as_json(event) async for event in stream]


# --- the wire itself ---


class Recording(httpx.AsyncBaseTransport):
    """Remembers the bytes of event streams, to the very end: the client itself stops reading at [DONE] or an error."""

    def __init__(self) -> None:
        self._inner = httpx.AsyncHTTPTransport(verify=False)  # whom to trust takes long to load, and nobody asks

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._inner.handle_async_request(request)
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer
        heard = bytearray()
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        return httpx.Response(
            answer.status_code,
            headers=answer.headers,
            stream=_Recorded(answer.stream, heard),
            extensions={**answer.extensions, "told": heard},
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Recorded(httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, heard: bytearray) -> None:
        self._inner = inner
        self._heard = heard

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        chunks = aiter(self._inner)
        async for chunk in chunks:
            self._heard += chunk
            if b"[DONE]" in self._heard[-64:] or b"event: error" in chunk:
                async for rest in chunks:
                    self._heard += rest
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def told(response: httpx.Response) -> bytes:
    return bytes(response.extensions["told"])
