"""The `holdfast` command. Parses, then loads only the module of the command that was named, so that help is instant."""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import sys
from collections.abc import Collection, Sequence
from typing import Final, NoReturn

from holdfast.errors import HoldfastError

REFUSED = 2
_ABOUT: Final = "A server for stateful LLM agents."
_NEXT: Final = """\
To start it:       holdfast serve, then open http://127.0.0.1:8283
With your model:   OPENAI_API_KEY=… holdfast serve   (or ANTHROPIC_API_KEY, OLLAMA_BASE_URL, …)
While it serves:   holdfast models | runs | approvals | why RUN
If it does not:    holdfast doctor
All commands:      holdfast --help
"""
# The module and the function of each; loaded by name, because a module brings along all that its commands need.
_COMMANDS: Final = {
    "serve": ("serving", "run"),
    "worker": ("worker", "run"),
    "migrate": ("migrate", "run"),
    "move": ("move", "run"),
    "reseal": ("reseal", "run"),
    "doctor": ("doctor", "run"),
    "why": ("remote", "why"),
    "runs": ("remote", "runs"),
    "approvals": ("remote", "approvals"),
    "models": ("remote", "models"),
}
# What people type first, from other programs.
_MEANT: Final = {"run": "serve", "server": "serve", "start": "serve", "up": "serve", "upgrade": "migrate"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser, commands = build_parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        print(f"{_ABOUT}\n\n{_NEXT}", end="")
        return 0
    if given[0] == "help":
        given = [*given[1:], "--help"]
    if not given[0].startswith("-") and given[0] not in commands:
        parser.error(_unknown(given[0], commands))
    parsed = parser.parse_args(given)
    if parsed.command is None:
        parser.error(f"no command is named. There are: {', '.join(commands)}.")
    # Loading makes many objects and no garbage worth looking for; whoever goes on for long switches it on again.
    gc.disable()
    try:
        return _perform(parsed)
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return 130


def _perform(parsed: argparse.Namespace) -> int:
    if parsed.command == "version":
        print(importlib.import_module("holdfast.version").VERSION)  # read from what is installed, which takes a while
        return 0
    module, function = _COMMANDS[parsed.command]
    return getattr(importlib.import_module(f"holdfast.commands.{module}"), function)(parsed)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong and what to type next."""

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"{self.prog}: {message}\nWhat there is: {self.prog} --help\n")


def build_parser() -> tuple[argparse.ArgumentParser, Collection[str]]:
    """And the names of the commands."""
    parser = _Parser(
        prog="holdfast", description=_ABOUT, epilog="Start with `holdfast serve`. `holdfast COMMAND --help` tells more."
    )
    parser.add_argument(
        "--version", dest="command", action="store_const", const="version", help="print the version, as `version` does"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the server")
    serve.add_argument("--host", help="the address to listen on (HOLDFAST_HOST, 127.0.0.1)")
    serve.add_argument("--port", help="the port to listen on; 0 takes any free one (HOLDFAST_PORT, 8283)")
    serve.add_argument("--data-dir", help="where the database and the key file live (HOLDFAST_DATA_DIR)")

    serve.add_argument(
        "--no-worker",
        dest="worker",
        action="store_const",
        const="no",
        help="leave background runs to `holdfast worker`",
    )
    serve.add_argument("--processes", help="how many processes share the port, with PostgreSQL (HOLDFAST_PROCESSES, 1)")
    for descriptor in ("--listen-fd", "--parent-fd"):  # from the process that started this one
        serve.add_argument(descriptor, type=int, help=argparse.SUPPRESS)

    worker = commands.add_parser("worker", help="drive background runs without serving requests, with PostgreSQL")
    worker.add_argument("--data-dir", help="where the key file lives (HOLDFAST_DATA_DIR)")
    worker.add_argument(
        "--port", dest="worker_port", help="where to serve /metrics and health; 0: any (HOLDFAST_WORKER_PORT, nowhere)"
    )

    migrate = commands.add_parser("migrate", help="bring the database to the newest schema, without serving")
    reseal = commands.add_parser("reseal", help="seal stored secrets with the newest encryption key")
    for command in (migrate, reseal):
        command.add_argument("--data-dir", help="where the database and the key file live (HOLDFAST_DATA_DIR)")

    doctor = commands.add_parser("doctor", help="check whether a server can run here, and say what to do if not")
    doctor.add_argument("--data-dir", help="where the database and the key file live (HOLDFAST_DATA_DIR)")
    doctor.add_argument("--online", action="store_true", help="also ask every provider for its models")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")

    move = commands.add_parser("move", help="copy a database into an empty one, SQLite or PostgreSQL, and verify it")
    move.add_argument("source", metavar="SOURCE", help="sqlite:///path/to/file.db or postgresql://…; no server uses it")
    move.add_argument("target", metavar="TARGET", help="the same; empty, or what an interrupted move has begun")
    move.add_argument("--json", action="store_true", help="print counts and hashes as JSON")

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
    return parser, commands.choices


def _unknown(given: str, commands: Collection[str]) -> str:
    near = [_MEANT[given]] if given in _MEANT else difflib.get_close_matches(given, commands, n=1)
    hint = f"Did you mean `holdfast {near[0]}`?" if near else f"There are: {', '.join(commands)}."
    return f"there is no command {given!r}. {hint}"
