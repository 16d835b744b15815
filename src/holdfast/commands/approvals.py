"""The calls that wait for a person, oldest first: what would be run, with which arguments, for which agent."""

from __future__ import annotations

import argparse
from typing import Any

from holdfast.commands.printing import print_json
from holdfast.commands.remote import ask


def run(arguments: argparse.Namespace) -> int:
    found: list[dict[str, Any]] = ask(arguments, "/v1/approvals/")
    if arguments.json:
        print_json(found)
    elif not found:
        print("Nothing waits for a decision.")
    else:
        print("\n\n".join(_paragraph(waiting) for waiting in found))
    return 0


def _paragraph(waiting: dict[str, Any]) -> str:
    lines = [f"{waiting.get('agent_id')}, run {waiting.get('run_id')}, asked {waiting.get('asked_at')}"]
    calls: list[dict[str, Any]] = waiting.get("tool_calls", [])
    lines += [f"  {call.get('name')} {call.get('arguments')}  ({call.get('tool_call_id')})" for call in calls]
    if changed := waiting.get("changed_secrets"):
        lines.append(f"  secrets changed since it was asked: {', '.join(changed)}")
    return "\n".join(lines)
