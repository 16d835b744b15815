"""The egress policy of tools, in real sandboxes: with every layer of isolation, and without some of them."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import shutil
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.core.egress import Egress, entries
from holdfast.tools.base import Job, Outcome
from holdfast.tools.sandbox.contract import EgressConfig, IsolationLayers
from holdfast.tools.sandbox.destinations import Judge
from holdfast.tools.sandbox.fork_server_client import ForkServerSandbox

pytestmark = pytest.mark.slow

MODES = {
    "bubblewrap": IsolationLayers(),
    "namespaces": IsolationLayers(bubblewrap=False),
    "process": IsolationLayers(bubblewrap=False, namespaces=False),
}
LOOPBACK = Egress("allow-list", entries("127.0.0.0/8, ::1"))
REFUSED = "[Errno 13] Permission denied"

# Every way to reach a port of this machine that we know. Each names what happened, and none may say "reached".
ATTACKS = '''
import asyncio, ctypes, errno, os, select, socket, struct, subprocess, sys, threading, urllib.request

def said(attempt):
    try:
        return "reached " + str(attempt())
    except BaseException as problem:
        return f"{type(problem).__name__}: {problem}"

def dial(host, port, family=socket.AF_UNSPEC):
    for family, kind, proto, _, address in socket.getaddrinfo(host, port, family, socket.SOCK_STREAM):
        with socket.socket(family, kind, proto) as line:
            line.settimeout(10)
            line.connect(address)
            line.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            return line.recv(1)

def not_blocking(port):
    with socket.socket() as line:
        line.setblocking(False)
        code = line.connect_ex(("127.0.0.1", port))
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
        select.select([], [line], [], 10)
        code = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        return "after waiting"

def fast_open(port):
    with socket.socket() as line:
        return line.sendto(b"GET / HTTP/1.0\\r\\n\\r\\n", socket.MSG_FASTOPEN, ("127.0.0.1", port))

def fast_open_message(port):
    with socket.socket() as line:
        return line.sendmsg([b"GET"], [], socket.MSG_FASTOPEN, ("127.0.0.1", port))

def fast_open_messages(port):
    """The same with sendmmsg, which Python does not offer."""
    where = struct.pack("=H", 2) + struct.pack("!H4s8x", port, socket.inet_aton("127.0.0.1"))
    address = ctypes.create_string_buffer(where, 16)
    data = ctypes.create_string_buffer(b"GET", 3)
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(data), 3)
    header = struct.pack("=QI4xQQQQi4xI4x", ctypes.addressof(address), 16, ctypes.addressof(vector), 1, 0, 0, 0, 0)
    messages = ctypes.create_string_buffer(header, len(header))
    libc = ctypes.CDLL(None, use_errno=True)
    with socket.socket() as line:
        if libc.sendmmsg(line.fileno(), messages, 1, socket.MSG_FASTOPEN) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "by sendmmsg"

def multipath(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as line:
        line.settimeout(10)
        line.connect(("127.0.0.1", port))
        return "by MPTCP"

def in_thread(port):
    found = []
    thread = threading.Thread(target=lambda: found.append(said(lambda: dial("127.0.0.1", port))))
    thread.start(); thread.join()
    if found[0].startswith("reached"):
        return found[0]
    raise OSError(found[0])

def in_child(port):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, said(lambda: dial("127.0.0.1", port)).encode())
        os._exit(0)
    os.wait()
    found = os.read(read, 1000).decode()
    if found.startswith("reached"):
        return found
    raise OSError(found)

def in_program(port):
    code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 10); print('reached')"
    found = subprocess.run([sys.executable, "-c", code, str(port)], capture_output=True, text=True)
    if "reached" in found.stdout:
        return found.stdout
    raise OSError(found.stderr.strip().splitlines()[-1])

def in_asyncio(port):
    async def go():
        await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 10)
        return "by asyncio"
    return asyncio.run(go())

def ring():
    result = ctypes.CDLL(None, use_errno=True).syscall(425, 8, ctypes.create_string_buffer(256))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "a ring"

def swapped(port):
    """Another thread keeps changing the address while the call is judged."""
    libc = ctypes.CDLL(None, use_errno=True)
    good = struct.pack("=H", 2) + struct.pack("!H4s8x", 9, socket.inet_aton("127.0.0.1"))
    bad = struct.pack("=H", 2) + struct.pack("!H4s8x", port, socket.inet_aton("127.0.0.1"))
    buffer = ctypes.create_string_buffer(good, 16)
    stop = threading.Event()
    def swap():
        while not stop.is_set():
            ctypes.memmove(buffer, bad, 16); ctypes.memmove(buffer, good, 16)
    thread = threading.Thread(target=swap); thread.start()
    try:
        for _ in range(200):
            with socket.socket() as line:
                if libc.connect(line.fileno(), buffer, 16) == 0 and line.getpeername()[1] == port:
                    return "by a race"
    finally:
        stop.set(); thread.join()
    raise OSError(13, os.strerror(13))

def attack(port: int, hosts: list) -> dict:
    found = {host: said(lambda: dial(host, port)) for host in hosts}
    found["urllib"] = said(lambda: urllib.request.urlopen(f"http://localhost:{port}/", timeout=10))
    fast = (fast_open, fast_open_message, fast_open_messages)
    for way in (*fast, multipath, not_blocking, in_thread, in_child, in_program, in_asyncio, swapped):
        found[way.__name__] = said(lambda: way(port))
    found["ring"] = said(ring)
    return found
'''
SPELLINGS = [
    "127.0.0.1",
    "localhost",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "0.0.0.0",
    "::",
    "0x7f000001",
    "2130706433",
    "127.1",
    "127.255.255.254",
]
DIAL = """
import socket
def dial(port: int, host: str = "127.0.0.1") -> str:
    with socket.create_connection((host, port), timeout=20) as line:
        return line.recv(5).decode()
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as made:
        yield made


@asynccontextmanager
async def sandboxed(mode: str, policy: Egress, port: int = 0, **layers: bool) -> AsyncGenerator[ForkServerSandbox]:
    if mode == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    chosen = MODES[mode]
    given = IsolationLayers(**{"bubblewrap": chosen.bubblewrap, "namespaces": chosen.namespaces} | layers)
    made = ForkServerSandbox(layers=given, egress=EgressConfig(policy=policy, port=port), unsafe=not given.landlock)
    try:
        await made.warm()
        yield made
    finally:
        await made.aclose()


def job(source: str, egress: Egress | None = None, **arguments: Any) -> Job:
    name = re.findall(r"^(?:async )?def (\w+)", source, re.M)[-1]
    return Job(call_id="call-1", tool_name=name, source_code=source, arguments=arguments, timeout_s=60, egress=egress)


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def reached(outcome: Outcome) -> list[str]:
    assert outcome.status == "success", outcome.content
    assert isinstance(outcome.content, str)
    return [part for part in outcome.content.split('","') if "reached" in part]


def own_addresses() -> list[str]:
    return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)})


async def accept_and_greet(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    line, _ = await loop.sock_accept(listener)
    with line:
        await loop.sock_sendall(line, b"hello")


@pytest.mark.parametrize("policy", [Egress("public"), Egress("all"), LOOPBACK, Egress("none")], ids=lambda p: p.mode)
@pytest.mark.parametrize("mode", list(MODES))
async def test_no_tool_reaches_the_servers_own_port_by_any_spelling_or_system_call(
    mode: str, policy: Egress, listener: socket.socket
) -> None:
    port = port_of(listener)
    async with sandboxed(mode, policy, port) as sandbox:
        outcome = await sandbox.run(job(ATTACKS, port=port, hosts=[*SPELLINGS, *own_addresses()]))
    assert reached(outcome) == []
    assert REFUSED in str(outcome.content)
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


@pytest.mark.parametrize("mode", list(MODES))
async def test_a_public_policy_lets_no_tool_reach_this_machine_on_any_port(mode: str, listener: socket.socket) -> None:
    async with sandboxed(mode, Egress("public")) as sandbox:
        outcome = await sandbox.run(job(ATTACKS, port=port_of(listener), hosts=[*SPELLINGS, *own_addresses()]))
        private = await sandbox.run(job(DIAL, host="10.0.0.1", port=80))
        metadata = await sandbox.run(job(DIAL, host="169.254.169.254", port=80))
    assert reached(outcome) == []
    assert REFUSED in str(private.content)
    assert REFUSED in str(metadata.content)


@pytest.mark.parametrize("address", ["168.63.129.16", "::ffff:168.63.129.16", "192.0.0.192", "3fff::1", "10.0.0.1"])
async def test_a_public_policy_refuses_services_of_clouds_that_look_public(address: str) -> None:
    judge, asked = Judge(EgressConfig()), ipaddress.ip_address(address)
    assert not await judge.allows((Egress("public"),), asked, 80)
    assert await judge.allows((Egress("all"),), asked, 80)
    assert await judge.allows((Egress("public"),), ipaddress.ip_address("8.8.8.8"), 80)


@pytest.mark.parametrize("mode", list(MODES))
async def test_an_allow_list_allows_exactly_its_entries(mode: str, listener: socket.socket) -> None:
    port = port_of(listener)
    async with sandboxed(mode, Egress("allow-list", entries(f"127.0.0.1:{port}"))) as sandbox:
        greeting = asyncio.create_task(accept_and_greet(listener))
        allowed = await sandbox.run(job(DIAL, port=port))
        await greeting
        other_port = await sandbox.run(job(DIAL, port=port + 1 if port < 65_535 else 1))
        other_host = await sandbox.run(job(DIAL, port=port, host="127.0.0.2"))
    assert allowed.content == "hello"
    assert REFUSED in str(other_port.content)
    assert REFUSED in str(other_host.content)


async def test_a_name_of_the_allow_list_allows_what_it_points_to(listener: socket.socket) -> None:
    port = port_of(listener)
    async with sandboxed("namespaces", Egress("allow-list", entries(f"localhost:{port}"))) as sandbox:
        greeting = asyncio.create_task(accept_and_greet(listener))
        assert (await sandbox.run(job(DIAL, port=port))).content == "hello"
        await greeting


@pytest.mark.parametrize("mode", list(MODES))
async def test_a_tools_own_policy_narrows_its_call_and_no_other(mode: str, listener: socket.socket) -> None:
    port = port_of(listener)
    async with sandboxed(mode, LOOPBACK) as sandbox:
        narrowed = await sandbox.run(job(ATTACKS, Egress("none"), port=port, hosts=SPELLINGS))
        assert reached(narrowed) == []
        greeting = asyncio.create_task(accept_and_greet(listener))
        assert (await sandbox.run(job(DIAL, port=port))).content == "hello"
        await greeting


@pytest.mark.parametrize("wanted", [Egress("all"), LOOPBACK], ids=lambda p: p.mode)
async def test_a_tools_own_policy_cannot_widen_the_servers(wanted: Egress, listener: socket.socket) -> None:
    async with sandboxed("namespaces", Egress("public")) as sandbox:
        outcome = await sandbox.run(job(ATTACKS, wanted, port=port_of(listener), hosts=SPELLINGS))
    assert reached(outcome) == []


FETCH = """
import urllib.request
def fetch(url: str) -> str:
    return urllib.request.urlopen(url, timeout=20).read(5).decode()
"""
AIO = """
import asyncio
async def talk(port: int) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.open_connection("127.0.0.1", port))
"""
READ = """
def look(path: str) -> str:
    return open(path).read()
"""
SETTING = "the operator sets it with HOLDFAST_TOOL_EGRESS)"


async def test_a_refused_tool_returns_the_policy_and_who_can_change_it(listener: socket.socket) -> None:
    port = port_of(listener)
    async with sandboxed("namespaces", Egress("public")) as sandbox:
        plain = await sandbox.run(job(DIAL, port=port))
        wrapped = await sandbox.run(job(FETCH, url=f"http://127.0.0.1:{port}/"))
        grouped = await sandbox.run(job(AIO, port=port))
        narrowed = await sandbox.run(job(FETCH, LOOPBACK, url="http://10.0.0.1/"))
    for outcome in (plain, wrapped, grouped, narrowed):
        assert outcome.status == "error"
        assert "the egress policy `public` of this server refuses" in str(outcome.content)
        assert SETTING in str(outcome.content)
    assert REFUSED in str(plain.content)
    assert "narrow" not in str(plain.content)
    assert "the tags of this tool narrow it to `allow-list`" in str(narrowed.content)


@pytest.mark.parametrize("policy", [Egress("none"), Egress("allow-list", entries("10.0.0.0/8"))], ids=lambda p: p.mode)
async def test_a_name_that_may_not_be_looked_up_returns_the_policy(policy: Egress) -> None:
    async with sandboxed("namespaces", policy) as sandbox:
        outcome = await sandbox.run(job(FETCH, url="http://api.example.com/"))
    assert f"the egress policy `{policy.mode}` of this server allows" in str(outcome.content)


async def test_the_policy_is_not_named_for_other_refusals() -> None:
    async with sandboxed("namespaces", Egress("public")) as sandbox:
        file = await sandbox.run(job(READ, path="/etc/shadow"))
        name = await sandbox.run(job(FETCH, url="http://no-such-name.invalid/"))
    assert REFUSED in str(file.content)
    assert name.status == "error"
    assert "egress" not in str(file.content)
    assert "egress" not in str(name.content)


NARROW = """
import ctypes, errno, json, socket
def narrow(policies: list[dict], port: int = 9) -> list[str]:
    libc, told = ctypes.CDLL(None, use_errno=True), []
    for policy in policies:
        text = json.dumps(policy).encode()
        code = libc.connect(-0x4846, text, len(text))
        told.append(errno.errorcode[ctypes.get_errno()] if code else "narrowed")
    with socket.socket() as line:
        line.settimeout(20)
        told.append(errno.errorcode[line.connect_ex(("127.0.0.1", port))])
    return told
"""


@pytest.mark.parametrize("mode", list(MODES))
async def test_a_tool_cannot_fill_the_guards_memory_with_policies(mode: str) -> None:
    """The guard is outside the limits of a call."""
    listed = {"mode": "allow-list", "allow": [{"host": f"h{number}.example"} for number in range(201)]}
    none = {"mode": "none"}
    async with sandboxed(mode, LOOPBACK) as sandbox:
        long = await sandbox.run(job(NARROW, policies=[listed]))
        again = await sandbox.run(job(NARROW, policies=[none, none]))
        tagged = await sandbox.run(job(NARROW, Egress("none"), policies=[none]))
    assert long.content == '["EBADF","ECONNREFUSED"]'
    assert again.content == '["narrowed","EBADF","EACCES"]'
    assert tagged.content == '["EBADF","EACCES"]'


LARGE = """
import errno, socket, threading
def large(size: int, kind: str) -> str:
    ours, theirs = socket.socketpair(socket.AF_UNIX, getattr(socket, kind))
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * size)
    try:
        return str(ours.sendmsg([bytes(size)]))
    except OSError as problem:
        return errno.errorcode[problem.errno]
"""


async def test_the_guard_copies_a_bounded_part_of_each_message() -> None:
    """Its memory is outside the limits of a call, and a call may have hundreds of messages on their way."""
    async with sandboxed("namespaces", Egress("public")) as sandbox:
        stream = await sandbox.run(job(LARGE, size=150_000, kind="SOCK_STREAM"))
        datagram = await sandbox.run(job(LARGE, size=150_000, kind="SOCK_DGRAM"))
        too_large = await sandbox.run(job(LARGE, size=300_000, kind="SOCK_DGRAM"))
    assert stream.content == str(64 << 10)
    assert datagram.content == "150000"
    assert too_large.content == "EMSGSIZE"


NO_SOCKET = """
import ctypes, errno, os
def connect_file() -> list[str]:
    libc, told, address = ctypes.CDLL(None, use_errno=True), set(), bytes(16)
    with open("file", "w") as file:
        for _ in range(50):
            libc.connect(file.fileno(), address, len(address))
            told.add(errno.errorcode[ctypes.get_errno()])
    return sorted(told)
"""


async def test_a_connection_of_something_that_is_no_socket_leaves_no_file_open_in_the_guard() -> None:
    async with sandboxed("namespaces", Egress("public")) as sandbox:
        assert sandbox._connection is not None
        open_files = f"/proc/{sandbox._connection._process.pid}/fd"
        before = len(os.listdir(open_files))
        outcome = await sandbox.run(job(NO_SOCKET))
        after = len(os.listdir(open_files))
    assert outcome.content == '["ENOTSOCK"]'
    assert after < before + 25


ASYNC = """
import asyncio
async def talk(port: int) -> str:
    async def one():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.writelines([b"some ", b"words"] * 1000)
        await writer.drain()
        return (await reader.readexactly(5)).decode()
    return ",".join(await asyncio.gather(*(one() for _ in range(3))))
"""


@pytest.mark.parametrize("mode", list(MODES))
async def test_asyncio_in_a_tool_reaches_what_is_allowed(mode: str) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(10_000)
        writer.write(b"hello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server, sandboxed(mode, LOOPBACK) as sandbox:
        outcome = await sandbox.run(job(ASYNC, port=server.sockets[0].getsockname()[1]))
    assert outcome.content == "hello,hello,hello"


DATAGRAMS = """
import socket
def shout(port: int, hosts: list) -> list:
    found = []
    for host in hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for way in ("sendto", "sendmsg", "connect"):
            with socket.socket(family, socket.SOCK_DGRAM) as line:
                try:
                    if way == "sendto":
                        line.sendto(b"hello", (host, port))
                    elif way == "sendmsg":
                        line.sendmsg([b"hel", b"lo"], [], 0, (host, port))
                    else:
                        line.connect((host, port)); line.send(b"hello")
                    found.append(way)
                except OSError as problem:
                    found.append(problem.errno)
    return found
"""


async def test_datagrams_are_judged_like_connections() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.bind(("127.0.0.1", 0))
        port = port_of(ear)
        async with sandboxed("namespaces", Egress("public")) as sandbox:
            refused = await sandbox.run(job(DATAGRAMS, port=port, hosts=["127.0.0.1", "::ffff:127.0.0.1", "10.0.0.1"]))
        async with sandboxed("namespaces", LOOPBACK) as sandbox:
            allowed = await sandbox.run(job(DATAGRAMS, port=port, hosts=["127.0.0.1"]))
        assert refused.content == "[13,13,13,13,13,13,13,13,13]"
        assert allowed.content == '["sendto","sendmsg","connect"]'
        assert [ear.recv(10) for _ in range(3)] == [b"hello"] * 3


SOCKETS = """
import socket
def kinds() -> list:
    found = []
    for family, kind, proto in [(16, 3, 0), (17, 3, 0), (40, 1, 0), (2, 3, 1), (2, 2, 1), (2, 1, 262), (38, 5, 0)]:
        try:
            socket.socket(family, kind, proto).close()
            found.append("made")
        except OSError as problem:
            found.append("refused")
    return found
"""


@pytest.mark.parametrize("mode", list(MODES))
async def test_no_tool_makes_a_netlink_packet_vsock_raw_ping_or_multipath_socket(mode: str) -> None:
    async with sandboxed(mode, Egress("all")) as sandbox:
        assert set(str((await sandbox.run(job(SOCKETS))).content).strip("[]").split(",")) == {'"refused"'}


LOCAL = """
import multiprocessing, socket, os
def square(n):
    return n * n
def local(outside: str) -> list:
    server = socket.socket(socket.AF_UNIX); server.bind("here.sock"); server.listen()
    client = socket.socket(socket.AF_UNIX); client.connect(os.path.abspath("here.sock"))
    taken, _ = server.accept()
    read, write = os.pipe()
    socket.send_fds(client, [b"x"], [write])
    _, fds, _, _ = socket.recv_fds(taken, 1, 1)
    os.write(fds[0], b"passed")
    found = [os.read(read, 10).decode()]
    with multiprocessing.Manager() as manager:
        shared = manager.list([1, 2])
        found.append(list(shared))
    try:
        socket.socket(socket.AF_UNIX).connect(outside)
        found.append("reached")
    except OSError as problem:
        found.append(type(problem).__name__)
    return found
"""


@pytest.mark.parametrize("mode", list(MODES))
async def test_unix_sockets_work_inside_a_call_and_lead_nowhere_else(
    mode: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = str(tmp_path_factory.mktemp("s") / "s")
    with socket.socket(socket.AF_UNIX) as outside:
        outside.bind(path)
        outside.listen()
        async with sandboxed(mode, Egress("public")) as sandbox:
            outcome = await sandbox.run(job(LOCAL, outside=path))
    assert outcome.content in (
        '["passed",[1,2],"PermissionError"]',
        '["passed",[1,2],"FileNotFoundError"]',
    ), outcome


async def test_a_slow_connection_holds_up_no_other_call_and_dies_with_its_own() -> None:
    """A listener whose queue is full answers no further connection."""
    with socket.socket() as full, socket.create_server(("127.0.0.1", 0)) as free:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for line in waiting:
            line.setblocking(False)
            line.connect_ex(full.getsockname())
        slow = "import socket\n\ndef slow(port: int):\n    socket.socket().connect(('127.0.0.1', port))\n"
        async with sandboxed("namespaces", LOOPBACK) as sandbox:
            stuck = asyncio.create_task(sandbox.run(job(slow, port=port_of(full))))
            for _ in range(3):
                greeting = asyncio.create_task(accept_and_greet(free))
                assert (await sandbox.run(job(DIAL, port=port_of(free)))).content == "hello"
                await greeting
            assert not stuck.done()
            stuck.cancel()
            async with asyncio.timeout(30):
                with pytest.raises(asyncio.CancelledError):
                    await stuck
        for line in waiting:
            line.close()


async def test_a_tool_cannot_listen_where_clients_look_for_the_server() -> None:
    source = """
import socket
def pose(port: int) -> str:
    with socket.socket(socket.AF_INET6) as line:
        line.bind(("::1", port))
        line.listen()
    return "posed"
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with sandboxed("namespaces", Egress("all"), port_of(server)) as sandbox:
            outcome = await sandbox.run(job(source, port=port_of(server)))
    assert REFUSED in str(outcome.content)


@pytest.mark.parametrize("mode", list(MODES))
async def test_without_the_guard_landlock_keeps_tools_from_the_servers_port(
    mode: str, listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    port = port_of(listener)
    async with sandboxed(mode, Egress("public"), port, egress=False) as sandbox:
        outcome = await sandbox.run(job(ATTACKS, port=port, hosts=SPELLINGS))
        narrowed = await sandbox.run(job(DIAL, Egress("public"), port=port))
        cut_off = await sandbox.run(job(DIAL, Egress("none"), port=1))
        assert "NOT ENFORCED" in (await sandbox.status()).egress
    assert reached(outcome) == []
    assert "NOT ENFORCED" in caplog.text
    assert "cannot be enforced here" in str(narrowed.content)
    assert REFUSED in str(cut_off.content)


async def test_where_nothing_can_be_enforced_no_tool_runs_unless_the_policy_is_all(listener: socket.socket) -> None:
    port = port_of(listener)
    for policy, runs in ((Egress("public"), False), (LOOPBACK, False), (Egress("all"), True)):
        async with sandboxed("process", policy, port, egress=False, landlock=False) as sandbox:
            outcome = await sandbox.run(job("\ndef f() -> str:\n    return 'ran'\n"))
            assert (outcome.content == "ran") is runs
            assert runs or "HOLDFAST_TOOL_EGRESS=all" in str(outcome.content)


async def test_the_policy_none_stands_without_a_guard(listener: socket.socket) -> None:
    async with sandboxed("process", Egress("none"), egress=False, landlock=False) as sandbox:
        outcome = await sandbox.run(job(ATTACKS, port=port_of(listener), hosts=["127.0.0.1", "::1"]))
        assert "NOT ENFORCED" not in (await sandbox.status()).egress
    assert reached(outcome) == []


async def test_the_policy_all_reaches_loopback_and_is_logged_loudly(
    listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    async with sandboxed("namespaces", Egress("all")) as sandbox:
        greeting = asyncio.create_task(accept_and_greet(listener))
        assert (await sandbox.run(job(DIAL, port=port_of(listener)))).content == "hello"
        await greeting
    assert "TOOLS MAY CONNECT TO EVERYTHING" in caplog.text
