"""Commands that watch a running server: what changes, and figures about what it has done."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from holdfast.commands.printing import print_json, printable, styled, text_table
from holdfast.commands.remote import find_agent
from holdfast.commands.server_api import ServerApi
from holdfast.errors import ConfigError

Record = dict[str, Any]
_STYLES: Final = {"failed": "red", "completed": "green", "running": "yellow", "created": "yellow", "open": "cyan"}
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
_MOST: Final = 5  # lines of a list


def events(arguments: argparse.Namespace) -> int:
    """Until it is interrupted. With --json, one object on each line."""
    api = ServerApi(arguments)
    agent = None if arguments.agent is None else find_agent(api, arguments.agent)["id"]
    for event in api.follow("/v1/events/", agent_id=agent):
        if arguments.json:
            print(msgspec.json.encode(event).decode(), flush=True)
        else:
            print(_event_line(event), flush=True)
    return 0


def _event_line(event: Record) -> str:
    status = str(event.get("status") or "")
    told = [str(event["at"])[11:19], f"{event['type']:<8}", styled(f"{status:<9}", _STYLES.get(status, "dim"))]
    told += [str(event[name]) for name in ("stop_reason", "id") if event.get(name)]
    if event.get("agent_id") not in (None, event.get("id")):
        told.append(str(event["agent_id"]))
    return "  ".join(told).rstrip()


def stats(arguments: argparse.Namespace) -> int:
    since = datetime.now(UTC) - _length(arguments.last)
    found: Record = ServerApi(arguments).get("/v1/statistics/", since=since.isoformat())
    if arguments.json:
        print_json(found)
    else:
        print("\n".join(_lines(found)))
    return 0


def _length(text: str) -> timedelta:
    read = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    if read is None:
        raise ConfigError(f"--last wants a time such as 90m, 12h or 7d, not {text!r}.")
    return timedelta(**{_UNITS[read[2]]: int(read[1])})


def _lines(found: Record) -> list[str]:
    totals: dict[str, int] = found["totals"]
    usage, queue = found["usage"], found["queue"]
    cost = "unknown" if usage["cost_usd"] is None else f"${usage['cost_usd']:.4f}"
    states = ", ".join(f"{number} {state}" for state, number in totals.items() if number)
    lines = [
        f"Since {found['since']}",
        f"Runs      {sum(totals.values())}" + (f": {states}" if states else ""),
        f"Tokens    {usage['prompt_tokens']:,} in ({usage['cached_input_tokens']:,} cached), "
        f"{usage['completion_tokens']:,} out; cost {cost}",
        f"Queue     {queue['waiting']} waiting (oldest {queue['oldest_s']:.1f} s), {queue['active']} active, "
        f"{queue['held']} held for a decision; {len(found['workers'])} worker(s) known",
    ]
    errors = [(error["error_type"], error["runs"], error["last_at"]) for error in found["errors"][:_MOST]]
    tools = [
        (printable(tool["name"]), tool["calls"], tool["failures"], _seconds(tool["p50_ns"]), _seconds(tool["p95_ns"]))
        for tool in found["tools"][:_MOST]
    ]
    runs = [(run["id"], run["status"], _seconds(run["total_duration_ns"])) for run in found["slowest_runs"][:_MOST]]
    providers = [
        (one["name"], one["status"], one["calls"], one["failures"], one["last_error_type"], _seconds(one["mean_ns"]))
        for one in found["providers"]
    ]
    tables = (
        (("ERROR", "RUNS", "LAST"), errors),
        (("TOOL", "CALLS", "FAILED", "P50", "P95"), tools),
        (("SLOWEST RUN", "STATUS", "TOOK"), runs),
        (("PROVIDER", "STATUS", "CALLS", "FAILED", "LAST ERROR", "MEAN"), providers),
    )
    for headings, rows in tables:
        if rows:
            lines += ["", text_table(headings, rows)]
    return lines


def _seconds(nanoseconds: int | None) -> str | None:
    return None if nanoseconds is None else f"{nanoseconds / 1e9:.3f} s"
