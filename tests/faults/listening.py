"""Reads event streams of a real server as a client does, also those that end too early."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx


class Listener:
    """Reads one stream to its end, and knows the names of events."""

    def __init__(self, url: str, path: str, body: dict[str, Any]) -> None:
        self.events: list[Any] = []
        self.names: list[str] = []
        self.begun = asyncio.Event()
        self.broken = False  # the connection ended instead of the response
        self._url, self._path, self._body = url, path, body

    async def read(self) -> None:
        try:
            async with (
                httpx.AsyncClient(base_url=self._url, timeout=90) as http,
                http.stream("POST", self._path, json=self._body) as answer,
            ):
                assert answer.status_code == 200, await answer.aread()
                async for line in answer.aiter_lines():
                    self._hear(line)
        except (httpx.RemoteProtocolError, httpx.ReadError):
            self.broken = True
        finally:
            self.begun.set()

    def _hear(self, line: str) -> None:
        if line.startswith("event: "):
            self.names.append(line.removeprefix("event: "))
        if line.startswith("data: "):
            text = line.removeprefix("data: ")
            self.events.append(text if text == "[DONE]" else json.loads(text))
        if len(self.events) > 3:
            self.begun.set()

    @property
    def run_id(self) -> str:
        return str(next(event["run_id"] for event in self.events if event != "[DONE]" and event.get("run_id")))

    async def is_accepted(self) -> bool | None:
        """For `fleet.poll`, as the next."""
        return bool(self.events) or None

    async def has_content(self) -> bool | None:
        return any(event != "[DONE]" and event["message_type"] != "ping" for event in self.events) or None

    @property
    def kinds(self) -> list[str]:
        return [event["message_type"] for event in self.events if event != "[DONE]"]

    @property
    def last_seq_id(self) -> int:
        numbers = [event["seq_id"] for event in self.events if event != "[DONE]" and event.get("seq_id") is not None]
        return int(numbers[-1])

    def text(self) -> str:
        return "".join(str(event["content"]) for event in self.events if event != "[DONE]" and "content" in event)


def sending(url: str, agent_id: str, text: str, **options: Any) -> Listener:
    body = {"input": text, "include_pings": True, "stream_tokens": True, **options}
    return Listener(url, f"/v1/agents/{agent_id}/messages/stream", body)


def attaching(url: str, run_id: str, after: int) -> Listener:
    return Listener(url, f"/v1/runs/{run_id}/stream", {"starting_after": after})
