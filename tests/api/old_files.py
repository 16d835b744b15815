"""Agent files as the retired server wrote them, made here: small, and with everything that it put into them."""

from __future__ import annotations

import json
from typing import Any

from .resources import ROLL

AT = "2026-03-01T09:30:00.250000+00:00"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def packed(message: Any, status: str = "OK") -> str:
    return json.dumps({"status": status, "message": message, "time": "2026-03-01 09:30:00 AM UTC+0000"}, indent=2)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "signature": None}


def call(id: str, name: str = "roll_dice", **arguments: Any) -> dict[str, Any]:
    return {"id": id, "function": {"arguments": json.dumps(arguments), "name": name}, "type": "function"}


def returned(id: str, message: Any, status: str = "success") -> dict[str, Any]:
    response = packed(message, "OK" if status == "success" else "Failed")
    return {"tool_call_id": id, "status": status, "stdout": [], "stderr": [], "func_response": response}


def message(role: str, *content: dict[str, Any] | str, **fields: Any) -> dict[str, Any]:
    """Without an id: `agent` numbers them."""
    unset = dict.fromkeys(("otid", "group_id", "name", "sender_id", "batch_item_id", "tool_calls", "tool_call_id"))
    undecided = dict.fromkeys(("approve", "approval_request_id", "denial_reason"))
    return {
        "type": "message",
        **unset,
        "role": role,
        "content": [text(part) if isinstance(part, str) else part for part in content],
        "model": None if role == "user" else "offline",
        "tool_returns": [],
        "created_at": AT,
        **undecided,
        "approvals": [],
        **fields,
    }


def agent(*messages: dict[str, Any], number: int = 0, **fields: Any) -> dict[str, Any]:
    own = [{**one, "id": f"message-{place}", "agent_id": f"agent-{number}"} for place, one in enumerate(messages)]
    return {
        "id": f"agent-{number}",
        "name": "harbour",
        "agent_type": "letta_v1_agent",
        "system": "You keep the harbour's log.",
        "memory_blocks": [],
        "tools": [],
        "tool_ids": [],
        "block_ids": [],
        "source_ids": [],
        "group_ids": [],
        "files_agents": [],
        "identity_ids": None,
        "tool_rules": [],
        "tags": [],
        "description": None,
        "metadata": None,
        "include_base_tools": False,
        "llm_config": {
            "model": "offline",
            "model_endpoint_type": "openai",
            "provider_name": "holdfast",
            "provider_category": "base",
            "handle": "holdfast/offline",
            "context_window": 32_000,
            "put_inner_thoughts_in_kwargs": False,
            "temperature": 0.7,
            "max_tokens": 4_096,
            "enable_reasoner": False,
            "max_reasoning_tokens": 0,
        },
        "embedding_config": None,
        "model": None,
        "embedding": None,
        "tool_exec_environment_variables": {},
        "secrets": None,
        "enable_sleeptime": False,
        "message_buffer_autoclear": False,
        "timezone": "UTC",
        "hidden": None,
        "in_context_message_ids": [one["id"] for one in own],
        "messages": own,
        **fields,
    }


def tool(number: int, name: str = "roll_dice", source: str | None = ROLL, **fields: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"sides": {"type": "integer", "description": "How many sides it has."}},
        "required": ["sides"],
    }
    return {
        "id": f"tool-{number}",
        "tool_type": "custom",
        "description": "Roll a die.",
        "source_type": "json",  # as it wrote for Python with a schema beside it
        "name": name,
        "tags": [],
        "source_code": source,
        "json_schema": {"name": name, "description": "Roll a die.", "parameters": parameters},
        "args_json_schema": None,
        "return_char_limit": 50_000,
        "pip_requirements": None,
        "npm_requirements": None,
        "default_requires_approval": None,
        "enable_parallel_execution": False,
        "metadata_": {},
        "project_id": None,
        **fields,
    }


def built_in(number: int, name: str = "memory_insert", kind: str = "letta_sleeptime_core") -> dict[str, Any]:
    return tool(number, name, None, tool_type=kind)


def block(number: int, label: str = "human", value: str = "Ada", **fields: Any) -> dict[str, Any]:
    return {
        "id": f"block-{number}",
        "value": value,
        "limit": 20_000,
        "label": label,
        "description": "About the person.",
        "read_only": False,
        "is_template": False,
        "preserve_on_migration": False,
        "metadata": {},
        "tags": None,
        "hidden": None,
        **fields,
    }


def file(*agents: dict[str, Any], **sections: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {
        name: [] for name in ("groups", "blocks", "files", "sources", "tools", "mcp_servers", "skills")
    }
    return {
        "agents": list(agents or (agent(),)),
        **empty,
        "metadata": {"revision_id": "1c28e167b74f"},
        "created_at": AT,
        **sections,
    }


def harbour() -> dict[str, Any]:
    """One agent with everything that this server can store."""
    history = [
        message("system", "You keep the harbour's log.\n\nold memory"),
        message("summary", json.dumps({"type": "system_alert", "message": "Note: hidden.\nA summary:\n Ships came."})),
        message("user", "look", {"type": "image", "source": {"type": "letta", "file_id": "file-1", "data": PIXEL}}),
        message(
            "assistant",
            {"type": "reasoning", "is_native": True, "reasoning": "I look.", "signature": "c2ln"},
            "Rolling.",
            tool_calls=[call("c1", sides=6), call("c2", sides=8)],
        ),
        message(
            "tool", name="roll_dice", tool_call_id="c1", tool_returns=[returned("c1", "3"), returned("c2", {"n": 8})]
        ),
        message("approval", tool_calls=[call("c3", sides=20)], tool_call_id="c3"),
        message(
            "approval", approvals=[{"type": "approval", "tool_call_id": "c3", "approve": False, "reason": "too many"}]
        ),
        message("tool", tool_call_id="c3", tool_returns=[returned("c3", "denied", "error")]),
        message("assistant", "Fine."),
    ]
    history[2]["content"][1]["source"]["media_type"] = "image/png"
    return file(
        agent(
            *history,
            tool_ids=["tool-0", "tool-1"],
            block_ids=["block-1", "block-0"],
            tool_rules=[{"tool_name": "roll_dice", "type": "requires_approval", "prompt_template": None}],
            tags=["harbour", "log"],
            description="Keeps the log",
            metadata={"tier": "gold", "n": [1, 2]},
            tool_exec_environment_variables={"KEY": "", "OTHER": ""},
            secrets={"KEY": "", "OTHER": ""},
            timezone="Europe/Lisbon",
            max_files_open=5,
            per_file_view_window_char_limit=25_000,
        ),
        blocks=[block(0), block(1, "persona", "kind", read_only=True, metadata={"a": 1}, tags=["x"])],
        tools=[tool(0), built_in(1)],
    )


def older_format() -> dict[str, Any]:
    """One agent with everything inside it, as files were before they had sections."""
    stamped = {"created_at": AT, "updated_at": AT}
    plain = {"group_id": None, "model": "offline", "name": None, "tool_call_id": None, **stamped}
    said = {"type": "user_message", "message": "hello", "time": "2026-03-01 09:30:00 AM UTC+0000"}
    return {
        "agent_type": "memgpt_agent",
        "core_memory": [{**block(0), **stamped, "metadata_": {"a": 1}}],
        "description": "An old one",
        "embedding_config": None,
        "llm_config": agent()["llm_config"],
        "message_buffer_autoclear": False,
        "in_context_message_indices": [0, 2, 3, 4],
        "messages": [
            {**plain, "role": "system", "content": [text("old prompt")], "tool_calls": [], "tool_returns": []},
            {**plain, "role": "user", "content": [text("forgotten")], "tool_calls": [], "tool_returns": []},
            {**plain, "role": "user", "content": [text(json.dumps(said))], "tool_calls": [], "tool_returns": []},
            {
                **plain,
                "role": "assistant",
                "content": [text("I greet.")],
                "tool_calls": [call("c1", "send_message", message="Hello!")],
                "tool_returns": [],
            },
            {
                **plain,
                "role": "tool",
                "name": "send_message",
                "tool_call_id": "c1",
                "content": [text(packed("sent"))],
                "tool_calls": [],
                "tool_returns": [],
            },
        ],
        "metadata_": {"origin": "elsewhere"},
        "multi_agent_group": None,
        "name": "veteran",
        "system": "You are old.",
        "tags": [{"tag": "old"}],
        "tool_exec_environment_variables": [{"key": "KEY", "value": "", "description": None, **stamped}],
        "tool_rules": [{"tool_name": "send_message", "type": "exit_loop"}],
        "tools": [{**built_in(0, "send_message", "letta_core"), **stamped}, {**tool(1), **stamped}],
        "version": "0.7.0",
        **stamped,
    }
