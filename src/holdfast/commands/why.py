"""Where a run stands, in words: what it does or waits for, or how it ended."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from holdfast.commands.printing import print_json
from holdfast.commands.remote import ask


def run(arguments: argparse.Namespace) -> int:
    answer: dict[str, Any] = ask(arguments, f"/v1/runs/{quote(arguments.run, safe='')}/why")
    if arguments.json:
        print_json(answer)
        return 0
    history: list[str] = answer.get("history", [])
    print("\n  ".join([str(answer["summary"]), *history]))
    return 0
