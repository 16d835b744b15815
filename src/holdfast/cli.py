"""The `holdfast` command. Parses, then loads only the module of the command that was named, so that help is instant."""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import sys
from collections.abc import Collection, Sequence
from typing import Final

from holdfast.cli_arguments import ABOUT, REFUSED, build_parser
from holdfast.errors import HoldfastError

_NEXT: Final = """\
To start it:       holdfast serve, then open http://127.0.0.1:8283
With your model:   OPENAI_API_KEY=… holdfast serve   (or ANTHROPIC_API_KEY, OLLAMA_BASE_URL, …)
While it serves:   holdfast chat | agents | runs | approvals | why RUN
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
    "chat": ("chat", "run"),
    "agents": ("remote", "agents"),
    "runs": ("remote", "runs"),
    "why": ("remote", "why"),
    "approvals": ("remote", "approvals"),
    "events": ("observing", "events"),
    "stats": ("observing", "stats"),
    "tools": ("remote", "tools"),
    "models": ("remote", "models"),
    "export": ("agent_files", "export"),
    "import": ("agent_files", "import_file"),
    "apply": ("apply", "run"),
    "completion": ("completion", "run"),
}
# What people type first, from other programs.
_MEANT: Final = {"run": "serve", "server": "serve", "start": "serve", "up": "serve", "upgrade": "migrate"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser, commands = build_parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        print(f"{ABOUT}\n\n{_NEXT}", end="")
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


def _unknown(given: str, commands: Collection[str]) -> str:
    near = [_MEANT[given]] if given in _MEANT else difflib.get_close_matches(given, commands, n=1)
    hint = f"Did you mean `holdfast {near[0]}`?" if near else f"There are: {', '.join(commands)}."
    return f"there is no command {given!r}. {hint}"
