"""The environment variables that are about MCP servers."""

from __future__ import annotations

from typing import Final

from holdfast.setting_values import http_url, seconds, truth, whole
from holdfast.variables import Variable


def _untruth(text: str) -> bool:
    return not truth(text)


MCP_VARIABLES: Final[tuple[Variable, ...]] = (
    Variable(
        "mcp_stdio",
        ("MCP_DISABLE_STDIO",),
        _untruth,
        "The old server's word for the next, the other way round: `false` allows MCP servers that are programs.",
    ),
    Variable(
        "mcp_stdio",
        ("HOLDFAST_MCP_STDIO",),
        truth,
        "Allows MCP servers that are programs on this machine: whoever may call the API may then start any program.",
    ),
    Variable(
        "mcp_connect_timeout_s",
        ("HOLDFAST_MCP_CONNECT_TIMEOUT_S", "MCP_CONNECT_TO_SERVER_TIMEOUT"),
        seconds(0.1, 3600),
        "How long a connection to an MCP server may take, its handshake included.",
    ),
    Variable(
        "mcp_list_timeout_s",
        ("HOLDFAST_MCP_LIST_TIMEOUT_S", "MCP_LIST_TOOLS_TIMEOUT"),
        seconds(0.1, 3600),
        "How long an MCP server may take to list its tools.",
    ),
    Variable(
        "mcp_call_timeout_s",
        ("HOLDFAST_MCP_CALL_TIMEOUT_S", "MCP_EXECUTE_TOOL_TIMEOUT"),
        seconds(0.1, 86_400),
        "How long an MCP server may take for a call of a tool.",
    ),
    Variable(
        "mcp_answer_bytes",
        ("HOLDFAST_MCP_ANSWER_BYTES",),
        whole(1024, 2**30),
        "The largest answer that an MCP server may give.",
    ),
    Variable(
        "mcp_trust_annotations",
        ("HOLDFAST_MCP_TRUST_ANNOTATIONS",),
        truth,
        "Believes MCP servers that say of a tool that it may be repeated: a call of it that a crash cut off is.",
    ),
    Variable(
        "public_url",
        ("HOLDFAST_PUBLIC_URL", "LETTA_AGENTS_ENDPOINT"),
        http_url,
        "How browsers reach this server, for logins at MCP servers; unset means its host and port.",
    ),
)
