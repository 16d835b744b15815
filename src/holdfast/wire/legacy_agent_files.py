"""Agent files of the older format, one agent with everything inside it, put into the present one.

They name no ids: blocks and tools stand in the agent, and messages in the context window are given by their places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from holdfast.errors import Invalid

GROUPS: Final = "multi_agent_group"  # which names agents that are not in the file
_SAME = (
    "name",
    "agent_type",
    "system",
    "description",
    "llm_config",
    "embedding_config",
    "message_buffer_autoclear",
    "tool_rules",
)


def is_legacy(told: Mapping[str, Any]) -> bool:
    return "agents" not in told and {"system", "core_memory", "messages"} <= told.keys()


def converted(told: Mapping[str, Any]) -> dict[str, Any]:
    blocks = _numbered("block", _listed(told, "core_memory"))
    tools = _numbered("tool", _listed(told, "tools"))
    messages = _numbered("message", _listed(told, "messages"))
    agent = {name: told[name] for name in _SAME if told.get(name) is not None} | {
        "id": "agent-0",
        "metadata": told.get("metadata_"),
        "tags": [tag.get("tag") for tag in _listed(told, "tags")],
        "secrets": {
            variable.get("key"): variable.get("value") or ""
            for variable in _listed(told, "tool_exec_environment_variables")
        },
        "block_ids": [block["id"] for block in blocks],
        "tool_ids": [tool["id"] for tool in tools],
        "messages": messages,
        "in_context_message_ids": _in_context(told, len(messages)),
    }
    group = told.get(GROUPS)
    return {
        "agents": [agent],
        "blocks": [{**block, "metadata": block.get("metadata_")} for block in blocks],
        "tools": tools,
        GROUPS: [group] if isinstance(group, dict) else [],
    }


def _listed(told: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value: object = told.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in cast("list[Any]", value)):
        raise Invalid(f"{name}: must be a list of objects")
    return cast("list[dict[str, Any]]", value)


def _numbered(prefix: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**record, "id": f"{prefix}-{index}"} for index, record in enumerate(records)]


def _in_context(told: Mapping[str, Any], count: int) -> list[str] | None:
    places = told.get("in_context_message_indices")
    if places is None:
        return None
    if not isinstance(places, list) or not all(isinstance(place, int) for place in cast("list[Any]", places)):
        raise Invalid("in_context_message_indices: must be a list of numbers")
    for place in cast("list[int]", places):
        if not 0 <= place < count:
            raise Invalid(f"in_context_message_indices: there is no message {place}; the file has {count}")
    return [f"message-{place}" for place in cast("list[int]", places)]
