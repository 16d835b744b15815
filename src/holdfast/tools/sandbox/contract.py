"""What the server and the fork server agree on: the messages between them, the limits, and the isolation layers.

A message is four bytes of length and a MessagePack array. Every call has a number; a number is used once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from holdfast.core.egress_policy import Egress
from holdfast.core.messages import Content, Status

CALL: Final = "call"  # the directory in the scratch directory over which each call's own is mounted
IDLE_MARK: Final = b"\n"  # after the answer of a child that does no more, and has left no process that could
MOST_EGRESS_ENTRIES: Final = 200  # of a tool's own policy: the guard looks up every name that is listed
_LENGTH: Final = struct.Struct("!I")
# Modules that many tools import and most do not. Every page that the fork server has makes every fork and every exit
# dearer, so it imports one of these only after a job has mentioned it.
_IMPORTED_ON_DEMAND: Final = {
    b"async": ("asyncio",),  # also what `async def` needs
    b"dataclass": ("dataclasses",),
    b"inspect": ("inspect",),
    b"random": ("random",),
    b"typing_extensions": ("typing_extensions",),
    b"urllib": ("urllib.request",),
    b"pydantic": ("pydantic.main", "pydantic.fields"),
    b"$defs": ("pydantic.main", "pydantic.fields"),  # models that the source does not define
}


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """For one call each. The last is for all calls."""

    memory_bytes: int = 2 << 30  # of each process, and of all together
    file_bytes: int = 256 << 20
    scratch_bytes: int = 256 << 20
    scratch_files: int = 65_536
    open_files: int = 512
    processes: int = 512  # and threads
    output_bytes: int = 1 << 20  # of stdout and of stderr; the end is kept
    result_bytes: int = 64 << 20
    all_calls_bytes: int = 0  # of memory, for all calls together; 0 means half of the machine's


class IsolationLayers(msgspec.Struct, frozen=True, kw_only=True):
    """Which layers of isolation to try. One that does not work on this machine is missing from `Ready.isolation`."""

    bubblewrap: bool = True
    namespaces: bool = True
    landlock: bool = True
    seccomp: bool = True
    signal_scope: bool = True  # landlock's, of Linux 6.12
    own_users: bool = True  # a user id for each call, where the server is root and there are no namespaces
    egress: bool = True
    cgroups: bool = True


class CallsCgroup(msgspec.Struct, frozen=True):
    """The cgroup below which each call gets its own."""

    path: str  # as the server sees it
    directory: int  # open, and inherited by the fork server


class EgressConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What tools may connect to."""

    policy: Egress = Egress()
    port: int = 0  # the server's own, which no tool may reach on this machine; 0 when it listens on none
    has_key: bool = False  # whether the server asks every caller for a key


class ForkServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    limits: Limits
    layers: IsolationLayers
    readable: tuple[str, ...]  # the only paths a tool may read, besides its scratch directory
    hidden: tuple[str, ...]  # real paths which no tool may read although they may lie in a readable one
    scratch: str
    environment: dict[str, str]
    spares: int  # children kept ready
    shell: str  # what the fork server itself runs in: "bubblewrap" or "process"
    egress: EgressConfig = EgressConfig()
    cgroup: CallsCgroup | None = None


EndReason = Literal[
    "exited", "killed", "timeout", "overflow", "unstarted", "memory", "all_memory", "processes", "disk", "files"
]


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    number: int
    timeout_s: float
    job: bytes  # a tools.base.Job as JSON, opened only by the child that runs it
    modules: tuple[str, ...] = ()  # that jobs like this one use


class Kill(msgspec.Struct, frozen=True, array_like=True, tag="kill"):
    number: int


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    isolation: str
    refusal: str = ""  # what is missing, if tools should not be run with so few layers


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """Sent when every process of the call has ended, or the only one left is idle and about to be killed."""

    number: int
    reason: EndReason
    code: int  # as os.waitstatus_to_exitcode gives it: negative for a signal
    answer: bytes  # an Answer as JSON, or empty
    stdout: bytes
    stderr: bytes


class Answer(msgspec.Struct, frozen=True):
    status: Status
    content: Content


ToForkServer = Run | Kill
ToServer = Ready | Ended


def modules_for(job: bytes) -> tuple[str, ...]:
    return tuple(name for word, names in _IMPORTED_ON_DEMAND.items() if word in job for name in names)


def pack(message: ToForkServer | ToServer) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Splits a byte stream back into the bodies of messages."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._held += data
        while len(self._held) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._held)[0]
            if len(self._held) < end:
                return
            body = bytes(self._held[_LENGTH.size : end])
            del self._held[:end]
            yield body
