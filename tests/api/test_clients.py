"""Headers as real programs send them, and whom the old server took each for."""

from __future__ import annotations

import pytest

from holdfast.api.params import CLIENT_0X, CLIENT_1X, client_of

STAINLESS = b"x-stainless-package-version"


@pytest.mark.parametrize(
    "user_agent",
    [
        b"letta-client/1.0.0",
        b"letta-client/1.12.1",
        b"letta-client/1.0.0a5",
        b"@letta-ai/letta-client/1.0.0-alpha.2",
        b"@letta-ai/letta-client/1.12.1",
        b"",
    ],
)
def test_user_agents_of_1x(user_agent: bytes) -> None:
    assert client_of([(b"user-agent", user_agent)]) is CLIENT_1X


@pytest.mark.parametrize(
    "user_agent",
    [
        b"letta-client/0.1.307",
        b"@letta-ai/letta-client/0.1.211",
        b"letta-client/1",
        b"letta-client/10.0",
        b"letta-client/2.0",
        b"letta-client/1.0/more",
        b"@other/letta-client/1.0",
        b"not-letta-client/1.0",
        b"curl/8.0",
        b"python-requests/2.32",
        b"Python-urllib/3.11",
        b"Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0",
        b"node",
        b"\xff\xfe",
    ],
)
def test_user_agents_of_0x_and_of_everybody_else(user_agent: bytes) -> None:
    assert client_of([(b"user-agent", user_agent)]) is CLIENT_0X


def test_whoever_does_not_name_itself_is_1x() -> None:
    assert client_of([]) is CLIENT_1X
    assert client_of([(b"host", b"localhost")]) is CLIENT_1X


def test_a_stainless_header_wins_whatever_it_says_and_wherever_it_stands() -> None:
    for version in (b"1.12.1", b"0.9.0", b"any"):
        headers = [(b"user-agent", b"curl/8.0"), (STAINLESS, version)]
        assert client_of(headers) is client_of(reversed(headers)) is CLIENT_1X
    assert client_of([(STAINLESS, b""), (b"user-agent", b"curl/8.0")]) is CLIENT_0X
