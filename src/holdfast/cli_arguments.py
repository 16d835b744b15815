"""The arguments of the `holdfast` command. Standard library only, so that help is instant."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction["_Parser"]

REFUSED: Final = 2
ABOUT: Final = "A server for stateful LLM agents."


class _Parser(argparse.ArgumentParser):
    """Says what is wrong and what to type next."""

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"{self.prog}: {message}\nWhat there is: {self.prog} --help\n")


def build_parser() -> tuple[argparse.ArgumentParser, Collection[str]]:
    """And the names of the commands."""
    parser = _Parser(
        prog="holdfast", description=ABOUT, epilog="Start with `holdfast serve`. `holdfast COMMAND --help` tells more."
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
    worker.add_argument("--port", dest="worker_port", help="where to serve /metrics and health (HOLDFAST_WORKER_PORT)")

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

    asking = (*_agent_commands(commands), *_list_commands(commands), *_file_commands(commands))  # a running server
    for command in asking:
        # Below another command, what was said before its name counts unless it is said again.
        nested = " " in command.prog.removeprefix("holdfast ")
        default: dict[str, Any] = {"default": argparse.SUPPRESS} if nested else {}
        command.add_argument(
            "--url", help="where the server is (HOLDFAST_URL, or the configured host and port)", **default
        )
        command.add_argument("--json", action="store_true", help="print the server's answer as it is", **default)

    completion = commands.add_parser("completion", help="print what a shell needs to complete commands")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    commands.add_parser("version", help="print the version")
    return parser, commands.choices


def _actions(command: _Parser, list_options: dict[str, dict[str, Any]]) -> tuple[_Commands, _Parser]:
    """Without an action a command lists, as `list` does. The options of a list may stand before that word or after."""
    below = command.add_subparsers(dest="action", metavar="ACTION")
    listing = below.add_parser("list", help="the same as without an action")
    for name, about in list_options.items():
        below_it: dict[str, Any] = {**about, "default": argparse.SUPPRESS}
        command.add_argument(name, **about)
        listing.add_argument(name, **below_it)
    return below, listing


def _agent_commands(commands: _Commands) -> Iterator[argparse.ArgumentParser]:
    chat = commands.add_parser("chat", help="talk to an agent; Ctrl-C cancels the run, twice leaves")
    chat.add_argument(
        "agent", metavar="AGENT", nargs="?", help="its id or name (the newest one; made if there is none)"
    )
    chat.add_argument("--conversation", metavar="ID", help="another thread than the agent's default one")
    chat.add_argument("--message", "-m", metavar="TEXT", help="one turn, without asking for more")
    yield chat

    agents = commands.add_parser("agents", help="list agents, or show or delete one")
    below, listing = _actions(agents, {"--limit": {"type": int, "default": 20, "help": "how many (20)"}})
    yield agents
    yield listing
    for name, told in (("show", "one agent"), ("delete", "delete an agent with its messages and runs")):
        one = below.add_parser(name, help=told)
        one.add_argument("agent", metavar="AGENT", help="its id or name")
        yield one

    runs = commands.add_parser("runs", help="list the latest runs, or show, follow or cancel one")
    below, listing = _actions(
        runs,
        {
            "--limit": {"type": int, "default": 20, "help": "how many (20)"},
            "--agent": {"metavar": "AGENT", "help": "only those of this agent, by id or name"},
            "--status": {"help": "only those that are created, running, completed, failed or cancelled"},
        },
    )
    yield runs
    yield listing
    told = {"show": "one run", "watch": "its events as they come", "cancel": "stop it", "why": "what it waits for"}
    for name, text in told.items():
        one = below.add_parser(name, help=text)
        one.add_argument("run", metavar="RUN", help="the id of the run")
        yield one
    why = commands.add_parser("why", help="say what a run is doing or waiting for, and why it ended")
    why.add_argument("run", metavar="RUN", help="the id of the run")
    yield why


def _list_commands(commands: _Commands) -> Iterator[argparse.ArgumentParser]:
    approvals = commands.add_parser("approvals", help="list the calls that wait for a decision, or decide")
    below, listing = _actions(approvals, {})
    yield approvals
    yield listing
    for name in ("approve", "deny"):
        one = below.add_parser(name, help=f"{name} what a run waits for")
        one.add_argument("run", metavar="RUN", help="the id of the run, or of one of its calls")
        if name == "deny":
            one.add_argument("--reason", help="why, for the model")
        yield one

    tools = commands.add_parser("tools", help="list tools, or show one")
    below, listing = _actions(tools, {"--limit": {"type": int, "default": 100, "help": "how many (100)"}})
    yield tools
    yield listing
    one = below.add_parser("show", help="one tool")
    one.add_argument("tool", metavar="TOOL", help="its name")
    yield one

    events = commands.add_parser("events", help="show what changes as it changes: runs, approvals, agents, files")
    events.add_argument("--agent", metavar="AGENT", help="only of this agent, by id or name")
    yield events
    stats = commands.add_parser("stats", help="figures: runs, tokens, cost, errors, slow tools, the queue")
    stats.add_argument("--last", metavar="TIME", default="1d", help="how far back: 90m, 12h, 7d (1d)")
    yield stats

    models = commands.add_parser("models", help="list the models that the server can use, and what they cost")
    models.add_argument("--provider", metavar="NAME", help="only those of this provider")
    yield models


def _file_commands(commands: _Commands) -> Iterator[argparse.ArgumentParser]:
    export = commands.add_parser("export", help="write an agent to a file")
    export.add_argument("agent", metavar="AGENT", help="its id or name")
    export.add_argument("file", metavar="FILE", nargs="?", help="where to (NAME.af); - for standard output")
    export.add_argument("--force", action="store_true", help="overwrite the file")
    yield export
    imported = commands.add_parser("import", help="make agents from a file")
    imported.add_argument("file", metavar="FILE")
    imported.add_argument("--name", help="another name for the agent")
    imported.add_argument("--strip-messages", action="store_true", help="without its history")
    yield imported

    apply = commands.add_parser("apply", help="bring agents, blocks, tools and archives to what a file describes")
    apply.add_argument("file", metavar="FILE", help="YAML, TOML or JSON")
    apply.add_argument("--dry-run", action="store_true", help="only show the difference")
    apply.add_argument("--yes", "-y", action="store_true", help="do not ask")
    apply.add_argument("--prune", action="store_true", help="delete what an earlier version of the file created")
    yield apply
