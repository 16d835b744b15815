"""What the adapters' suite cannot see of the pool: answers that are read whole, and errors of any size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from holdfast.errors import BadReply, ModelUnavailable, Refused, Rejected
from holdfast.llm import http as http_module
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.http import Http

from .fakes.chat import ChatProtocol
from .fakes.server import FakeVendor


def at(url: str) -> Endpoint:
    return Endpoint(provider_name="acme", provider_type="openai", base_url=url)


@asynccontextmanager
async def answering(status: int, body: bytes, header: str = "") -> AsyncGenerator[str]:
    """A server that says the same to everyone, in pieces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d Said\r\nconnection: close\r\n%b\r\n" % (status, header.encode()))
        for start in range(0, len(body), 10_000):
            writer.write(body[start : start + 10_000])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async with listening(answer) as url:
        yield url


@asynccontextmanager
async def listening(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncGenerator[str]:
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
    elsewhere: list[bytes] = []

    async def lure(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        elsewhere.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    async with listening(lure) as target, answering(302, b"", f"location: {target}/models\r\n") as url, pool() as http:
        with pytest.raises(Rejected):
            await http.json(at(url), "/models")
    assert elsewhere == []


async def test_no_cookie_is_kept() -> None:
    """Of a name, that is: of an address no client keeps any."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nset-cookie: who=ada\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    async with listening(answer) as url, pool() as http:
        for _ in range(2):
            await http.json(at(url.replace("127.0.0.1", "localhost")), "/models")
    assert [b"who=ada" in head for head in heads] == [False, False]


async def test_nobody_waits_for_the_silence_of_others_however_many_they_are() -> None:
    many, came, all_came = 101, 0, asyncio.Event()  # a pool's usual limit is a hundred

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        await reader.readuntil(b"\r\n\r\n")
        came += 1
        if came == many:
            all_came.set()
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with listening(keep_silent) as url, pool() as http:
        asking = [asyncio.create_task(http.json(at(url), "/models")) for _ in range(many)]
        await asyncio.wait({asyncio.create_task(all_came.wait())}, timeout=50)
        assert came == many
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_a_stream_of_nothing_but_comments_is_a_stream() -> None:
    async with answering(200, b": waiting\n\n: still\n\n") as url, pool() as http:
        assert [group async for group in http.events(at(url), "/x", b"{}", {})] == []


async def test_an_end_that_comes_after_the_last_word_is_waited_for_and_the_connection_serves_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_module, "_LAST_BYTES_S", 30.0)  # what a busy machine may need
    came: list[asyncio.StreamWriter] = []
    heard = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n{}")
                heard.clear()
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nc\r\ndata: last\n\n\r\n")
                await heard.wait()
                writer.write(b"0\r\n\r\n")
        writer.close()

    async with listening(answer) as url, pool() as http:
        for _ in range(2):
            async for _ in http.events(at(url), "/x", b"{}", {}, is_last=lambda _: True):
                heard.set()
    assert len(came) == 1
