"""`run_code` and `run_code_with_tools`: which of an agent's tools a program may call, and what it is given for it.

A program may call what it names, if that runs in the sandbox. It is never a way around a person: a tool that asks for
approval cannot be called, and neither can one whose calls the agent's rules count or put in an order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.core.egress_policy import strictest
from holdfast.core.records import Tool
from holdfast.core.tool_rules import Rule, approval_names, bound_names
from holdfast.tools import builtin
from holdfast.tools.base import Job

_NAME_IN_CODE: Final = re.compile(r"[^\W\d]\w*")


def with_tools(
    job: Job,
    attached: Sequence[Tool],
    rules: Sequence[Rule],
    secrets: Mapping[str, str],
    at_client: Collection[str] = (),
) -> Job:
    """`at_client`: names of tools that the client runs in this run."""
    named = set(_NAME_IN_CODE.findall(str(job.arguments.get("code"))))
    named_tools = [tool for tool in attached if tool.name in named]
    refused = {name: "it runs at the client. Call it by itself." for name in at_client if name in named}
    refused |= {tool.name: why for tool in named_tools if tool.name not in refused and (why := _why_not(tool, rules))}
    tools = [tool for tool in named_tools if tool.name not in refused]
    given = {
        "tools": [_job(job, tool, secrets) for tool in tools],
        "parameters": {tool.name: _parameters(tool) for tool in tools},
        "refused": refused,
    }
    policy = strictest([job.egress, *(tool.egress for tool in tools)])
    return msgspec.structs.replace(job, arguments={**job.arguments, **given}, egress=policy)


def _why_not(tool: Tool, rules: Sequence[Rule]) -> str | None:
    if tool.calls_others:  # it would run where the tools run, and their secrets are
        return "it runs programs, and this is one already."
    if tool.default_requires_approval or tool.name in approval_names(rules):
        return "a person has to approve each call of it. Call it by itself."
    if tool.name in bound_names(rules):
        return "the rules of this agent say when it may be called. Call it by itself."
    if not builtin.sandboxed_source(tool):
        return "it runs in the server, not in the sandbox. Call it by itself."
    if tool.source_type != "python":
        return f"only tools written in Python can be run here, not {tool.source_type!r}."
    return None


def _job(caller: Job, tool: Tool, secrets: Mapping[str, str]) -> Job:
    return msgspec.structs.replace(
        caller,
        tool_name=tool.name,
        tool_id=tool.id,
        source_code=builtin.sandboxed_source(tool),
        arguments={},
        args_schema=tool.args_json_schema,
        environment=dict(secrets) if tool.gets_secrets else {},
    )


def _parameters(tool: Tool) -> list[str]:
    described: Any = tool.json_schema.get("parameters") or {}
    return list(described.get("properties") or {})
