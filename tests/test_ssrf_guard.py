from __future__ import annotations

import resource
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

import pytest
from aiohttp import ClientConnectorError, web

from holdfast.errors import Invalid
from holdfast.outgoing_http import fetch_image, guarded_session
from holdfast.ssrf_guard import Guard, NotPublic, Unresolved, check_url, is_of_this_machine
from tests.names import Names

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
        "http://0177.0.0.1/",
        "http://0x7f.1/",
        "http://127.0.0.1./",
        "http://localhost./",
        "http://１２７.０.０.１/",
        "http://[::7f00:1]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[64:ff9b:1::1]/",
        "http://[2002:a9fe:a9fe::]/",
        "http://[2001:0:7f00:1::80ff:fffe]/",
        "http://[fec0::1]/",
        "http://[fd00:ec2::254]/",
        "http://100.100.100.200/",
        "http://168.63.129.16/",
        "http://192.0.0.192/",
        "http://198.18.0.1/",
        "http://240.0.0.1/",
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
    assert await check_url("https://8.8.8.8/x") == ("8.8.8.8",)
    assert await check_url("http://[2606:4700:4700::1111]/") == ("2606:4700:4700::1111",)


@pytest.mark.parametrize("entry", ["127.0.0.1", "127.0.0.0/8"])
async def test_a_listed_address_or_network_is_allowed(entry: str) -> None:
    assert await check_url("http://127.0.0.1:81/", [entry]) == ("127.0.0.1",)
    (mapped,) = await check_url("http://[::ffff:127.0.0.1]/", [entry])
    assert ip_address(mapped) == ip_address("::ffff:127.0.0.1")  # versions of Python spell it differently
    with pytest.raises(Invalid):
        await check_url("http://10.0.0.1/", [entry])


async def test_a_listed_name_is_allowed_wherever_it_points() -> None:
    assert "127.0.0.1" in await check_url("http://LOCALHOST./", ["localhost"])


async def test_credentials_that_look_like_a_host_are_refused() -> None:
    with pytest.raises(Invalid, match="user name"):
        await check_url("http://8.8.8.8@127.0.0.1/")


async def test_a_name_with_one_private_address_is_refused(names: Names) -> None:
    for addresses in (["8.8.8.8", "10.0.0.1"], ["10.0.0.1", "8.8.8.8"], ["8.8.8.8", "::1"], ["8.8.8.8", "fe80::1"]):
        names.point("mixed.example", addresses)
        with pytest.raises(Invalid, match="not a public address"):
            await check_url("http://mixed.example/")
    names.point("mixed.example", ["8.8.8.8", "2606:4700:4700::1111"])
    assert len(await check_url("http://mixed.example/")) == 2


async def test_a_refusal_does_not_tell_what_a_name_leads_to(names: Names) -> None:
    """Or everybody with a key could read the names of a private network."""
    names.point("database.internal", ["10.11.12.13"])
    with pytest.raises(Invalid) as refused:
        await check_url("http://database.internal/")
    assert "10.11.12.13" not in refused.value.message


async def test_a_name_that_cannot_be_looked_up_for_now_is_told_from_one_that_does_not_exist(names: Names) -> None:
    names.fail_for_now("slow.example")
    names.point("none.example", [])
    with pytest.raises(Unresolved):
        await check_url("http://slow.example/")
    with pytest.raises(Invalid, match="check how it is written") as refused:
        await check_url("http://none.example/")
    assert not isinstance(refused.value, Unresolved)


def test_the_addresses_of_this_machine_are_known() -> None:
    assert is_of_this_machine("127.0.0.5")
    assert not is_of_this_machine("8.8.8.8")
    assert not is_of_this_machine("2606:4700:4700::1111")


def test_an_address_counts_as_this_machines_when_no_socket_can_be_opened_to_find_out() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert is_of_this_machine("8.8.8.8")
        assert is_of_this_machine("2606:4700:4700::1111")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_session_connects_only_to_what_is_allowed_when_it_connects(names: Names) -> None:
    """Whatever the name said before: here it is looked up by the session alone."""
    names.point("bücher.example".encode("idna").decode(), ["127.0.0.1"])
    guard = Guard(LOOPBACK)
    async with serving(lambda request: web.Response(text=request.host)) as port:
        async with guarded_session(guard, 5.0) as session, session.get(f"http://bücher.example:{port}/") as answer:
            assert await answer.text() == f"xn--bcher-kva.example:{port}"
        for host in ("xn--bcher-kva.example", "127.0.0.1", "[::ffff:127.0.0.1]", "localhost", "１２７.０.０.１"):
            async with guarded_session(Guard(), 5.0) as session:
                with pytest.raises(ClientConnectorError) as refused:
                    await session.get(f"http://{host}:{port}/")
                assert isinstance(refused.value.os_error, NotPublic), host


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
        (_moved("http://[::1"), "not a URL"),
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
