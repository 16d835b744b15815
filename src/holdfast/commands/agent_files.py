"""`holdfast export` and `holdfast import`: agents as files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from holdfast.commands.printing import print_json
from holdfast.commands.remote import find_agent
from holdfast.commands.server_api import ServerApi
from holdfast.errors import ConfigError


def export(arguments: argparse.Namespace) -> int:
    api = ServerApi(arguments)
    agent = find_agent(api, arguments.agent)
    content = api.get(f"/v1/agents/{agent['id']}/export")
    text = msgspec.json.format(msgspec.json.encode(content), indent=2)
    if arguments.file == "-":
        sys.stdout.buffer.write(text + b"\n")
        return 0
    target = Path(arguments.file or f"{agent['name']}.af")
    if target.exists() and not arguments.force:
        raise ConfigError(f"{target} is there already. Name another file, or add --force.")
    target.write_bytes(text + b"\n")
    print(f"{agent['name']} was written to {target} ({target.stat().st_size:,} bytes).")
    return 0


def import_file(arguments: argparse.Namespace) -> int:
    source = Path(arguments.file)
    try:
        content = source.read_bytes()
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}.") from error
    fields = {"strip_messages": str(arguments.strip_messages).lower()}
    if arguments.name:
        fields["override_name"] = arguments.name
    answer: dict[str, Any] = ServerApi(arguments).upload("/v1/agents/import", source.name, content, fields)
    if arguments.json:
        print_json(answer)
        return 0
    print("\n".join(f"Imported {agent_id}." for agent_id in answer["agent_ids"]))
    for note in (*answer.get("repairs", ()), *answer.get("warnings", ())):
        print(f"  {note if isinstance(note, str) else msgspec.json.encode(note).decode()}")
    return 0
