"""The `holdfast` command. Parses, then loads only the module of the command that was named, so that help is instant."""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from collections.abc import Sequence

from holdfast.errors import HoldfastError

REFUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = build_parser().parse_args(arguments)
    # Loading makes many objects and no garbage worth looking for; whoever goes on for long switches it on again.
    gc.disable()
    command = importlib.import_module(f"holdfast.commands.{parsed.command}")
    try:
        return command.run(parsed)
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return 130


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="holdfast", description="A server for stateful LLM agents.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the server")
    serve.add_argument("--host", help="the address to listen on (HOLDFAST_HOST, 127.0.0.1)")
    serve.add_argument("--port", help="the port to listen on; 0 takes any free one (HOLDFAST_PORT, 8283)")
    serve.add_argument("--data-dir", help="where the database and the key file live (HOLDFAST_DATA_DIR)")

    migrate = commands.add_parser("migrate", help="bring the database to the newest schema, without serving")
    migrate.add_argument("--data-dir", help="where the database and the key file live (HOLDFAST_DATA_DIR)")

    why = commands.add_parser("why", help="say what a run is doing or waiting for, and why it ended")
    why.add_argument("run", metavar="RUN", help="the id of the run")
    runs = commands.add_parser("runs", help="list the latest runs")
    runs.add_argument("--limit", type=int, default=20, help="how many (20)")
    approvals = commands.add_parser("approvals", help="list the calls that wait for a decision")
    models = commands.add_parser("models", help="list the models that the server can use, and what they cost")
    models.add_argument("--provider", metavar="NAME", help="only those of this provider")
    for command in (why, runs, approvals, models):
        command.add_argument("--url", help="where the server is (HOLDFAST_URL, or the configured host and port)")
        command.add_argument("--json", action="store_true", help="print the server's answer as it is")

    commands.add_parser("version", help="print the version")
    return parser
