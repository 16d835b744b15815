"""The tool `run_code`, as it runs in the child: what the code printed, what its last expression was, how it failed."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Generator, Mapping
from typing import IO, Any, Final, TextIO

_FILENAME: Final = "<code>"
_TRACE_LINES: Final = 20
_THROWN: Final = re.compile(r"(?:Uncaught )?(\w*Error)(?:: (.*))?")
# The value of the last expression goes to a file of its own, so that it is not mistaken for what was printed.
_NODE: Final = """
const fs = require("fs"), vm = require("vm"), util = require("util");
globalThis.require = require;
const value = vm.runInThisContext(fs.readFileSync(0, "utf8"), { filename: "<code>" });
Promise.resolve(value).then((last) => { if (last !== undefined) fs.writeFileSync(3, util.inspect(last)); });
"""


def run_code(code: str, language: str) -> str:
    if language == "python":
        return json.dumps(run_python(code, {}), ensure_ascii=False)
    if language == "js":
        return json.dumps(_run_node(code), ensure_ascii=False)
    raise ValueError(f"this server runs Python and JavaScript (js), not {language!r}")


def run_python(code: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """`known`: what the program finds defined."""
    values: list[str] = []
    error: dict[str, str] | None = None
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _printing_to(out, 1), _printing_to(err, 2):
            try:
                value = _evaluate(code, known)
                values = [] if value is None else [repr(value)]
            except BaseException as problem:
                error = _error_of(problem)
        return _result(values, _read(out), _read(err), error)


@contextlib.contextmanager
def _printing_to(file: IO[bytes], descriptor: int) -> Generator[None]:
    """The descriptor, not only Python's stream: what other programs print that the code starts belongs to it too."""
    name = "stdout" if descriptor == 1 else "stderr"
    stream: TextIO = getattr(sys, name)
    stream.flush()
    kept = os.dup(descriptor)
    os.dup2(file.fileno(), descriptor)
    # A stream of the code's own, to close or to replace; it shares the place in the file with the descriptor.
    with open(os.dup(file.fileno()), "w", buffering=1, encoding="utf-8", errors="backslashreplace") as own:
        setattr(sys, name, own)
        try:
            yield
        finally:
            setattr(sys, name, stream)
            stream.flush()
            os.dup2(kept, descriptor)
            os.close(kept)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _evaluate(code: str, known: Mapping[str, Any]) -> Any:
    """The value of the last statement, if it is an expression."""
    names: dict[str, Any] = {"__name__": "__main__", **known}
    tree = ast.parse(code, _FILENAME)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, _FILENAME, "exec", dont_inherit=True), names)
        return None
    tree.body.pop()
    exec(compile(tree, _FILENAME, "exec", dont_inherit=True), names)
    return eval(compile(ast.Expression(last.value), _FILENAME, "eval", dont_inherit=True), names)


def _error_of(problem: BaseException) -> dict[str, str]:
    """From the first line of the code on: our own frames would tell its author nothing."""
    frame = problem.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != _FILENAME:
        frame = frame.tb_next
    trace = "".join(traceback.format_exception(type(problem), problem, frame))
    return {"name": type(problem).__name__, "value": str(problem), "traceback": trace}


def _run_node(code: str) -> dict[str, Any]:
    node = shutil.which("node")
    if node is None:
        raise ValueError("JavaScript cannot be run: Node is not installed on the server")
    with tempfile.TemporaryFile() as last:
        ended = subprocess.run(
            ["/bin/sh", "-c", f'exec "$0" -e "$1" 3>&{last.fileno()}', node, _NODE],
            input=code,
            capture_output=True,
            text=True,
            errors="replace",
            pass_fds=(last.fileno(),),
        )
        value = _read(last)
    if ended.returncode == 0:
        return _result([value] if value else [], ended.stdout, ended.stderr, None)
    lines = ended.stderr.strip().splitlines()
    thrown = next((match for line in lines if (match := _THROWN.fullmatch(line))), None)
    name, message = (thrown[1], thrown[2] or "") if thrown else ("Error", f"exit code {ended.returncode}")
    trace = "\n".join(lines[-_TRACE_LINES:])
    return _result([], ended.stdout, "", {"name": name, "value": message, "traceback": trace})


def _result(values: list[str], out: str, err: str, error: dict[str, str] | None) -> dict[str, Any]:
    logs = {"stdout": [out] if out else [], "stderr": [err] if err else []}
    return {"results": values, "logs": logs} | ({} if error is None else {"error": error})
