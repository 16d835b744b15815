"""Programs that call tools, as they run in the child: the program runs elsewhere, and its calls are made here.

The program was written by a model, and what a model has written is given no secrets. The tools that it calls may need
them. So the two are separate processes (see `program`), and only the tools see the agent's secrets.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.tools.base import Job
from holdfast.tools.sandbox import invoke, landlock
from holdfast.tools.sandbox.program import JsonLines
from holdfast.tools.sandbox.run_code import run_code as run_alone

_PACKAGE: Final = str(Path(__file__).resolve().parents[2])
# The directory that holds our package may be hidden from the sandbox, so the package is not importable by sys.path.
_ENTRY: Final = """
import sys, types
package = sys.modules["holdfast"] = types.ModuleType("holdfast")
package.__path__ = [sys.argv[1]]
from holdfast.tools.sandbox.program import main
main(sys.argv[2])
"""


def run_code(
    code: str, language: str, tools: list[Job], parameters: dict[str, list[str]], refused: dict[str, str]
) -> str:
    """A second process only for a program that names a tool."""
    if language == "python" and (tools or refused):
        return run_code_with_tools(code, tools, parameters, refused)
    return run_alone(code, language)


def run_code_with_tools(code: str, tools: list[Job], parameters: dict[str, list[str]], refused: dict[str, str]) -> str:
    """All but the code is the server's: see `tools.code_with_tools`."""
    if any(tool.environment for tool in tools) and not landlock.version():
        raise OSError(
            "this machine cannot keep a program from the agent's secrets (its kernel has no landlock), so a program "
            "cannot call tools that are given some"
        )
    directory = os.path.join(os.getcwd(), "program")
    os.mkdir(directory)
    near, far = socket.socketpair()
    with far:
        command = [sys.executable, "-I", "-c", _ENTRY, _PACKAGE, str(far.fileno())]
        environment = {**os.environ, "HOME": directory, "TMPDIR": directory}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=(far.fileno(),), cwd=directory, env=environment
        )
    with JsonLines(near) as wire:
        try:
            wire.send({"code": code, "tools": parameters, "refused": refused})
            result = _serve(wire, {tool.tool_name: tool for tool in tools})
        except (BrokenPipeError, ConnectionResetError):
            result = None
    if result is None:
        raise RuntimeError(f"the program's process ended before the program did, with exit code {process.wait()}")
    process.kill()  # it may have threads that go on
    process.wait()
    return json.dumps(result, ensure_ascii=False)


def _serve(wire: JsonLines, tools: dict[str, Job]) -> dict[str, Any] | None:
    """Until the program has ended: what came of it, or nothing when its process is gone."""
    number = 0
    while (message := wire.receive()) is not None:
        if "result" in message:
            return message["result"]
        tool, number = tools[message["call"]], number + 1
        # The number sets the calls apart for a tool that goes by the id of its call.
        job = msgspec.structs.replace(tool, call_id=f"{tool.call_id}.{number}", arguments=message["arguments"])
        wire.send(_answer(job))
    return None


def _answer(job: Job) -> dict[str, Any]:
    out, err = io.StringIO(), io.StringIO()
    answer: dict[str, Any]
    with _environment(job), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            answer = {"value": invoke.plain(invoke.call(job))}
        except BaseException as problem:
            answer = {"error": {"name": type(problem).__name__, "value": str(problem)}}
    return {**answer, "stdout": out.getvalue(), "stderr": err.getvalue()}


@contextlib.contextmanager
def _environment(job: Job) -> Generator[None]:
    before = dict(os.environ)
    os.environ.update(job.environment)
    os.environ.update(HOLDFAST_CALL_ID=job.call_id, LETTA_TOOL_ID=job.tool_id or "")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
