"""The fork server. Starts once, imports what tools usually import, then forks a child for every call.

One thread, one loop: frames from the server, output of the children, deaths of the children, deadlines. It never runs a
tool's code itself and opens no job; when the server goes away, so do it and all its children.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import selectors
import signal
import socket
import time
from collections.abc import Callable
from typing import Final, NoReturn

import msgspec

from holdfast.tools.base import Job
from holdfast.tools.sandbox import cell as cells
from holdfast.tools.sandbox import cgroups, egress, hiding, invoke, keeper, landlock, limiting, linux
from holdfast.tools.sandbox.contract import (
    AT_REST,
    CALL,
    Answer,
    Ended,
    How,
    Kill,
    Ready,
    Run,
    ToZygote,
    Unpacker,
    ZygoteConfig,
    pack,
)

_PRELOADED: Final = """
    asyncio collections dataclasses datetime enum functools itertools json math random re typing urllib.request uuid
    pydantic.main pydantic.fields
"""
_CHUNK: Final = 1 << 16
# Building a room and taking one down keep a processor busy in the kernel, where nobody can interrupt it. Whoever waits
# for the answer of a call would wait for that too, so both are put off for a moment, if the next call can be served.
_QUIET_S: Final = 0.008
_REST_S: Final = 1.0  # for a room that has served to be taken down; far longer than that takes

_frames = msgspec.msgpack.Decoder(ToZygote)
_jobs = msgspec.json.Decoder(Job)


class Gathered:
    """What came out of one pipe."""

    def __init__(self, fd: int, keep: int) -> None:
        self.fd = fd
        self._keep = keep
        self._held = bytearray()
        self._dropped = 0

    def read(self) -> bool:
        """False at the end of the pipe or when nothing waits."""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return False
        self._held += chunk
        excess = len(self._held) - self._keep
        if excess > self._keep:  # trimmed rarely, so that a flood costs little per byte
            self._trim(excess)
        return bool(chunk)

    @property
    def size(self) -> int:
        return len(self._held) + self._dropped

    def ends_with(self, end: bytes) -> bool:
        return self._held.endswith(end)

    def bytes(self) -> bytes:
        self._trim(len(self._held) - self._keep)
        note = f"[{self._dropped} bytes dropped]\n".encode() if self._dropped else b""
        return note + bytes(self._held)

    def _trim(self, excess: int) -> None:
        if excess > 0:
            del self._held[:excess]
            self._dropped += excess


class Seat(msgspec.Struct, frozen=True):
    """Where a child was put."""

    pid: int
    slot: int = 0  # which of the own users it runs as
    verdict: int = -1  # what its keeper says it ended the call for


class Child:
    """A walled-off process: first a spare that waits for a job, then a call, until it is dead."""

    def __init__(self, seat: Seat, doorbell: int, inbox: int, pipes: tuple[Gathered, Gathered, Gathered]) -> None:
        self.pid = seat.pid
        self.seat = seat
        self.pipes = pipes
        self.number = 0
        self.deadline: float | None = None
        self.watched_from = 0.0
        self.how: How = "exited"
        self.open_pipes = len(pipes)
        self._doorbell = doorbell
        self._inbox = inbox

    def give(self, run: Run) -> None:
        """Through a file in memory, which takes a job of any size without making us wait for its reader."""
        now = time.monotonic()
        self.number = run.number
        self.deadline = now + run.timeout_s
        self.watched_from = now + limiting.LOOK_S
        _write_all(self._inbox, run.job)
        with contextlib.suppress(BrokenPipeError):  # it is dead already, as the loop will notice
            os.write(self._doorbell, b"!")
        self.shut()

    @property
    def has_answered(self) -> bool:
        """It said all it has to say, and nothing inside can say more."""
        return self.how == "exited" and not self.open_pipes and self.pipes[2].size > 0

    @property
    def is_at_rest(self) -> bool:
        return self.pipes[2].ends_with(AT_REST)

    def shut(self) -> None:
        os.close(self._inbox)
        os.close(self._doorbell)


class Zygote:
    def __init__(self, cell: cells.Cell, control: socket.socket) -> None:
        self._cell = cell
        self._control = control
        self._limits = cell.config.limits
        self._unpacker = Unpacker()
        self._selector = selectors.DefaultSelector()
        self._calls: dict[int, Child] = {}  # by pid
        self._spares: dict[int, Child] = {}
        self._answered: dict[int, float] = {}  # when to take down the rooms that have served, by pid
        self._cgroups: dict[int, cgroups.Cgroup] = {}  # by pid
        self._watch = limiting.Watch(cell.config.limits, self._was_refused_a_process)
        self._slots: set[int] = set()
        self._last_scratch = 0
        self._may_spare = True
        self._deaths = False
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY) if cell.namespaces else -1

    def serve(self) -> NoReturn:
        deaths, woken = os.pipe()
        os.set_blocking(deaths, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _noticed)
        self._selector.register(deaths, selectors.EVENT_READ, lambda: self._notice(deaths))
        self._selector.register(self._control, selectors.EVENT_READ, self._listen)
        gc.collect()
        gc.freeze()  # children share these pages; a collection there must not touch them
        self._control.sendall(pack(Ready(self._cell.isolation, self._cell.refusal)))
        while True:
            spare_missing = self._may_spare and len(self._spares) < self._cell.config.spares
            pause = _QUIET_S if self._calls or self._spares else 0.0
            events = self._selector.select(self._retry_policy(pause if spare_missing else None))
            for key, _ in events:
                action: Callable[[], None] = key.data
                action()
            self._bury()
            self._expire()
            if spare_missing and not events:
                self._prepare()

    def _retry_policy(self, at_most: float | None) -> float | None:
        now = time.monotonic()
        waits = [call.deadline - now for call in self._calls.values() if call.deadline is not None]
        waits += [due - now for due in self._answered.values()]
        waits += [self._watch.due(call.watched_from) - now for call in self._calls.values()]
        waits += [at_most] if at_most is not None else []
        return max(0.0, min(waits)) if waits else None

    def _expire(self) -> None:
        now = time.monotonic()
        for call in self._calls.values():
            if call.deadline is not None and call.deadline <= now:
                self._end(call, "timeout")
        watched = [call.pid for call in self._calls.values() if call.watched_from <= now and call.how == "exited"]
        for pid, excess in self._watch.excesses(watched, now):
            self._end(self._calls[pid], excess)
        for pid in [pid for pid, due in self._answered.items() if due <= now]:
            del self._answered[pid]
            os.kill(pid, signal.SIGKILL)

    def _listen(self) -> None:
        data = self._control.recv(_CHUNK)
        if not data:
            self._leave()
        for body in self._unpacker.feed(data):
            frame: ToZygote = _frames.decode(body)
            match frame:
                case Run():
                    self._start(frame)
                case Kill(number):
                    for call in self._calls.values():
                        if call.number == number:
                            self._end(call, "killed")

    def _leave(self) -> NoReturn:
        """Process 1 of a namespace takes everything with it; otherwise each keeper has to be told."""
        for child in (*self._calls.values(), *self._spares.values()):
            self._end(child, "killed")
        for pid in self._answered:
            os.kill(pid, signal.SIGKILL)
        for pid in (*self._calls, *self._spares, *self._answered):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os._exit(0)

    def _end(self, call: Child, how: How) -> None:
        call.how = how
        call.deadline = None
        if call.pid in self._cgroups:
            self._cgroups[call.pid].kill()
        os.kill(call.pid, signal.SIGKILL if self._cell.namespaces else signal.SIGTERM)

    def _start(self, run: Run) -> None:
        try:
            child = self._spares.pop(next(iter(self._spares))) if self._spares else self._fork_child()
        except OSError as problem:
            self._control.sendall(pack(Ended(run.number, "unstarted", 0, b"", b"", str(problem).encode())))
            return
        self._calls[child.pid] = child
        child.give(run)
        for pipe in child.pipes:
            self._selector.register(pipe.fd, selectors.EVENT_READ, lambda pipe=pipe: self._gather(child, pipe))

    def _prepare(self) -> None:
        """In idle moments, so that the next call finds its room built."""
        try:
            child = self._fork_child()
        except OSError:
            self._may_spare = False  # until a call has ended and made room
            return
        self._spares[child.pid] = child

    def _fork_child(self) -> Child:
        with contextlib.ExitStack() as on_failure:
            ends = [os.pipe() for _ in range(4)]
            inbox = os.memfd_create("job")
            for fd in (inbox, *(fd for pair in ends for fd in pair)):
                on_failure.callback(os.close, fd)
            (listen, doorbell), *outputs = ends
            cgroup = self._cell.calls.add() if self._cell.calls else None
            if cgroup is not None:
                on_failure.callback(cgroup.remove)
            seat = self._fork(cells.Pipes(listen, inbox, *(write for _, write in outputs)), cgroup)
            on_failure.pop_all()
        if cgroup is not None:
            self._cgroups[seat.pid] = cgroup
        os.close(listen)
        for read, write in outputs:
            os.close(write)
            os.set_blocking(read, False)
        keep = (self._limits.output_bytes, self._limits.output_bytes, self._limits.result_bytes)
        stdout, stderr, answer = (Gathered(read, cap) for (read, _), cap in zip(outputs, keep, strict=True))
        return Child(seat, doorbell, inbox, (stdout, stderr, answer))

    def _fork(self, pipes: cells.Pipes, cgroup: cgroups.Cgroup | None) -> Seat:
        if not self._cell.namespaces:
            return self._fork_keeper(pipes, cgroup)
        linux.unshare(linux.CLONE_NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                os.setsid()
                scratch = os.path.join(self._cell.config.scratch, CALL)
                _become_tool(self._cell, pipes, cells.Place(scratch, cgroup=cgroup))
        finally:
            linux.enter_pid_namespace(self._own_pids)
        return Seat(pid)

    def _fork_keeper(self, pipes: cells.Pipes, cgroup: cgroups.Cgroup | None) -> Seat:
        slot = min(set(range(len(self._slots) + 1)) - self._slots)
        self._last_scratch += 1
        verdict, told = os.pipe()
        charge = keeper.Charge(
            fork_server=os.getpid(),
            scratch=os.path.join(self._cell.config.scratch, f"call-{os.getpid()}-{self._last_scratch}"),
            user=cells.user_of(slot) if self._cell.own_users else None,
            limits=self._limits,
            confines_signals=self._cell.landlock_abi >= landlock.SCOPES_SINCE,
            verdict=told,
            cgroup=cgroup,
        )
        with contextlib.ExitStack() as always, contextlib.ExitStack() as on_failure:
            always.callback(os.close, told)
            on_failure.callback(os.close, verdict)
            pid = os.fork()
            if pid == 0:
                self._become_keeper(pipes, charge)
            on_failure.pop_all()
        self._slots.add(slot)
        return Seat(pid, slot, verdict)

    def _become_keeper(self, pipes: cells.Pipes, charge: keeper.Charge) -> NoReturn:
        code = 1
        try:
            place = cells.Place(charge.scratch, charge.user, charge.cgroup)
            code = keeper.keep(charge, lambda: _become_tool(self._cell, pipes, place))
        finally:
            os._exit(code if code >= 0 else 128 - code)

    def _gather(self, call: Child, pipe: Gathered) -> None:
        if not pipe.read():
            self._selector.unregister(pipe.fd)  # closed by its writers
            call.open_pipes -= 1
            if call.has_answered and self._cell.namespaces:
                self._dismiss(call)
        elif pipe is call.pipes[2] and pipe.size > self._limits.result_bytes and call.how == "exited":
            self._end(call, "overflow")

    def _dismiss(self, call: Child) -> None:
        """Nobody needs to wait for the walls of a room to come down when all is quiet inside."""
        if call.is_at_rest:
            self._answered[call.pid] = time.monotonic() + _QUIET_S
            self._report(self._calls.pop(call.pid), 0)
        else:
            os.kill(call.pid, signal.SIGKILL)

    def _notice(self, deaths: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(deaths, _CHUNK)
        self._deaths = True

    def _bury(self) -> None:
        """Only between rounds: an event of the same round may still name a pipe that this closes."""
        if not self._deaths:
            return
        self._deaths = False
        for pid, code in keeper.reap().items():
            self._answered.pop(pid, None)
            if not self._cell.namespaces and code < 0:
                # The keeper itself was killed: what it held is ours now.
                keeper.end_children(spare={*self._calls, *self._spares})
            cgroup = self._cgroups.pop(pid, None)
            if pid in self._calls:
                call = self._heard(self._calls.pop(pid))
                if cgroup is not None and code and call.how == "exited":
                    call.how = cgroup.killed_for() or "exited"
                self._report(call, code)
            elif pid in self._spares:
                self._discard(self._spares.pop(pid))
            if cgroup is not None:
                cgroup.remove()

    def _report(self, call: Child, code: int) -> None:
        registered = self._selector.get_map()
        for pipe in call.pipes:
            while pipe.read():
                pass
            if pipe.fd in registered:
                self._selector.unregister(pipe.fd)
            os.close(pipe.fd)
        self._may_spare = True
        stdout, stderr, answer = (pipe.bytes() for pipe in call.pipes)
        code = 128 - code if code > 128 and not self._cell.namespaces else code
        self._control.sendall(pack(Ended(call.number, call.how, code, answer, stdout, stderr)))

    def _heard(self, child: Child) -> Child:
        """What its keeper found, and its place is free again."""
        if child.seat.verdict >= 0:
            self._slots.discard(child.seat.slot)
            found = os.read(child.seat.verdict, _CHUNK).decode()
            os.close(child.seat.verdict)
            if found in ("disk", "files") and child.how == "exited":
                child.how = found
        return child

    def _was_refused_a_process(self, pid: int) -> bool:
        return pid in self._cgroups and self._cgroups[pid].was_refused_a_process()

    def _discard(self, spare: Child) -> None:
        self._may_spare = False  # whatever killed it would kill the next; a call that has to wait will say what it was
        self._heard(spare).shut()
        for pipe in spare.pipes:
            os.close(pipe.fd)


def _become_tool(cell: cells.Cell, pipes: cells.Pipes, place: cells.Place) -> NoReturn:
    """Never returns, so that no exception can carry a child back into the fork server's loop."""
    code = 1
    try:
        cells.enter(cell, pipes, place)
        invoke.rehearse(_jobs)
        received = cells.wait_for_job()
        if not received:
            os._exit(0)
        job = _jobs.decode(received)
        cells.admit(job, cell)
        me = os.getpid()
        answer = invoke.invoke(job, limiting.explain(cell.config, job.egress))
        if os.getpid() == me:  # a tool that forked: only the original speaks
            code = 0
            at_rest = cell.namespaces and _is_alone()
            _write_all(cells.ANSWER_FD, msgspec.json.encode(answer) + (AT_REST if at_rest else b""))
            os.closerange(1, cells.ANSWER_FD + 1)  # at once: leaving takes the kernel longer than the call did
            if at_rest:
                time.sleep(_REST_S)
    except OSError as problem:
        refusal = Answer("error", f"The tool was not run: its sandbox could not be set up ({problem}).")
        _write_all(cells.ANSWER_FD, msgspec.json.encode(refusal))
        code = 0
    finally:
        os._exit(code)


def _is_alone() -> bool:
    """The tool has left nothing behind that could go on."""
    return not keeper.has_children() and len(os.listdir("/proc/self/task")) == 1


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _noticed(number: int, frame: object) -> None:
    """Only the byte in the wake-up pipe matters."""


def main(config_text: str) -> NoReturn:
    config = msgspec.json.decode(config_text, type=ZygoteConfig)
    while os.open(os.devnull, os.O_RDONLY) < cells.INBOX_FD:
        pass  # taken, so that no rule or pipe gets a number that the children need
    control = socket.socket(fileno=0)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for pipes of calls and for rules; calls get their own
    linux.die_with_parent()
    standing = egress.enclose(config)
    linux.adopt_orphans()
    for name in _PRELOADED.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    namespaces = config.walls.namespaces and linux.works(lambda: _try_namespaces(config))
    is_read_only = False
    if namespaces:
        linux.found_namespaces()
        linux.stay_open_to_ancestors()
        is_read_only = _close_files(config)
    Zygote(cells.survey(config, namespaces, is_read_only, standing), control).serve()


def _close_files(config: ZygoteConfig) -> bool:
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
    if not hiding.too_full(hidden):
        for directory in hiding.mixed(hidden):
            linux.show_only(directory, hiding.kept_in(directory, hidden))
    for path in hidden:
        linux.cover(path)


def _try_namespaces(config: ZygoteConfig) -> None:
    """Everything a call will need, in the order it will need it."""
    linux.found_namespaces()
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
    linux.enter_pid_namespace(own)
