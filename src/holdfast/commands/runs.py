"""The latest runs, newest first."""

from __future__ import annotations

import argparse
from typing import Any

from holdfast.commands.printing import print_json
from holdfast.commands.remote import ask
from holdfast.commands.tables import text_table


def run(arguments: argparse.Namespace) -> int:
    found: list[dict[str, Any]] = ask(arguments, "/v1/runs/", limit=arguments.limit, order="desc")
    if arguments.json:
        print_json(found)
    elif not found:
        print("There are no runs yet.")
    else:
        columns = ("id", "status", "stop_reason", "agent_id", "created_at")
        print(text_table(("RUN", "STATUS", "STOPPED", "AGENT", "STARTED"), (_cells(row, columns) for row in found)))
    return 0


def _cells(row: dict[str, Any], columns: tuple[str, ...]) -> list[object]:
    return [row.get(column) for column in columns]
