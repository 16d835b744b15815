"""Clients that do not give up: each keeps one agent busy, and repeats what was not answered until it is.

Every request has an otid, so a repeat is the same request. What a tool does to the world outside is counted by `Tally`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

TALLY = '''
import socket, time

def {name}(port: int, key: str, pause: float) -> str:
    """Leaves a mark in the world outside.

    Args:
        port: where marks are counted
        key: what is counted
        pause: seconds to wait afterwards
    """
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(key.encode() + b"\\n")
        line.recv(1)
    time.sleep(pause)
    return "marked " + key
'''
_WHILE_AWAY_S = 0.1


class Tally:
    """Counts marks by key, apart from the servers: they may be killed, and a mark that was made stays."""

    def __init__(self) -> None:
        self.marks = Counter[str]()
        self.marked = asyncio.Event()
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        server = await asyncio.start_server(self._mark, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield

    def message(self, tool: str, key: str, pause: float = 0.0) -> str:
        """Makes the offline model call a tool that is made of `TALLY`, and then end its turn."""
        given = json.dumps({"port": self.port, "key": key, "pause": pause})
        return f"[[call:{tool} {given}]] [[no_reasoning]] [[say:Done.]]"

    async def _mark(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        key = (await reader.readline()).decode().strip()
        if key:
            self.marks[key] += 1
            self.marked.set()
        try:
            writer.write(b".")
            await writer.drain()
        except ConnectionError:
            pass  # the tool was killed; its mark stays
        finally:
            writer.close()


class Sent(msgspec.Struct):
    """A request that was answered for good."""

    otid: str
    run_id: str | None
    status: int


class Client:
    """One agent's user. Its choices follow from its seed. Each try goes to any one of the servers."""

    def __init__(self, urls: Sequence[str], tally: Tally, seed: int, excused: str | None = None) -> None:
        """`excused`: what the answer to a message says if its run may have failed."""
        self._excused = excused
        self._http = httpx.AsyncClient(timeout=30)
        self._urls = urls
        self._any = random.Random(seed)  # apart from the other choices: how often something is tried is not ours to say
        self._tally = tally
        self._chance = random.Random(seed)
        self._name = f"client-{seed}"
        self._count = 0
        self.agent_id = ""
        self.sent: list[Sent] = []
        self.background: list[str] = []  # run ids

    async def set_up(self, tool_ids: list[str]) -> None:
        body = {"model": "holdfast/offline", "include_base_tools": False, "tool_ids": tool_ids, "name": self._name}
        answer = await self._http.post(f"{self._urls[0]}/v1/agents/", json=body)
        assert answer.status_code == 200, answer.text
        self.agent_id = answer.json()["id"]

    async def keep_busy(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            choice = self._chance.choice(("say", "mark", "mark", "background", "background mark", "ask", "cancel"))
            match choice:
                case "say":
                    await self._send("Hello [[delay:0.002]]")
                case "mark":
                    await self._send(self._marking("mark"))
                case "background" | "background mark":
                    text = "Hello [[tokens:40]] [[delay:0.002]]" if choice == "background" else self._marking("mark")
                    await self._send(text, streaming=True)
                case "ask":
                    await self._send(self._marking("ask"))
                    await self._decide()
                case _:
                    await self._cancel_one()
        await self._decide()
        await self._send(self._marking("mark"))  # by a server that is left alone
        await self._http.aclose()

    def _marking(self, tool: str) -> str:
        self._count += 1
        return self._tally.message(tool, f"{self._name}/{self._count}", pause=self._chance.random() / 20)

    async def _send(self, text: str, *, streaming: bool = False) -> None:
        message = {"role": "user", "content": text}
        await self._send_body({"messages": [message]}, streaming=streaming)

    async def _send_body(self, body: dict[str, Any], *, streaming: bool = False) -> None:
        self._count += 1
        otid = f"{self._name}-otid-{self._count}"
        body["messages"][0]["otid"] = otid
        path = f"/v1/agents/{self.agent_id}/messages"
        if streaming:
            path += "/stream"
            body |= {"background": True, "stream_tokens": self._chance.random() < 0.7}
        while True:
            status, shown = await self._until_answered("POST", path, body)
            if status == 409 and "PENDING_APPROVAL" in shown:
                await self._decide()
            elif status == 409:
                await asyncio.sleep(_WHILE_AWAY_S)
            else:
                break
        if status == 500 and self._excused is not None and self._excused in shown:
            return
        assert status == 200, f"{status} {shown}"
        run_id = _run_id_in(shown)
        self.sent.append(Sent(otid, run_id, status))
        if streaming and run_id is not None:
            self.background.append(run_id)

    async def _decide(self) -> None:
        """Answers whatever is pending; somebody else may have withdrawn it."""
        _, shown = await self._until_answered("GET", f"/v1/agents/{self.agent_id}?include=agent.pending_approval", None)
        pending = json.loads(shown).get("pending_approval")
        if not pending:
            return
        approve = self._chance.random() < 0.7
        decisions = [
            {"type": "approval", "approve": approve, "tool_call_id": call["tool_call_id"]}
            for call in pending["tool_calls"]
        ]
        await self._send_body({"messages": [{"type": "approval", "approvals": decisions}]})

    async def _cancel_one(self) -> None:
        """Begins something and stops it a moment later."""
        sending = asyncio.create_task(self._send("Hello [[tokens:100]] [[delay:0.005]]", streaming=True))
        await asyncio.sleep(self._chance.random() / 10)
        status, shown = await self._until_answered("POST", f"/v1/agents/{self.agent_id}/messages/cancel", {})
        assert status in (200, 409), f"{status} {shown}"
        await sending

    async def _until_answered(self, method: str, path: str, body: Any) -> tuple[int, str]:
        """A stream counts as answered only when it was read to its end."""
        while True:
            try:
                answer = await self._http.request(method, self._any.choice(self._urls) + path, json=body)
            except httpx.TransportError:
                await asyncio.sleep(_WHILE_AWAY_S)
                continue
            if answer.status_code == 503:  # the one refusal that says: later
                await asyncio.sleep(_WHILE_AWAY_S)
                continue
            cut_off = answer.headers.get("content-type", "").startswith("text/event-stream") and (
                '"message_type":"stop_reason"' not in answer.text.replace(" ", "")
            )
            if not cut_off:
                return answer.status_code, answer.text


def _run_id_in(shown: str) -> str | None:
    place = shown.find('"run_id":"run-')
    return shown[place + 10 : place + 50] if place >= 0 else None
