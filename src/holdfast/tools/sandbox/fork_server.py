"""The fork server: a process that imports what tools usually import, then forks a child for every call.

One thread with one loop serves the server's messages, the output and the exits of the children, and deadlines. It never
runs a tool's code and decodes no job: a tool that breaks its process breaks one call. When the server's connection
closes, the fork server ends and takes all its children with it.

What the loop does for every call is written with few objects: each page that it touches after a fork is copied, and
context managers, enums and comprehensions have many (decision 33).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NoReturn

import msgspec

from holdfast.tools.base import Job
from holdfast.tools.sandbox import (
    call_limits,
    cgroups,
    egress_filter,
    hidden_paths,
    invoke,
    isolation,
    landlock,
    linux,
    reaper,
    sandbox_child,
)
from holdfast.tools.sandbox.call_process import CHUNK, NEVER, CallProcess, ForkedProcess, PipeBuffer, write_all
from holdfast.tools.sandbox.contract import (
    CALL,
    IDLE_MARK,
    Answer,
    Ended,
    EndReason,
    ForkServerConfig,
    Ready,
    Run,
    ToForkServer,
    Unpacker,
    pack,
)
from holdfast.tools.sandbox.isolation import ActiveIsolation
from holdfast.tools.sandbox.sandbox_child import CallPlace

_PRELOADED: Final = "collections datetime enum functools itertools json math re typing uuid"
# The kernel takes milliseconds to build the namespaces of a call and to remove them, and cannot be interrupted. Both
# are put off until the loop was idle this long, so that no caller waits for them. With no call and no spare, a spare is
# made at once.
_IDLE_S: Final = 0.008
_SIGKILL: Final = int(signal.SIGKILL)  # without the enum, whose pages a fork would have copied
_EXIT_WAIT_S: Final = 1.0  # how long an idle child waits to be killed; far longer than the fork server takes

_messages = msgspec.msgpack.Decoder(ToForkServer)
_jobs = msgspec.json.Decoder(Job)


class ForkServer:
    def __init__(self, active: ActiveIsolation, control: socket.socket) -> None:
        self._active = active
        self._control = control
        self._limits = active.config.limits
        self._unpacker = Unpacker()
        self._epoll = select.epoll()
        self._actions: dict[int, Callable[[], None]] = {}  # when something can be read, by file descriptor
        self._calls: dict[int, CallProcess] = {}  # by pid
        self._spares: dict[int, CallProcess] = {}
        self._answered: dict[int, float] = {}  # when to kill the children that have answered, by pid
        self._cgroups: dict[int, cgroups.Cgroup] = {}  # by pid
        self._usage = call_limits.UsageMonitor(active.config.limits, self._was_refused_a_process)
        self._slots: set[int] = set()
        self._last_scratch = 0
        self._may_spare = True
        self._imported: set[str] = set()  # on demand
        self._to_import: set[str] = set()  # before the next spare is forked
        self._children_exited = False
        self._setup: list[isolation.Step] = []  # of every call, where all have the same
        if active.namespaces:
            own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY)
            self._leave_pid_namespace = linux.unshare_call(linux.CLONE_NEWPID)
            self._return_to_pid_namespace = linux.enter_pid_namespace_call(own_pids)
            self._setup += sandbox_child.setup(active, CallPlace(os.path.join(active.config.scratch, CALL)))

    def serve(self) -> NoReturn:
        exits, woken = os.pipe()
        os.set_blocking(exits, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        self._watch(exits, lambda: self._note_exits(exits))
        self._watch(self._control.fileno(), self._receive)
        gc.freeze()  # children share these pages; a collection there must not touch them
        self._control.sendall(pack(Ready(self._active.isolation, self._active.refusal)))
        while True:
            spare_missing = self._may_spare and len(self._spares) < self._active.config.spares
            pause = _IDLE_S if self._calls or self._spares else 0.0
            events = self._epoll.poll(self._poll_timeout(pause if spare_missing else None))
            for fd, _ in events:
                self._actions[fd]()
            self._reap_exited()
            self._end_overdue()
            if spare_missing and not events:
                self._make_spare()

    def _watch(self, fd: int, action: Callable[[], None]) -> None:
        self._actions[fd] = action
        self._epoll.register(fd, select.EPOLLIN)

    def _unwatch(self, fd: int) -> None:
        if self._actions.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def _poll_timeout(self, at_most: float | None) -> float | None:
        if not self._calls and not self._answered:
            return at_most
        now = time.monotonic()
        soonest = NEVER if at_most is None else now + at_most
        for call in self._calls.values():
            soonest = min(soonest, call.deadline, self._usage.due(call.watched_from))
        for due in self._answered.values():
            soonest = min(soonest, due)
        return max(0.0, soonest - now)

    def _end_overdue(self) -> None:
        if not self._calls and not self._answered:
            return
        now = time.monotonic()
        watched: list[int] = []
        for call in self._calls.values():
            if call.deadline <= now:
                self._kill(call, "timeout")
            if call.watched_from <= now and call.end_reason == "exited":
                watched.append(call.pid)
        if watched:
            for pid, excess in self._usage.excesses(watched, now):
                self._kill(self._calls[pid], excess)
        for pid in tuple(self._answered):
            if self._answered[pid] <= now:
                del self._answered[pid]
                os.kill(pid, _SIGKILL)

    def _receive(self) -> None:
        data = self._control.recv(CHUNK)
        if not data:
            self._shut_down()
        for body in self._unpacker.feed(data):
            message: ToForkServer = _messages.decode(body)
            if isinstance(message, Run):
                self._start(message)
                continue
            for call in self._calls.values():
                if call.number == message.number:
                    self._kill(call, "killed")

    def _shut_down(self) -> NoReturn:
        """Without namespaces each reaper has to be signalled; with them, the kernel kills all that process 1 leaves."""
        for child in (*self._calls.values(), *self._spares.values()):
            self._kill(child, "killed")
        for pid in self._answered:
            os.kill(pid, signal.SIGKILL)
        for pid in (*self._calls, *self._spares, *self._answered):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os._exit(0)

    def _kill(self, call: CallProcess, reason: EndReason) -> None:
        call.end_reason = reason
        call.deadline = NEVER
        if call.pid in self._cgroups:
            self._cgroups[call.pid].kill()
        os.kill(call.pid, signal.SIGKILL if self._active.namespaces else signal.SIGTERM)

    def _start(self, run: Run) -> None:
        self._to_import |= {*run.modules} - self._imported
        try:
            child = self._spares.pop(next(iter(self._spares))) if self._spares else self._fork_child()
        except OSError as problem:
            self._control.sendall(pack(Ended(run.number, "unstarted", 0, b"", b"", str(problem).encode())))
            return
        self._calls[child.pid] = child
        child.start(run)
        for pipe in child.pipes:
            self._watch(pipe.fd, partial(self._read_output, child, pipe))

    def _make_spare(self) -> None:
        """While nothing else is to be done, so that the next call finds its sandbox built."""
        if self._to_import:
            _import(self._to_import)
            self._imported |= self._to_import
            self._to_import = set()
        try:
            child = self._fork_child()
        except OSError:
            self._may_spare = False  # until a call has ended and freed what was missing
            return
        self._spares[child.pid] = child

    def _fork_child(self) -> CallProcess:
        opened: list[int] = []
        cgroup = None
        try:
            for _ in range(4):
                opened += os.pipe()
            opened.append(os.memfd_create("job"))
            wait_pipe, start_pipe, out, out_end, error, error_end, answer, answer_end, job_fd = opened
            if self._active.calls is not None:
                cgroup = self._active.calls.add()
            forked = self._fork(sandbox_child.Pipes(wait_pipe, job_fd, out_end, error_end, answer_end), cgroup)
        except OSError:
            for fd in opened:
                os.close(fd)
            if cgroup is not None:
                cgroup.remove()
            raise
        if cgroup is not None:
            self._cgroups[forked.pid] = cgroup
        for fd in (wait_pipe, out_end, error_end, answer_end):
            os.close(fd)
        for fd in (out, error, answer):
            os.set_blocking(fd, False)
        limits = self._limits
        outputs = (
            PipeBuffer(out, limits.output_bytes),
            PipeBuffer(error, limits.output_bytes),
            PipeBuffer(answer, limits.result_bytes),
        )
        return CallProcess(forked, start_pipe, job_fd, outputs)

    def _fork(self, pipes: sandbox_child.Pipes, cgroup: cgroups.Cgroup | None) -> ForkedProcess:
        if not self._active.namespaces:
            return self._fork_reaper(pipes, cgroup)
        self._leave_pid_namespace()
        try:
            pid = os.fork()
            if pid == 0:
                os.setsid()
                _become_sandbox_child(self._active, pipes, cgroup, self._setup)
        finally:
            self._return_to_pid_namespace()
        return ForkedProcess(pid)

    def _fork_reaper(self, pipes: sandbox_child.Pipes, cgroup: cgroups.Cgroup | None) -> ForkedProcess:
        slot = min(set(range(len(self._slots) + 1)) - self._slots)
        self._last_scratch += 1
        limit_pipe, limit_writer = os.pipe()
        config = reaper.ReaperConfig(
            fork_server=os.getpid(),
            scratch=os.path.join(self._active.config.scratch, f"call-{os.getpid()}-{self._last_scratch}"),
            user=isolation.user_of(slot) if self._active.own_users else None,
            limits=self._limits,
            confines_signals=self._active.landlock_abi >= landlock.SCOPES_SINCE,
            limit_pipe=limit_writer,
            cgroup=cgroup,
        )
        with contextlib.ExitStack() as always, contextlib.ExitStack() as on_failure:
            always.callback(os.close, limit_writer)
            on_failure.callback(os.close, limit_pipe)
            pid = os.fork()
            if pid == 0:
                self._become_reaper(pipes, config)
            on_failure.pop_all()
        self._slots.add(slot)
        return ForkedProcess(pid, slot, limit_pipe)

    def _become_reaper(self, pipes: sandbox_child.Pipes, config: reaper.ReaperConfig) -> NoReturn:
        code = 1
        try:
            setup = sandbox_child.setup(self._active, CallPlace(config.scratch, config.user))
            code = reaper.run_call(config, lambda: _become_sandbox_child(self._active, pipes, config.cgroup, setup))
        finally:
            os._exit(code if code >= 0 else 128 - code)

    def _read_output(self, call: CallProcess, pipe: PipeBuffer) -> None:
        if not pipe.read():
            self._unwatch(pipe.fd)  # closed by its writers
            call.open_pipes -= 1
            if call.has_answered and self._active.namespaces:
                self._on_answer(call)
        elif pipe is call.pipes[2] and pipe.size > self._limits.result_bytes and call.end_reason == "exited":
            self._kill(call, "overflow")

    def _on_answer(self, call: CallProcess) -> None:
        """An idle child does nothing more, so the answer need not wait until the kernel has removed its namespaces."""
        if call.is_idle:
            self._answered[call.pid] = time.monotonic() + _IDLE_S
            self._report(self._calls.pop(call.pid), 0)
        else:
            os.kill(call.pid, signal.SIGKILL)

    def _note_exits(self, exits: int) -> None:
        os.read(exits, CHUNK)  # there is something, or the loop would not have been told
        self._children_exited = True

    def _reap_exited(self) -> None:
        """Only between rounds: an event of the same round may still name a pipe that this closes."""
        if not self._children_exited:
            return
        self._children_exited = False
        for pid, code in reaper.reap().items():
            self._answered.pop(pid, None)
            if not self._active.namespaces and code < 0:
                # The reaper itself was killed, and the fork server has inherited its children.
                reaper.kill_children(spare={*self._calls, *self._spares})
            cgroup = self._cgroups.pop(pid, None)
            if pid in self._calls:
                call = self._reaper_finding(self._calls.pop(pid))
                if cgroup is not None and code and call.end_reason == "exited":
                    call.end_reason = cgroup.killed_for() or "exited"
                self._report(call, code)
            elif pid in self._spares:
                self._discard(self._spares.pop(pid))
            if cgroup is not None:
                cgroup.remove()

    def _report(self, call: CallProcess, code: int) -> None:
        for pipe in call.pipes:
            while pipe.read():
                pass
            self._unwatch(pipe.fd)
            os.close(pipe.fd)
        self._may_spare = True
        stdout, stderr, answer = call.pipes
        code = 128 - code if code > 128 and not self._active.namespaces else code
        self._control.sendall(
            pack(Ended(call.number, call.end_reason, code, answer.bytes(), stdout.bytes(), stderr.bytes()))
        )

    def _reaper_finding(self, child: CallProcess) -> CallProcess:
        """Takes over the limit that its reaper found exceeded, if any, and frees its user id."""
        if child.forked.limit_pipe >= 0:
            self._slots.discard(child.forked.user_slot)
            found = os.read(child.forked.limit_pipe, CHUNK).decode()
            os.close(child.forked.limit_pipe)
            if found in ("disk", "files") and child.end_reason == "exited":
                child.end_reason = found
        return child

    def _was_refused_a_process(self, pid: int) -> bool:
        return pid in self._cgroups and self._cgroups[pid].was_refused_a_process()

    def _discard(self, spare: CallProcess) -> None:
        self._may_spare = False  # whatever killed it would kill the next; a call that has to wait will say what it was
        self._reaper_finding(spare).close_inputs()
        for pipe in spare.pipes:
            os.close(pipe.fd)


def _become_sandbox_child(
    active: ActiveIsolation, pipes: sandbox_child.Pipes, cgroup: cgroups.Cgroup | None, setup: Iterable[isolation.Step]
) -> NoReturn:
    """Never returns, so that no exception can carry a child back into the fork server's loop."""
    code = 1
    try:
        sandbox_child.enter(pipes, cgroup, setup)
        received = sandbox_child.wait_for_job()
        if not received:
            os._exit(0)
        job = _jobs.decode(received)
        sandbox_child.apply_job(job, active)
        me = os.getpid()
        answer = invoke.invoke(job, call_limits.explain(active.config, job.egress))
        if os.getpid() == me:  # a tool that forked: only the original process answers
            code = 0
            is_idle = active.namespaces and _is_alone()
            write_all(isolation.ANSWER_FD, msgspec.json.encode(answer) + (IDLE_MARK if is_idle else b""))
            os.closerange(1, isolation.ANSWER_FD + 1)  # now: the exit takes the kernel longer than the call did
            if is_idle:
                time.sleep(_EXIT_WAIT_S)
    except OSError as problem:
        refusal = Answer("error", f"The tool was not run: its sandbox could not be set up ({problem}).")
        write_all(isolation.ANSWER_FD, msgspec.json.encode(refusal))
        code = 0
    finally:
        os._exit(code)


def _is_alone() -> bool:
    """The tool has left nothing behind that could go on."""
    return not linux.has_children() and len(os.listdir("/proc/self/task")) == 1


def _ignore(number: int, frame: object) -> None:
    """Only the byte in the wake-up pipe matters."""


def main(config_text: str) -> NoReturn:
    config = msgspec.json.decode(config_text, type=ForkServerConfig)
    while os.open(os.devnull, os.O_RDONLY) < isolation.JOB_FD:
        pass  # taken, so that no rule or pipe gets a number that the children need
    control = socket.socket(fileno=0)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for pipes of calls and for rules; calls get their own
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # children inherit it
    linux.die_with_parent()
    _import(_PRELOADED.split())
    egress_layer = egress_filter.enclose(config)
    linux.adopt_orphans()
    namespaces = config.layers.namespaces and linux.works(lambda: _try_namespaces(config))
    is_read_only = False
    if namespaces:
        linux.create_namespaces()
        linux.stay_open_to_ancestors()
        is_read_only = _restrict_files(config)
    sandbox_child.prepare_environment(config)
    invoke.prepare_output()
    ForkServer(isolation.detect(config, namespaces, is_read_only, egress_layer), control).serve()


def _import(names: Iterable[str]) -> None:
    """Children share the pages of what is loaded before they are forked, and so do the guard and the process outside
    our namespaces. A collection would write to all of them, so nothing that is loaded by now is collected again."""
    gc.disable()
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()


def _restrict_files(config: ForkServerConfig) -> bool:
    """For all calls at once, in the mounts they start from. Whether nothing can be written but a call's own mounts."""
    if config.shell == "process":  # bubblewrap has done it otherwise
        with contextlib.suppress(OSError):  # whether they can be seen is tried afterwards
            _cover(config.hidden)
    linux.seal(config.scratch)  # calls share it: only what is mounted for each of them may be written
    try:
        linux.make_all_read_only()
    except OSError:
        return False
    return True


def _cover(hidden: tuple[str, ...]) -> None:
    if not hidden_paths.too_full(hidden):
        for directory in hidden_paths.mixed(hidden):
            linux.show_only(directory, hidden_paths.kept_in(directory, hidden))
    for path in hidden:
        linux.cover(path)


def _try_namespaces(config: ForkServerConfig) -> None:
    """Everything a call will need, in the order it will need it."""
    linux.create_namespaces()
    linux.seal(config.scratch)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    linux.unshare(linux.CLONE_NEWPID)

    def as_call() -> None:
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount_proc()
        linux.mount("tmpfs", os.path.join(config.scratch, CALL), linux.MS_NOSUID | linux.MS_NODEV)
        linux.drop_capabilities()

    if not linux.works(as_call):
        raise OSError("no namespaces for a single call")
    linux.enter_pid_namespace_call(own)()
