"""A program that may call tools, in a process of its own. The tools, and the agent's secrets, are in another.

Between the two goes plain data, a line of JSON for each message: first what the program is, then its calls and their
answers, last what came of it. The program has a landlock domain of its own (decision 20).
"""

from __future__ import annotations

import builtins
import json
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from holdfast.tools.sandbox import landlock, linux
from holdfast.tools.sandbox.run_code import run_python


def main(number: str) -> None:
    with JsonLines(socket.socket(fileno=int(number))) as wire:
        given = wire.receive()
        assert given is not None
        _confine()
        remote = _RemoteTools(wire)
        names: dict[str, Any] = {name: remote.tool(name, parameters) for name, parameters in given["tools"].items()}
        names |= {name: _refused(name, why) for name, why in given["refused"].items()}
        wire.send({"result": run_python(given["code"], names)})


def _confine() -> None:
    """A landlock domain within that of the call. The memory and the environment of processes outside of it are out of
    reach. And it may write only where it begins: what tools find in their home directory may decide what they do."""
    abi = landlock.version()
    if abi:  # where there is none, no tool that has secrets can be called
        linux.forbid_new_privileges()
        landlock.restrict(abi, landlock.open_paths(("/",)), landlock.open_paths((".", "/dev")))


class JsonLines:
    """One end of the connection. Closed with it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("r", encoding="utf-8")
        self._writer = connection.makefile("w", encoding="utf-8")

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._reader, self._writer, self._connection):
            each.close()

    def send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message) + "\n")
        self._writer.flush()

    def receive(self) -> dict[str, Any] | None:
        """None when the other end is gone."""
        line = self._reader.readline()
        return json.loads(line) if line else None


class _RemoteTools:
    """The tools in the other process."""

    def __init__(self, wire: JsonLines) -> None:
        self._wire = wire
        self._turn = threading.Lock()  # programs may have threads

    def tool(self, name: str, parameters: list[str]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            return self._call(name, _by_name(name, parameters, args, given))

        call.__name__ = call.__qualname__ = name
        return call

    def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        with self._turn:
            try:
                self._wire.send({"call": name, "arguments": arguments})
            except (TypeError, ValueError) as problem:
                raise TypeError(f"{name}() takes plain data, as JSON has it: {problem}") from None
            answer = self._wire.receive()
        if answer is None:
            raise RuntimeError(f"{name}() ended the process that it ran in")
        sys.stdout.write(answer["stdout"])
        sys.stderr.write(answer["stderr"])
        if "error" in answer:
            _raise(answer["error"]["name"], answer["error"]["value"])
        return answer["value"]


def _by_name(name: str, parameters: list[str], args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
    if len(args) > len(parameters):
        raise TypeError(f"{name}() takes {len(parameters)} arguments, not {len(args)}")
    placed = dict(zip(parameters, args, strict=False))
    if twice := placed.keys() & given.keys():
        raise TypeError(f"{name}() was given {', '.join(sorted(twice))} twice")
    return placed | given


def _raise(kind: str, text: str) -> NoReturn:
    """As the tool raised it, if that is something that every program knows."""
    known = getattr(builtins, kind, None)
    if isinstance(known, type) and issubclass(known, Exception):
        try:
            problem = known(text)
        except TypeError:  # it takes more than a text
            problem = RuntimeError(f"{kind}: {text}")
        raise problem
    raise RuntimeError(f"{kind}: {text}")


def _refused(name: str, why: str) -> Callable[..., NoReturn]:
    def refuse(*args: object, **given: object) -> NoReturn:
        raise PermissionError(f"{name}() cannot be called from code: {why}")

    return refuse
