"""The server's end of the sandbox: one connection to one fork server, started when first needed and again when lost."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final, cast

import msgspec

from holdfast.errors import SandboxLost
from holdfast.tools.base import Job, Outcome, SandboxStatus, cut_to_limit, failure_text
from holdfast.tools.sandbox import call_limits, cgroup_setup, launch
from holdfast.tools.sandbox.contract import (
    Answer,
    CallsCgroup,
    EgressConfig,
    Ended,
    ForkServerConfig,
    IsolationLayers,
    Kill,
    Limits,
    Ready,
    Run,
    ToServer,
    Unpacker,
    modules_for,
    pack,
)
from holdfast.tools.sandbox.egress_report import egress_words, require_egress, warn_of_egress
from holdfast.tools.sandbox.scratch import Scratch, make_scratch

_log = logging.getLogger(__name__)
_START_S: Final = 30.0
_GRACE_S: Final = 5.0  # for the fork server to react, before it is considered hung

_messages = msgspec.msgpack.Decoder(ToServer)
_answers = msgspec.json.Decoder(Answer)


class Connection(asyncio.Protocol):
    """The connection. Every call in flight is a future; losing the fork server fails them all."""

    def __init__(self, process: asyncio.subprocess.Process, stderr_file: IO[bytes]) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._stderr_file = stderr_file  # what bubblewrap or the fork server itself write, never a tool's output
        self._transport: asyncio.Transport | None = None
        self._unpacker = Unpacker()
        self._calls: dict[int, asyncio.Future[Ended]] = {}
        self._last_number = 0
        self._exit_task: asyncio.Task[None] | None = None
        self._closing = False
        self.ready: asyncio.Future[Ready] = self._loop.create_future()
        self.exited = asyncio.Event()

    @property
    def open(self) -> bool:
        return self._exit_task is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        for body in self._unpacker.feed(data):
            message: ToServer = _messages.decode(body)
            match message:
                case Ready():
                    self.ready.set_result(message)
                case Ended(number):
                    call = self._calls.pop(number, None)
                    if call is not None and not call.done():
                        call.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._exit_task = self._loop.create_task(self._on_exit())

    def start(self, job: Job) -> tuple[int, asyncio.Future[Ended]]:
        if self._transport is None or not self.open:
            raise SandboxLost("The sandbox ended before the tool was started.")
        self._last_number += 1
        number = self._last_number
        ended = self._loop.create_future()
        self._calls[number] = ended
        encoded = msgspec.json.encode(job)
        self._transport.write(pack(Run(number, job.timeout_s, encoded, modules_for(encoded))))
        return number, ended

    def kill(self, number: int) -> None:
        if self._transport is not None and self.open:
            self._transport.write(pack(Kill(number)))

    def end(self) -> None:
        """At once, and everything inside with it."""
        if self._process.returncode is None:
            self._process.kill()

    async def close(self) -> None:
        """The fork server ends its calls and itself when the connection closes."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()
        try:
            async with asyncio.timeout(_GRACE_S):
                await self.exited.wait()
        except TimeoutError:
            self.end()
            await self.exited.wait()

    async def _on_exit(self) -> None:
        """Callers learn of the loss only when the processes are really gone."""
        try:
            async with asyncio.timeout(_GRACE_S):
                await self._process.wait()
        except TimeoutError:
            self.end()
            await self._process.wait()
        stderr_tail = _stderr_tail(self._stderr_file)
        if not self._closing:
            _log.error("the sandbox process ended: %s", stderr_tail)
        lost = SandboxLost("The sandbox process ended while the tool was running; what the tool had done is unknown.")
        for call in self._calls.values():
            if not call.done():
                call.set_exception(lost)
        self._calls.clear()
        if not self.ready.done():
            self.ready.set_exception(SandboxLost(stderr_tail))
        self.exited.set()


class ForkServerSandbox:
    """Runs custom tools, each call in its own processes behind every layer of isolation that this machine has."""

    def __init__(
        self,
        *,
        concurrency: int = 32,
        limits: Limits | None = None,
        layers: IsolationLayers | None = None,
        hidden: Iterable[Path] = (),  # the data directory and the database, should they lie in something tools can see
        bubblewrap: str | None = None,
        unsafe: bool = False,  # run tools also where too few layers work
        egress: EgressConfig | None = None,
    ) -> None:
        self._slots = asyncio.Semaphore(concurrency)  # first come, first served
        self._limits = limits or Limits()
        self._layers = layers or IsolationLayers()
        self._hidden = tuple(hidden)
        self._bubblewrap = bubblewrap or shutil.which("bwrap")
        self._egress = egress or EgressConfig()
        self._connection: Connection | None = None
        self._unsafe = unsafe
        self._isolation: str | None = None
        self._refusal = ""
        self._missing = ""  # why bubblewrap is not in use
        self._starting: asyncio.Task[Connection] | None = None
        self._scratch: Scratch | None = None
        self._cgroup: cgroup_setup.AllCalls | None = None
        self._warned = False
        self._closed = False

    async def status(self) -> SandboxStatus:
        isolation = await self.warm()
        if isolation == "none":
            return SandboxStatus("do not work: the log says why", "no custom tool runs")
        return SandboxStatus(self._isolation_text(isolation), egress_words(self._egress, isolation))

    async def warm(self) -> str:
        """Start the fork server if it does not run. Returns which isolation is in force, "none" when it cannot start.

        That is no reason to fail: a server is useful without custom tools, and each call of one will say what is wrong.
        """
        try:
            await self._connected()
        except SandboxLost as lost:
            _log.error("CUSTOM TOOLS DO NOT WORK: %s", lost.message)
            return "none"
        return self._isolation or "none"

    async def run(self, job: Job) -> Outcome:
        async with self._slots:
            try:
                connection = await self._connected()
                if self._refusal and not self._unsafe:
                    raise SandboxLost(f"custom tools are refused on this server: {self._refusal}")
                require_egress(self._egress, self._isolation)
                ended = await _call(connection, job)
            except SandboxLost as lost:
                text = failure_text(job.tool_name, "SandboxLost", lost.message)
                return Outcome(status="error", content=text, stdout=(), stderr=(), isolation=self._isolation)
        return _outcome(job, ended, self._isolation, self._limits)

    async def aclose(self) -> None:
        self._closed = True
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._connection is not None:
            await self._connection.close()
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.close)
        if self._cgroup is not None:
            await asyncio.to_thread(self._cgroup.close)

    def _isolation_text(self, isolation: str) -> str:
        layers = isolation.replace("+", ", ")
        if self._refusal and not self._unsafe:
            return f"REFUSED: {self._refusal}"
        if self._refusal:
            return f"NOT SAFE (HOLDFAST_UNSAFE_TOOLS is set): {self._refusal}; behind {layers}"
        return f"isolated by {layers}" + (f"; {self._missing}" if self._missing else "")

    async def _connected(self) -> Connection:
        if self._connection is not None and self._connection.open:
            return self._connection
        if self._closed:
            raise SandboxLost("The server is shutting down.")
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._started())
        # Shielded: the start is shared, and one caller that is cancelled must not end it for the others.
        return await asyncio.shield(self._starting)

    async def _started(self) -> Connection:
        try:
            return await self._start()
        except OSError as problem:  # disk full, or no process or file descriptor left
            raise SandboxLost(f"The sandbox process could not be started: {problem}") from problem

    async def _start(self) -> Connection:
        if sys.platform != "linux":
            raise SandboxLost("Custom tools run only on Linux.")
        await asyncio.to_thread(launch.compile_modules)
        cgroup = await self._prepare_cgroup() if self._layers.cgroups else None
        if self._layers.bubblewrap and self._bubblewrap is not None:
            config = launch.configure(self._limits, self._layers, os.environ, None, self._hidden, self._egress, cgroup)
            command = launch.bubblewrap_command(self._bubblewrap, config)
            try:
                return await self._open(command, config)
            except SandboxLost as lost:
                self._warn(f"bubblewrap does not work here ({lost.message})")
        else:
            self._warn("bubblewrap is not installed" if self._layers.bubblewrap else "bubblewrap is switched off")
        if self._scratch is None:
            self._scratch = await asyncio.to_thread(make_scratch)
        config = launch.configure(
            self._limits, self._layers, os.environ, self._scratch.path, self._hidden, self._egress, cgroup
        )
        return await self._open(launch.python_command(config), config)

    async def _prepare_cgroup(self) -> CallsCgroup | None:
        if self._cgroup is None:
            self._cgroup = await asyncio.to_thread(cgroup_setup.prepare, self._limits)
        else:
            await asyncio.to_thread(self._cgroup.sweep)
        return self._cgroup.config if self._cgroup is not None else None

    async def _open(self, command: list[str], config: ForkServerConfig) -> Connection:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        stderr_file = tempfile.TemporaryFile()  # noqa: SIM115 (the connection reads and closes it when the process has ended)
        with theirs:  # kept open here, the fork server would never see that the server has closed its end
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=theirs.fileno(),
                stdout=stderr_file,
                stderr=stderr_file,
                env=config.environment,
                pass_fds=(config.cgroup.directory,) if config.cgroup is not None else (),
                start_new_session=True,
            )
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_unix_connection(lambda: Connection(process, stderr_file), sock=ours)
        try:
            async with asyncio.timeout(_START_S):
                ready = await asyncio.shield(connection.ready)
        except TimeoutError:
            connection.end()
            await connection.exited.wait()
            raise SandboxLost(f"it was not ready after {_START_S:g} seconds") from None
        self._connection = connection
        self._isolation, self._refusal = ready.isolation, ready.refusal
        if self._refusal and not self._unsafe:
            _log.error("CUSTOM TOOLS ARE REFUSED: %s. HOLDFAST_UNSAFE_TOOLS=1 runs them nevertheless.", self._refusal)
        elif self._refusal:
            _log.warning("CUSTOM TOOLS ARE NOT SAFE, and HOLDFAST_UNSAFE_TOOLS runs them: %s.", self._refusal)
        _log.info("custom tools run in a sandbox: %s", self._isolation)
        warn_of_egress(self._egress, self._isolation)
        return connection

    def _warn(self, why: str) -> None:
        self._missing = why
        if not self._warned:
            self._warned = True
            _log.warning(
                "CUSTOM TOOLS ARE NOT FULLY ISOLATED: %s. They run in ordinary processes, behind only what the kernel "
                "itself offers. Install bubblewrap (the package is called bubblewrap, the program bwrap).",
                why,
            )


async def _call(connection: Connection, job: Job) -> Ended:
    number, ended = connection.start(job)
    try:
        async with asyncio.timeout(job.timeout_s + _GRACE_S):
            return await asyncio.shield(ended)
    except TimeoutError:
        connection.end()  # the fork server keeps the time itself; if it did not, it hangs
        await asyncio.wait([ended])
        return ended.result()
    except asyncio.CancelledError:
        connection.kill(number)
        await _settled(connection, ended)
        raise


async def _settled(connection: Connection, ended: asyncio.Future[Ended]) -> None:
    """Returns only when every process of the call has ended, however often the caller is cancelled meanwhile."""
    deadline = asyncio.get_running_loop().call_later(_GRACE_S, connection.end)
    try:
        while not ended.done():
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError:  # the first one is re-raised by our caller once this is over
                continue
    finally:
        deadline.cancel()
    ended.exception()  # marks it as seen


def _outcome(job: Job, ended: Ended, isolation: str | None, limits: Limits) -> Outcome:
    answer = _answer(job, ended, limits)
    return Outcome(
        status=answer.status,
        content=cut_to_limit(answer.content, job.return_char_limit),
        stdout=_output(ended.stdout),
        stderr=_output(ended.stderr),
        isolation=isolation,
    )


def _answer(job: Job, ended: Ended, limits: Limits) -> Answer:
    def failed(kind: str, message: str) -> Answer:
        return Answer("error", failure_text(job.tool_name, kind, message))

    match ended.reason:
        case "timeout":
            return failed("TimeoutError", f"the tool did not finish within {job.timeout_s:g} seconds and was stopped")
        case "overflow":
            return failed("ValueError", "the tool returned more data than fits through the sandbox")
        case "killed":
            return failed("CancelledError", "the tool was stopped")
        case "unstarted":
            return failed("OSError", f"no process could be started: {ended.stderr.decode(errors='replace')}")
        case "memory" | "all_memory" | "processes" | "disk" | "files":
            return failed("LimitExceeded", f"{call_limits.limit_text(ended.reason, limits)}, and the tool was stopped")
        case "exited":
            try:
                return _answers.decode(ended.answer)
            except msgspec.DecodeError:
                return failed("ProcessDied", f"the tool's process {_exit_text(ended.code)} before it returned")


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _output(data: bytes) -> tuple[str, ...]:
    return (data.decode(errors="replace"),) if data else ()


def _stderr_tail(stderr_file: IO[bytes]) -> str:
    with stderr_file:
        stderr_file.seek(0)
        text = stderr_file.read().decode(errors="replace").strip()
    return text if text else "it wrote nothing to stderr"
