from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.mcp import McpServer

SERVER = McpServer(id="mcp_server-1", name="harbour", kind="streamable_http", url="https://a.example/mcp")


@pytest.mark.parametrize(
    "changes", [{"kind": "sse"}, {"url": "https://b.example/mcp"}, {"command": "x"}, {"args": ("x",)}]
)
def test_a_server_that_is_called_otherwise_has_another_destination(changes: dict[str, Any]) -> None:
    assert msgspec.structs.replace(SERVER, **changes).destination != SERVER.destination


@pytest.mark.parametrize("changes", [{"name": "port"}, {"secrets": "sealed"}, {"sync_error": "no"}, {"updated_us": 5}])
def test_what_else_changes_of_a_server_leaves_its_destination(changes: dict[str, Any]) -> None:
    assert msgspec.structs.replace(SERVER, **changes).destination == SERVER.destination
