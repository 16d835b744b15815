"""Pictures on their way from a client to a vendor."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.messages import Image

from ..llm.fakes.anthropic import AnthropicProtocol
from ..llm.fakes.chat import ChatProtocol
from ..llm.fakes.server import FakeVendor
from ..llm.test_http import listening
from ..served import ServedClient, served
from ..test_ssrf_guard import LOOPBACK, PIXEL, pictures

KEYS = {"openai-proxy": ("OPENAI_API_KEY", "OPENAI_BASE_URL"), "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")}
SEEN = Image("image/png", base64.b64encode(PIXEL).decode())


@pytest.fixture
async def vendor() -> AsyncGenerator[FakeVendor]:
    async with FakeVendor(ChatProtocol(), AnthropicProtocol()).serving() as vendor:
        yield vendor


@pytest.fixture(params=KEYS)
async def shown(
    vendor: FakeVendor, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncGenerator[tuple[ServedClient, str]]:
    key, address = KEYS[request.param]
    async with served(tmp_path, providers={key: "k", address: vendor.url}, allowed_hosts=LOOPBACK) as client:
        agent = await client.agent(model=f"{request.param}/offline")
        yield client, f"/v1/agents/{agent.id}/messages"


def asking_about(source: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]
    return {"messages": [{"role": "user", "content": content}]}


def images_in(vendor: FakeVendor) -> list[Image]:
    return [part for turn in vendor.asked.turns for part in turn.parts if isinstance(part, Image)]


async def test_a_picture_at_an_address_is_fetched_once_and_shown_in_every_turn(
    shown: tuple[ServedClient, str], vendor: FakeVendor
) -> None:
    client, path = shown
    async with pictures(PIXEL, "image/png") as (url, asked):
        await client.ask("POST", path, asking_about({"type": "url", "url": url}))
        assert images_in(vendor) == [SEEN]
    await client.ask("POST", path, {"input": "And what was it?"})
    assert images_in(vendor) == [SEEN]
    assert len(asked) == 1


async def test_a_picture_is_shown_as_what_it_is_whatever_it_is_called(
    shown: tuple[ServedClient, str], vendor: FakeVendor
) -> None:
    client, path = shown
    await client.ask("POST", path, asking_about({"type": "base64", "media_type": "image/jpeg", "data": SEEN.data}))
    assert images_in(vendor) == [SEEN]
    async with pictures(PIXEL, "image/webp") as (url, _):
        await client.ask("POST", path, asking_about({"type": "url", "url": url}))
    assert images_in(vendor) == [SEEN, SEEN]


async def test_a_picture_that_cannot_be_had_is_refused_and_nothing_is_stored(
    shown: tuple[ServedClient, str], vendor: FakeVendor
) -> None:
    client, path = shown
    async with pictures(b"", "image/png") as (empty, _):
        told = await client.refusal(400, "POST", path, asking_about({"type": "url", "url": empty}))
    assert told == f"The image at {empty} is empty, or is not the image/png that its server calls it."
    async with pictures(b"notpng", "image/png") as (false, _):
        told = await client.refusal(400, "POST", path, asking_about({"type": "url", "url": false}))
    assert "is not the image/png" in told
    sent = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"notpng").decode()}
    assert "not an image" in await client.refusal(400, "POST", path, asking_about(sent))
    told = await client.refusal(400, "POST", path, asking_about({"type": "url", "url": empty}))
    assert "could not be fetched" in told
    assert [message["message_type"] for message in await client.ask("GET", path)] == ["system_message"]
    assert not [exchange for exchange in vendor.exchanges if exchange.method == "POST"]


@pytest.mark.parametrize(
    "location",
    [
        b"http://[::1",
        b"http://[not-an-address]/",
        b"http://127.0.0.1:99999/",
        b"//",
        b"http://\xff\xfe/",
        b"/\xff\xfe",
        b"http://me:secret@127.0.0.1/",
        b"gopher://127.0.0.1/",
    ],
)
async def test_a_picture_that_is_redirected_to_something_malformed_is_refused(
    shown: tuple[ServedClient, str], location: bytes
) -> None:
    client, path = shown

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 Found\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % location)
        writer.close()

    async with listening(answer) as url:
        await client.refusal(400, "POST", path, asking_about({"type": "url", "url": url}))
    assert [message["message_type"] for message in await client.ask("GET", path)] == ["system_message"]
