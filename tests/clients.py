"""Whom plain HTTP requests of the tests stand for. An HTTP library that names itself is served as a client of 0.x."""

from __future__ import annotations

from typing import Final

AS_1X: Final = {"user-agent": "letta-client/1.12.0"}
AS_0X: Final = {"user-agent": "letta-client/0.1.307"}
