from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

import pytest
from aiohttp import web

from holdfast.errors import Invalid
from holdfast.netguard import Target, check_url
from holdfast.outgoing import fetch_image, guarded_session

PIXEL = b"\x89PNG\r\n\x1a\n..."
LOOPBACK = ("127.0.0.0/8",)
Answer = Callable[[web.Request], web.StreamResponse]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://localhost/",
        "http://0.0.0.0/",
        "http://10.1.2.3/",
        "http://172.16.0.1/",
        "http://192.168.0.1:8080/x",
        "http://169.254.169.254/latest/meta-data/",
        "http://100.64.0.1/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "http://[::]/",
        "http://[::1]/",
        "http://[fe80::1]/",
        "http://[fd00::1]/",
        "http://[ff02::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
    ],
)
async def test_an_address_that_is_not_public_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="not a public address"):
        await check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://8.8.8.8/",
        "file:///etc/passwd",
        "gopher://8.8.8.8",
        "//8.8.8.8",
        "",
        "http://",
        "http://[::1",
        "http://8.8.8.8:0",
    ],
)
async def test_only_http_urls_with_a_host_are_accepted(url: str) -> None:
    with pytest.raises(Invalid):
        await check_url(url)


async def test_credentials_in_a_url_are_refused() -> None:
    with pytest.raises(Invalid, match="user name"):
        await check_url("http://me:secret@8.8.8.8/")


async def test_a_public_address_is_returned_to_connect_to() -> None:
    target = await check_url("https://8.8.8.8/x")
    assert (target.addresses, target.port) == (("8.8.8.8",), 443)


@pytest.mark.parametrize("entry", ["127.0.0.1", "127.0.0.0/8"])
async def test_a_listed_address_or_network_is_allowed(entry: str) -> None:
    assert (await check_url("http://127.0.0.1:81/", [entry])).addresses == ("127.0.0.1",)
    (mapped,) = (await check_url("http://[::ffff:127.0.0.1]/", [entry])).addresses
    assert ip_address(mapped) == ip_address("::ffff:127.0.0.1")  # versions of Python spell it differently
    with pytest.raises(Invalid):
        await check_url("http://10.0.0.1/", [entry])


async def test_a_listed_name_is_allowed_wherever_it_points() -> None:
    assert "127.0.0.1" in (await check_url("http://LOCALHOST./", ["localhost"])).addresses


async def test_a_name_that_changes_its_address_after_the_check_is_not_followed() -> None:
    """The session must use the judged address, whatever the name says later; here the name never existed."""
    async with serving(lambda request: web.Response(text=request.host)) as port:
        target = Target(f"http://judged.invalid:{port}/", "judged.invalid", port, ("127.0.0.1",))
        async with guarded_session(target, 5.0) as session, session.get(target.url) as answer:
            assert await answer.text() == f"judged.invalid:{port}"
        async with guarded_session(target, 5.0) as session:
            with pytest.raises(OSError, match="was not checked"):
                await session.get(f"http://other.invalid:{port}/")


async def test_an_image_comes_as_media_type_and_bytes() -> None:
    async with serving(lambda _: web.Response(body=PIXEL, content_type="image/png")) as port:
        fetched = await fetch_image(f"http://127.0.0.1:{port}/a.png", LOOPBACK)
    assert fetched == ("image/png", PIXEL)


def _moved(location: str) -> Answer:
    return lambda _: web.Response(status=302, headers={"location": location})


def _moved_to_itself(request: web.Request) -> web.Response:
    return web.Response(status=302, headers={"location": str(request.url)})


def _content(body: bytes, content_type: str) -> Answer:
    return lambda _: web.Response(body=body, content_type=content_type)


def _missing(_: web.Request) -> web.Response:
    return web.Response(status=404)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (_content(b"<html>", "text/html"), "text/html"),
        (_missing, "status 404"),
        (_content(b"x" * 2000, "image/png"), "larger than 1000 bytes"),
        (_moved("http://10.0.0.1/"), "not a public address"),
        (_moved("file:///etc/passwd"), "not an http"),
        (_moved_to_itself, "redirected more than"),
    ],
)
async def test_anything_but_a_small_image_is_refused_without_a_second_try(answer: Answer, problem: str) -> None:
    async with serving(answer) as port:
        with pytest.raises(Invalid, match=problem):
            await fetch_image(f"http://127.0.0.1:{port}/", LOOPBACK, max_bytes=1000)


async def test_a_busy_server_is_asked_twice_and_no_more() -> None:
    asked: list[str] = []

    def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=503) if len(asked) != 2 else web.Response(body=PIXEL, content_type="image/gif")

    async with serving(answer) as port:
        assert (await fetch_image(f"http://127.0.0.1:{port}/", LOOPBACK))[0] == "image/gif"
        asked[:] = ["", ""]
        with pytest.raises(Invalid, match="status 503"):
            await fetch_image(f"http://127.0.0.1:{port}/", LOOPBACK)
    assert len(asked) == 4


async def test_a_silent_server_is_given_up() -> None:
    # The kernel accepts the connection; nobody ever answers on it.
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Invalid, match=r"within 0\.1 seconds"):
        await fetch_image(f"http://127.0.0.1:{silent.getsockname()[1]}/", LOOPBACK, timeout_s=0.1)


async def test_a_closed_port_is_reported_as_the_caller_s_problem() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # taken, so that nobody else listens there either
        with pytest.raises(Invalid, match="could not be fetched"):
            await fetch_image(f"http://127.0.0.1:{deaf.getsockname()[1]}/", LOOPBACK)


@asynccontextmanager
async def pictures(content: bytes, media_type: str) -> AsyncGenerator[tuple[str, list[str]]]:
    """One picture, where it is, and the paths that were asked for."""
    asked: list[str] = []

    def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(body=content, content_type=media_type)

    async with serving(answer) as port:
        yield f"http://127.0.0.1:{port}/picture", asked


@asynccontextmanager
async def serving(answer: Answer) -> AsyncGenerator[int]:
    async def respond(request: web.Request) -> Any:
        return answer(request)

    app = web.Application()
    app.router.add_get("/{path:.*}", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
