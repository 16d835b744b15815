"""The two generations of clients. They send the same requests and expect different answers.

The one place that tells them apart: routes ask for what a client expects, never for its version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

_STAINLESS: Final = b"x-stainless-package-version"
_USER_AGENT: Final = b"user-agent"
_SDK_1: Final = re.compile(rb"(@letta-ai/)?letta-client/1\.[^/]*")


class Client(msgspec.Struct, frozen=True, kw_only=True):
    whole_agents: bool  # agents that are read come with all relations, unless the request names some
    agent_after_change: bool  # a changed tool list is answered with the agent, otherwise with null
    streams_by_option: bool  # `streaming: true` makes the main message route stream


CLIENT_0X: Final = Client(whole_agents=True, agent_after_change=True, streams_by_option=False)
CLIENT_1X: Final = Client(whole_agents=False, agent_after_change=False, streams_by_option=True)


def client_of(headers: Iterable[tuple[bytes, bytes]]) -> Client:
    """SDKs of 1.x send a Stainless header, whose version is not looked at. Whoever names itself otherwise, as curl and
    every HTTP library do, is served as 0.x; whoever does not name itself is served as 1.x."""
    user_agent = b""
    for name, value in headers:
        if name == _STAINLESS and value:
            return CLIENT_1X
        if name == _USER_AGENT:
            user_agent = value
    return CLIENT_1X if not user_agent or _SDK_1.fullmatch(user_agent) else CLIENT_0X
