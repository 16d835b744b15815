"""What makes a tool that very tool: its id, its version and a hash over what it runs and what an approver is shown.

It is worked out only where an approval is asked for, answered or carried out; other calls do not need it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from holdfast.core.records import MCP_TAG, Tool

# Everything else of a tool is part of its hash, so that a field added later is covered as soon as it is used.
# Tags are part of it: some of them, such as retry-safe, change how a tool is run.
_NOT_HASHED: Final = frozenset(
    {
        "id",
        "version",
        "return_char_limit",
        "default_requires_approval",
        "enable_parallel_execution",
        "metadata",
        "project_id",
        "created_us",
        "updated_us",
    }
)
_HASHED: Final = tuple(name for name in Tool.__struct_fields__ if name not in _NOT_HASHED)


class ToolIdentity(msgspec.Struct, frozen=True):
    """`fingerprint` is None when the tool was gone already when its approval was asked for."""

    tool_id: str
    version: int
    fingerprint: str | None


def identity_of(tool: Tool, secret_names: Collection[str], attached: Iterable[Tool] = ()) -> ToolIdentity:
    """`secret_names`, `attached`: the secrets and the tools of the agent that it runs for."""
    return ToolIdentity(tool.id, tool.version, fingerprint(tool, secret_names, attached))


def fingerprint(tool: Tool, secret_names: Collection[str], attached: Iterable[Tool] = ()) -> str:
    parts: dict[str, Any] = {name: getattr(tool, name) for name in _HASHED}
    # The tag that names the MCP server is left out: the tool is bound to the server's id, and its name may change.
    parts["tags"] = sorted(tag for tag in tool.tags if not (tool.mcp_server_id and tag.startswith(MCP_TAG)))
    parts["secrets"] = sorted(secret_names) if gets_secrets(tool) else []
    if calls_others(tool):
        parts["calls"] = sorted(fingerprint(other, secret_names) for other in attached if not calls_others(other))
    # An empty field counts as one that is not there: adding a field changes no hash that is stored already.
    present = {name: value for name, value in parts.items() if value not in (None, [], {}, "")}
    return hashlib.sha256(msgspec.json.encode(present, order="deterministic")).hexdigest()


def gets_secrets(tool: Tool) -> bool:
    """What a model has written is given none. Of the built-in tools only `web_search` needs one; those that run
    programs give each tool what is its own, and the code nothing. Those of MCP servers have them in their headers."""
    return tool.tool_type in ("custom", "external_mcp") or tool.name == "web_search"


def calls_others(tool: Tool) -> bool:
    """Whether it runs programs that call the agent's other tools, so that a change of one of them is a change of it."""
    return tool.tool_type != "custom" and tool.name in ("run_code", "run_code_with_tools")
