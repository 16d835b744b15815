"""Clients that do not give up, and write down what they send and are told.

Each keeps one agent busy in every way of sending, through any of the servers, and repeats what was not answered until
it is. Every request has an otid, so a repeat is the same request. A reader whose stream is cut off attaches again, to
any server, after the last event that it was shown.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.histories import Answered, Attached, Cancelled, Listed, Looked, Lost, Record, Sent, Shown

from .tally import Tally

WHILE_AWAY_S = 0.1
TIMEOUT_S = 15.0  # of silence; a server that is stopped says nothing
_LOOK_EVERY_S = 0.2
_LONG = "Hello [[tokens:60]] [[delay:0.005]] [[no_reasoning]]"
_DONE = "[DONE]"


class CutOff(Exception):
    """A stream ended before its run did."""


class Line:
    """Asks any one of the servers, and writes down what streams show."""

    def __init__(self, urls: Sequence[str], history: list[Record], chance: random.Random) -> None:
        self.http = httpx.AsyncClient(timeout=TIMEOUT_S)
        self.history = history
        self._urls = urls
        self._any = chance

    def anywhere(self) -> str:
        return self._any.choice(self._urls)

    def lost(self, error: httpx.TransportError) -> None:
        self.history.append(Lost(at_s=time.monotonic(), why=repr(error)))

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Repeated until a server is there and does not say: later."""
        while True:
            try:
                answer = await self.http.request(method, self.anywhere() + path, json=body)
            except httpx.TransportError as error:
                self.lost(error)
            else:
                if answer.status_code != 503:
                    return answer
            await asyncio.sleep(WHILE_AWAY_S)

    async def events(self, reader: str, answer: httpx.Response) -> AsyncGenerator[Shown]:
        """Raises CutOff unless the stream comes to its end."""
        ended = False
        try:
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if (data := line.removeprefix("data: ")) == _DONE:
                    break
                event = json.loads(data)
                shown = Shown(
                    at_s=time.monotonic(),
                    reader=reader,
                    run_id=event.get("run_id") or "",
                    seq=event.get("seq_id"),
                    event=event,
                )
                self.history.append(shown)
                ended = ended or shown.kind == "stop_reason"
                yield shown
            else:
                raise CutOff
        except httpx.TransportError as error:
            self.lost(error)
            raise CutOff from error
        if not ended:
            raise CutOff


class Reader:
    """Reads the stream of one background run to its end, however often it is cut off."""

    def __init__(self, line: Line, name: str, run_id: str = "", after: int = 0) -> None:
        self.name = name
        self.run_id = run_id
        self.after = after
        self.begun = asyncio.Event()  # it knows the run
        self._line = line

    async def read(self, answer: httpx.Response) -> None:
        """What is left of a response that may have begun elsewhere. Raises CutOff."""
        async for shown in self._line.events(self.name, answer):
            self.run_id = self.run_id or shown.run_id
            self.after = max(self.after, shown.seq or 0)
            self.begun.set()

    async def attach(self, *, url: str | None = None) -> None:
        """Raises CutOff."""
        body = {"starting_after": self.after}
        self._line.history.append(Attached(at_s=time.monotonic(), reader=self.name, after=self.after))
        try:
            address = f"{url or self._line.anywhere()}/v1/runs/{self.run_id}/stream"
            async with self._line.http.stream("POST", address, json=body) as answer:
                if answer.status_code == 503:
                    raise CutOff
                assert answer.status_code == 200, await answer.aread()
                await self.read(answer)
        except httpx.TransportError as error:
            self._line.lost(error)
            raise CutOff from error

    async def read_to_end(self) -> None:
        while True:
            try:
                return await self.attach()
            except CutOff:
                await asyncio.sleep(WHILE_AWAY_S)


def before_middle(last: int) -> int:
    """After which number a reader can begin, so that it sees the end of a stream, also of the shortest."""
    return max(0, last // 2 - 1)


class Client:
    """One agent's user. Its choices follow from its seed."""

    def __init__(
        self, urls: Sequence[str], tally: Tally, history: list[Record], seed: int, excused: str | None = None
    ) -> None:
        """`excused`: what the answer to a message says if its run may have failed."""
        self._excused = excused
        # Apart from the other choices: how often something is tried is not ours to say.
        self._line = Line(urls, history, random.Random(seed))
        self.history = history
        self._tally = tally
        self._chance = random.Random(seed)
        self._name = f"client-{seed}"
        self._count = 0
        self.agent_id = ""
        self.accepted = 0
        self.background: list[str] = []  # run ids

    async def set_up(self, tool_ids: list[str]) -> None:
        body = {"model": "holdfast/offline", "include_base_tools": False, "tool_ids": tool_ids, "name": self._name}
        answer = await self._line.ask("POST", "/v1/agents/", body)
        assert answer.status_code == 200, answer.text
        self.agent_id = answer.json()["id"]

    @property
    def _messages(self) -> str:
        return f"/v1/agents/{self.agent_id}/messages"

    async def keep_busy(self, stop: asyncio.Event) -> None:
        looking = asyncio.create_task(self._keep_looking())
        while not stop.is_set():
            await self._do(self._chance.choice(_CHOICES))
        await self._decide()
        await self._block(self._marking("mark"))  # by a server that is left alone
        looking.cancel()
        await asyncio.wait([looking])
        if not looking.cancelled():
            looking.result()
        await self._line.http.aclose()

    async def _do(self, choice: str) -> None:
        match choice:
            case "say":
                await self._block("Hello [[delay:0.002]]")
            case "mark":
                await self._block(self._marking("mark"))
            case "stream":
                await self._stream("Hello [[tokens:20]] [[delay:0.005]]")
            case "background":
                await self._follow(_LONG)
            case "background mark":
                await self._follow(self._marking("mark"))
            case "async":
                await self._begin(self._marking("mark"))
            case "ask":
                await self._block(self._marking("ask"))
                await self._decide()
            case _:
                await self._cancel_one()

    def _marking(self, tool: str) -> str:
        self._count += 1
        return self._tally.message(tool, f"{self._name}/{self._count}", pause=self._chance.random() / 20)

    # --- ways of sending ---

    async def _block(self, text: str) -> None:
        otid, body = self._new(text)
        answer = await self._until_accepted(otid, self._messages, body)
        told: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        self._answered(
            otid, answer.status_code, _run_id_in(answer.text), told.get("stop_reason", {}).get("stop_reason")
        )
        self._check(answer.status_code, answer.text)

    async def _begin(self, text: str) -> None:
        """Asynchronous: asked for until it is over."""
        otid, body = self._new(text)
        answer = await self._until_accepted(otid, f"{self._messages}/async", body)
        self._check(answer.status_code, answer.text)
        run_id = answer.json()["id"]
        self._answered(otid, 200, run_id)
        self.background.append(run_id)
        while await self._is_active(run_id):  # noqa: ASYNC110 - over a socket there is no event to wait for
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _stream(self, text: str) -> None:
        """In the foreground: what is cut off is sent again, and shown from its beginning."""
        otid, body = self._new(text)
        body |= {"stream_tokens": self._chance.random() < 0.7}
        for number in range(10_000):
            reader = Reader(self._line, f"{otid}, try {number}")
            try:
                async with self._streaming(otid, body) as answer:
                    await reader.read(answer)
                return
            except CutOff:
                await asyncio.sleep(WHILE_AWAY_S)

    async def _follow(self, text: str) -> None:
        """In the background, with one more reader from anywhere, half of the time."""
        otid, body = self._new(text)
        body |= {"background": True, "stream_tokens": self._chance.random() < 0.7}
        first = Reader(self._line, otid)
        second = asyncio.create_task(self._read_too(first)) if self._chance.random() < 0.5 else None
        while not first.run_id:
            try:
                async with self._streaming(otid, body) as answer:
                    await first.read(answer)
                break
            except CutOff:
                await asyncio.sleep(WHILE_AWAY_S)
        else:
            await first.read_to_end()
        self.background.append(first.run_id)
        if second is not None:
            await second

    async def _read_too(self, first: Reader) -> None:
        """It comes a moment later, and begins at the beginning or in the middle of what there is."""
        from_middle = self._chance.random() < 0.5
        await first.begun.wait()
        after = before_middle(first.after) if from_middle else 0
        await Reader(self._line, f"{first.name}, second reader", first.run_id, after).read_to_end()

    @asynccontextmanager
    async def _streaming(self, otid: str, body: dict[str, Any]) -> AsyncGenerator[httpx.Response]:
        """Raises CutOff when it is to be sent again."""
        self._sent(otid, body)
        try:
            request = self._line.http.stream("POST", f"{self._line.anywhere()}{self._messages}/stream", json=body)
            async with request as answer:
                if answer.status_code != 200:
                    text = (await answer.aread()).decode()
                    self._answered(otid, answer.status_code)
                    await self._make_way(answer.status_code, text)
                    raise CutOff
                self._answered(otid, 200)
                yield answer
        except httpx.TransportError as error:
            self._line.lost(error)
            raise CutOff from error

    async def _until_accepted(self, otid: str, path: str, body: dict[str, Any]) -> httpx.Response:
        """The first answer that is neither: later, nor: the thread is busy."""
        while True:
            self._sent(otid, body)
            try:
                answer = await self._line.http.post(self._line.anywhere() + path, json=body)
            except httpx.TransportError as error:
                self._line.lost(error)
                await asyncio.sleep(WHILE_AWAY_S)
                continue
            if answer.status_code not in (409, 503):
                return answer
            self._answered(otid, answer.status_code)
            await self._make_way(answer.status_code, answer.text)

    async def _make_way(self, status: int, text: str) -> None:
        assert status in (409, 503) or self._is_excused(status, text), f"{status} {text}"
        if "PENDING_APPROVAL" in text:
            await self._decide()
        else:
            await asyncio.sleep(WHILE_AWAY_S)

    # --- decisions and cancels ---

    async def _decide(self) -> None:
        """Answers whatever is pending; somebody else may have withdrawn it. At times two answer at once, and differ."""
        shown = await self._line.ask("GET", f"/v1/agents/{self.agent_id}?include=agent.pending_approval")
        pending = shown.json().get("pending_approval")
        if not pending:
            return
        approve, rivals = self._chance.random() < 0.7, self._chance.random() < 0.4
        call_ids = [call["tool_call_id"] for call in pending["tool_calls"]]
        answers = (approve, not approve) if rivals else (approve,)
        await asyncio.gather(*(self._send_decision(call_ids, approve=each) for each in answers))

    async def _send_decision(self, call_ids: Sequence[str], *, approve: bool) -> None:
        """Repeated while nobody is there. Refused only if somebody else was quicker."""
        decisions = [{"type": "approval", "approve": approve, "tool_call_id": call_id} for call_id in call_ids]
        otid, body = self._new("", {"type": "approval", "approvals": decisions})
        while True:
            self._sent(otid, body, tuple(call_ids))
            try:
                answer = await self._line.http.post(self._line.anywhere() + self._messages, json=body)
            except httpx.TransportError as error:
                self._line.lost(error)
                await asyncio.sleep(WHILE_AWAY_S)
                continue
            self._answered(otid, answer.status_code, _run_id_in(answer.text) if answer.status_code == 200 else None)
            if answer.status_code != 503:
                break
            await asyncio.sleep(WHILE_AWAY_S)
        assert answer.status_code in (200, 400, 409) or self._is_excused(answer.status_code, answer.text), answer.text

    async def _cancel_one(self) -> None:
        """Begins something and stops it a moment later, through any server."""
        following = asyncio.create_task(self._follow("Hello [[tokens:100]] [[delay:0.005]]"))
        await asyncio.sleep(self._chance.random() / 5)
        answer = await self._line.ask("POST", f"{self._messages}/cancel", {})
        assert answer.status_code in (200, 409), answer.text
        if answer.status_code == 200:
            for run_id, result in answer.json().items():
                self.history.append(Cancelled(at_s=time.monotonic(), run_id=run_id, result=result))
        await following

    # --- looking ---

    async def _is_active(self, run_id: str) -> bool:
        asked_s = time.monotonic()
        answer = await self._line.ask("GET", f"/v1/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        run = answer.json()
        looked = Looked(
            at_s=time.monotonic(),
            asked_s=asked_s,
            run_id=run_id,
            status=run["status"],
            stop_reason=run.get("stop_reason"),
        )
        self.history.append(looked)
        return looked.status in ("created", "running")

    async def _keep_looking(self) -> None:
        """At the agent's active runs, of which there is one at most: the agent has one thread."""
        while True:
            asked_s = time.monotonic()
            answer = await self._line.ask("GET", f"/v1/runs/?agent_id={self.agent_id}&active=true")
            assert answer.status_code == 200, answer.text
            run_ids = tuple(run["id"] for run in answer.json())
            self.history.append(
                Listed(at_s=time.monotonic(), asked_s=asked_s, thread_id=self.agent_id, run_ids=run_ids)
            )
            await asyncio.sleep(_LOOK_EVERY_S)

    # --- writing down ---

    def _new(self, text: str, message: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Another otid, and a body with one message."""
        self._count += 1
        otid = f"{self._name}-otid-{self._count}"
        return otid, {"messages": [(message or {"role": "user", "content": text}) | {"otid": otid}]}

    def _sent(self, otid: str, body: dict[str, Any], decides: tuple[str, ...] = ()) -> None:
        text = str(body["messages"][0].get("content", ""))
        sent = Sent(at_s=time.monotonic(), otid=otid, thread_id=self.agent_id, text=text, decides=decides)
        self.history.append(sent)

    def _answered(self, otid: str, status: int, run_id: str | None = None, stop_reason: str | None = None) -> None:
        self.accepted += status == 200
        self.history.append(
            Answered(at_s=time.monotonic(), otid=otid, status=status, run_id=run_id, stop_reason=stop_reason)
        )

    def _check(self, status: int, text: str) -> None:
        assert status == 200 or self._is_excused(status, text), f"{status} {text}"

    def _is_excused(self, status: int, text: str) -> bool:
        return status == 500 and self._excused is not None and self._excused in text


_CHOICES = ("say", "mark", "stream", "background", "background mark", "async", "ask", "cancel")


def _run_id_in(shown: str) -> str | None:
    place = shown.find('"run_id":"run-')
    return shown[place + 10 : place + 50] if place >= 0 else None
