"""What the adapters' suite cannot see of the pool: answers that are read whole, and errors of any size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from holdfast.errors import BadReply, ModelUnavailable, Refused, Rejected
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.http import Http

from .fakes.chat import ChatProtocol
from .fakes.server import FakeVendor


def at(url: str) -> Endpoint:
    return Endpoint(provider_name="acme", provider_type="openai", base_url=url)


@asynccontextmanager
async def answering(status: int, body: bytes) -> AsyncGenerator[str]:
    """A server that says the same to everyone, in pieces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d Said\r\nconnection: close\r\n\r\n" % status)
        for start in range(0, len(body), 10_000):
            writer.write(body[start : start + 10_000])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def pool() -> AsyncGenerator[Http]:
    http = Http(first_byte_s=60, total_s=60)
    try:
        yield http
    finally:
        await http.aclose()


async def test_a_list_of_models_is_read() -> None:
    vendor = FakeVendor(ChatProtocol())
    async with vendor.serving(), pool() as http:
        listed = await http.json(at(f"{vendor.url}/v1"), "/models")
    assert [one["id"] for one in listed["data"]] == ["offline", "text-embedding-offline"]


async def test_a_long_answer_is_read_to_its_end() -> None:
    listed = {"data": [{"id": f"model-{number}"} for number in range(20_000)]}
    async with answering(200, msgspec.json.encode(listed)) as url, pool() as http:
        assert await http.json(at(url), "/models") == listed


async def test_a_long_error_is_read_to_its_sentence() -> None:
    error = {"error": {"details": "x" * 30_000, "message": "that is why", "type": "invalid_request_error"}}
    async with answering(400, msgspec.json.encode(error)) as url, pool() as http:
        with pytest.raises(Refused, match="that is why"):
            await http.json(at(url), "/models")


async def test_an_error_without_end_is_not_read_to_its_end() -> None:
    async with answering(500, b"x" * 1_000_000) as url, pool() as http:
        with pytest.raises(ModelUnavailable) as caught:
            await http.json(at(url), "/models")
    assert len(caught.value.message) < 2_100


async def test_an_answer_that_is_no_json_is_a_bad_reply() -> None:
    async with answering(200, b"<html>") as url, pool() as http:
        with pytest.raises(BadReply):
            await http.json(at(url), "/models")


async def test_a_redirect_is_not_followed() -> None:
    async with answering(302, b"") as url, pool() as http:
        with pytest.raises(Rejected):
            await http.json(at(url), "/models")


async def test_a_stream_of_nothing_but_comments_is_a_stream() -> None:
    async with answering(200, b": waiting\n\n: still\n\n") as url, pool() as http:
        assert [group async for group in http.events(at(url), "/x", b"{}", {})] == []
