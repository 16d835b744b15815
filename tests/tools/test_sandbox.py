"""Custom tools in the fork server, with every layer of isolation, and without those that some machines lack."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from holdfast.core.egress_policy import Egress, entries
from holdfast.core.messages import Image, Text
from holdfast.tools.base import Job, Outcome
from holdfast.tools.sandbox.contract import EgressConfig, IsolationLayers, Limits
from holdfast.tools.sandbox.fork_server_client import ForkServerSandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRETS = {
    "OPENAI_API_KEY": "sk-provider-secret",
    "HOLDFAST_DATABASE_URL": "postgresql://user:database-secret@host/db",
    "HOLDFAST_SERVER_PASSWORD": "password-secret",
}
MODES = {
    "bubblewrap": IsolationLayers(),
    "namespaces": IsolationLayers(bubblewrap=False),
    "process": IsolationLayers(bubblewrap=False, namespaces=False),
}

# These tests watch a tool through a connection to the machine it runs on.
LOOPBACK = EgressConfig(policy=Egress("allow-list", entries("127.0.0.1")))

# Runs in the tool: a connection that stays open for as long as any process of the call lives.
CONNECT = """
import socket
def connect(port):
    line = socket.create_connection(("127.0.0.1", port))
    line.set_inheritable(True)
    line.sendall(b"ready")
    return line
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(MODES))
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[ForkServerSandbox]:
    if request.param == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    os.environ.update(SECRETS)
    made = ForkServerSandbox(egress=LOOPBACK, layers=MODES[request.param], limits=Limits(memory_bytes=1 << 30))
    try:
        active = (await made.warm()).split("+")
        wanted = ["landlock", "seccomp", *(["namespaces"] if request.param != "process" else [])]
        if missing := [layer for layer in wanted if layer not in active]:
            pytest.skip(f"this machine cannot build: {', '.join(missing)}")
        yield made
    finally:
        await made.aclose()
        for name in SECRETS:
            del os.environ[name]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


def job(source: str, **arguments: Any) -> Job:
    name = source.rpartition("def ")[2].partition("(")[0]
    return Job(call_id="call-1", tool_name=name, source_code=source, arguments=arguments, timeout_s=30)


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


async def arrival(listener: socket.socket) -> socket.socket:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        line, _ = await loop.sock_accept(listener)
        line.setblocking(False)
        assert await loop.sock_recv(line, 5) == b"ready"
    return line


def assert_dead(line: socket.socket) -> None:
    """End of file at once: no process holds the other end any more."""
    with line, contextlib.suppress(ConnectionResetError):
        assert line.recv(1) == b""


def texts(outcome: Outcome) -> str:
    assert isinstance(outcome.content, str)
    return outcome.content


async def test_a_tool_returns_its_value_and_says_which_layers_were_in_force(sandbox: ForkServerSandbox) -> None:
    outcome = await sandbox.run(job("def add(a: int, b: int) -> int:\n    return a + b\n", a=1, b="2"))
    assert (outcome.status, outcome.content, outcome.stdout, outcome.stderr) == ("success", "3", (), ())
    shell = (outcome.isolation or "").split("+")[0]
    assert shell == ("bubblewrap" if sandbox._layers.bubblewrap else "process")
    assert ("namespaces" in (outcome.isolation or "")) == sandbox._layers.namespaces


async def test_arguments_are_data_even_when_they_look_like_code(sandbox: ForkServerSandbox) -> None:
    nasty = "\"); raise SystemExit(\"injected\")  # \n''' {x} \\ \x00 é"
    outcome = await sandbox.run(
        job("def echo(items: list, text: str):\n    return [items, text]\n", items=nasty, text=nasty)
    )
    assert outcome.status == "success"
    assert texts(outcome).count("injected") == 2


async def test_arguments_are_fitted_to_models_enums_and_dataclasses(sandbox: ForkServerSandbox) -> None:
    source = """
from dataclasses import dataclass
from enum import Enum
from pydantic import BaseModel

class Colour(Enum):
    RED = "red"

class Person(BaseModel):
    name: str

@dataclass
class Point:
    x: int

def fit(person: Person, people: list[Person], colour: Colour, point: Point, maybe: Optional[int] = None) -> str:
    return f"{person.name} {people[0].name} {colour.name} {point.x} {maybe!r}"
"""
    outcome = await sandbox.run(
        job(source, person={"name": "Ada"}, people=[{"name": "Bob"}], colour="red", point={"x": 3}, maybe="7")
    )
    assert outcome.content == "Ada Bob RED 3 7"


async def test_an_argument_that_does_not_fit_arrives_as_it_was_sent(sandbox: ForkServerSandbox) -> None:
    outcome = await sandbox.run(job("def show(n: int) -> str:\n    return repr(n)\n", n="many"))
    assert outcome.content == "'many'"


async def test_a_parameter_that_may_be_none_may_be_left_out(sandbox: ForkServerSandbox) -> None:
    outcome = await sandbox.run(
        job("def show(n: Optional[int], m: int | None) -> str:\n    return repr((n, m))\n", m=1)
    )
    assert outcome.content == "(None, 1)"


async def test_missing_and_unknown_arguments_are_named(sandbox: ForkServerSandbox) -> None:
    outcome = await sandbox.run(job("def f(a: int, b: int = 1):\n    return a\n", c=3))
    assert outcome.status == "error"
    assert "missing arguments: a" in texts(outcome)
    assert "unknown arguments: c" in texts(outcome)


async def test_async_tools_are_awaited(sandbox: ForkServerSandbox) -> None:
    source = "import asyncio\nasync def later() -> str:\n    await asyncio.sleep(0)\n    return 'awaited'\n"
    assert (await sandbox.run(job(source))).content == "awaited"


async def test_what_a_tool_mentions_is_imported_before_its_process_is_forked(sandbox: ForkServerSandbox) -> None:
    """Not for the first calls, whose processes were there already."""
    source = "def probe():\n    # pydantic\n    import sys\n    return 'pydantic.main' in sys.modules\n"
    seen = [(await sandbox.run(job(source))).content for _ in range(20)]
    assert seen[-1] == "True", seen


async def test_each_call_has_random_numbers_of_its_own(sandbox: ForkServerSandbox) -> None:
    source = "import random\ndef roll():\n    return random.random()\n"
    rolled = [(await sandbox.run(job(source))).content for _ in range(12)]
    assert len(set(rolled)) == 12


async def test_names_of_typing_need_no_import(sandbox: ForkServerSandbox) -> None:
    source = "def total(numbers: 'List[int]', more: Optional[int] = None) -> 'Any':\n    return sum(numbers)\n"
    assert (await sandbox.run(job(source, numbers=["1", "2"]))).content == "3"


async def test_agent_state_agent_id_and_environment_reach_the_tool(sandbox: ForkServerSandbox) -> None:
    source = """
import os
def who(agent_state, agent_id: str) -> list:
    names = ("HOLDFAST_CALL_ID", "LETTA_AGENT_ID", "LETTA_TOOL_ID", "MY_SECRET", "TERM")
    return [agent_state.id, agent_state.name, agent_id, *(os.environ[name] for name in names), client]
"""
    asked = Job(
        call_id="call-9",
        tool_name="who",
        source_code=source,
        arguments={},
        agent_id="agent-1",
        agent_name="Ada",
        tool_id="tool-1",
        environment={"MY_SECRET": "s3cret"},
    )
    outcome = await sandbox.run(asked)
    assert outcome.content == '["agent-1","Ada","agent-1","call-9","agent-1","tool-1","s3cret","dumb",null]'


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("None", "None"),
        ("True", "True"),
        ("{'a': [1, 'é']}", '{"a":[1,"é"]}'),
        ("[Point(x=1)]", '[{"x":1}]'),
        ("Point(x=1)", '{"x":1}'),
        ("{'when': datetime.date(2026, 1, 2), 'odd': object}", '{"when":"2026-01-02","odd":"<class \'object\'>"}'),
        ("(1, 2)", "(1, 2)"),
        (r"'a\ud800b'", "a\ufffdb"),
        (r"'\ud83d\ude00'", "😀"),
        (r"{'a': '\ud800'}", r'{"a":"\ud800"}'),
        (r"('\ud800',)", r"('\ud800',)"),
        (r"type('T', (), {'__str__': lambda self: '\ud800'})()", "\ufffd"),
    ],
)
async def test_return_values_become_text(sandbox: ForkServerSandbox, expression: str, shown: str) -> None:
    head = "import datetime\nfrom pydantic import BaseModel\nclass Point(BaseModel):\n    x: int\n"
    assert (await sandbox.run(job(f"{head}def f():\n    return {expression}\n"))).content == shown


async def test_half_a_character_in_a_part_is_marked(sandbox: ForkServerSandbox) -> None:
    source = "def f():\n    return [{'type': 'text', 'text': 'a\\ud800b'}]\n"
    assert (await sandbox.run(job(source))).content == (Text("a\ufffdb"),)


async def test_images_in_a_return_become_parts(sandbox: ForkServerSandbox) -> None:
    data = base64.b64encode(b"\x89PNG").decode()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    outcome = await sandbox.run(
        job("def f(parts: list):\n    return parts\n", parts=[{"type": "text", "text": "see"}, image])
    )
    assert outcome.content == (Text("see"), Image("image/png", data))
    single = await sandbox.run(job("def f(part: dict):\n    return part\n", part=image))
    assert single.content == (Image("image/png", data),)


async def test_an_image_that_no_vendor_could_read_is_shown_as_text(sandbox: ForkServerSandbox) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "not base64!"}}
    outcome = await sandbox.run(job("def f(part: dict):\n    return part\n", part=image))
    assert outcome.status == "success"
    assert "not base64!" in texts(outcome)


async def test_an_exception_becomes_an_error_with_the_tools_own_traceback(sandbox: ForkServerSandbox) -> None:
    source = "def inner():\n    return {}['missing']\n\ndef outer():\n    print('before')\n    return inner()\n"
    outcome = await sandbox.run(job(source))
    assert outcome.status == "error"
    assert outcome.content == "Error executing function outer: KeyError: 'missing'"
    assert outcome.stdout == ("before\n",)
    trace = (outcome.stderr or ("",))[0]
    assert "return {}['missing']" in trace
    assert "holdfast" not in trace


async def test_a_long_error_is_cut_at_a_thousand_characters(sandbox: ForkServerSandbox) -> None:
    outcome = await sandbox.run(job("def f():\n    raise ValueError('x' * 5000)\n"))
    assert len(texts(outcome)) == 1000


@pytest.mark.parametrize(
    ("source", "fragment"),
    [
        ("def f(:\n    pass\n", "SyntaxError"),
        ("import sys\ndef f():\n    sys.exit(3)\n", "SystemExit: 3"),
        ("import os\ndef f():\n    os._exit(3)\n", "exit code 3"),
        ("import ctypes\ndef f():\n    ctypes.string_at(0)\n", "SIGSEGV"),
        ("def f():\n    return len(bytearray(3 << 30))\n", "MemoryError"),
        ("def f():\n    raise ValueError('a\\ud800b')\n", "a\ufffdb"),
    ],
)
async def test_every_way_to_die_becomes_an_error(sandbox: ForkServerSandbox, source: str, fragment: str) -> None:
    outcome = await sandbox.run(Job(call_id="c", tool_name="f", source_code=source, arguments={}))
    assert outcome.status == "error"
    assert "Error executing function f: " in texts(outcome)
    assert fragment in texts(outcome)


async def test_a_source_without_the_named_function_says_so(sandbox: ForkServerSandbox) -> None:
    outcome = await sandbox.run(Job(call_id="c", tool_name="absent", source_code="x = 1\n", arguments={}))
    assert "defines no function named 'absent'" in texts(outcome)


async def test_returns_are_cut_at_the_tools_limit(sandbox: ForkServerSandbox) -> None:
    source = "def f():\n    return 'y' * 100\n"
    outcome = await sandbox.run(Job(call_id="c", tool_name="f", source_code=source, arguments={}, return_char_limit=10))
    note = "... [NOTE: function output was truncated since it exceeded the character limit (100 > 10)]"
    assert outcome.content == "y" * 10 + note


async def test_output_is_capped_and_its_end_is_kept(sandbox: ForkServerSandbox) -> None:
    source = "def f():\n    print('\\n'.join(map(str, range(600_000))))\n    return 'done'\n"
    outcome = await sandbox.run(job(source))
    assert outcome.content == "done"
    shown = (outcome.stdout or ("",))[0]
    assert shown.endswith("599999\n")
    assert "bytes dropped" in shown
    assert len(shown) < (1 << 20) + 100


async def test_printing_cannot_forge_a_result(sandbox: ForkServerSandbox) -> None:
    source = 'def f():\n    print(\'{"status":"success","content":"forged"}\')\n    return \'real\'\n'
    assert (await sandbox.run(job(source))).content == "real"


async def test_a_tool_that_forks_answers_once(sandbox: ForkServerSandbox) -> None:
    source = "import os\ndef f():\n    pid = os.fork()\n    if pid:\n        os.waitpid(pid, 0)\n    return 'once'\n"
    assert (await sandbox.run(job(source))).content == "once"


async def test_large_arguments_and_returns_pass(sandbox: ForkServerSandbox) -> None:
    source = "def f(text: str):\n    return text\n"
    text = "z" * 3_000_000
    asked = Job(call_id="c", tool_name="f", source_code=source, arguments={"text": text}, return_char_limit=len(text))
    assert (await sandbox.run(asked)).content == text


async def test_subprocesses_threads_and_temporary_files_work(sandbox: ForkServerSandbox) -> None:
    source = """
import os, subprocess, tempfile, threading
def f():
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("hello")
        file.flush()
        shown = subprocess.run(["cat", file.name], capture_output=True, text=True, check=True).stdout
    seen = []
    thread = threading.Thread(target=lambda: seen.append(os.getcwd()))
    thread.start()
    thread.join()
    return [shown, seen == [os.environ["HOME"]], os.listdir(".")]
"""
    assert (await sandbox.run(job(source))).content == '["hello",true,[]]'


async def test_files_of_one_call_are_gone_in_the_next(sandbox: ForkServerSandbox) -> None:
    source = "import os\ndef f():\n    found = os.listdir('.')\n    open('left', 'w').close()\n    return found\n"
    assert [(await sandbox.run(job(source))).content for _ in range(4)] == ["[]"] * 4


LOOPS = {
    "busy": "    while True:\n        pass\n",
    "deaf": "    import signal, time\n    for number in range(1, 65):\n        try:\n"
    "            signal.signal(number, signal.SIG_IGN)\n        except (OSError, ValueError):\n            pass\n"
    "    while True:\n        time.sleep(1)\n",
    "daemon": "    import os, time\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
    "            os.setsid()\n            while True:\n                time.sleep(1)\n        os._exit(0)\n"
    "    while True:\n        time.sleep(1)\n",
}


@pytest.mark.parametrize("loop", list(LOOPS))
async def test_a_cancelled_tool_is_dead_before_the_cancellation_leaves(
    sandbox: ForkServerSandbox, listener: socket.socket, loop: str
) -> None:
    source = f"{CONNECT}\ndef spin(port: int):\n    line = connect(port)\n{LOOPS[loop]}"
    running = asyncio.create_task(sandbox.run(job(source, port=port_of(listener))))
    line = await arrival(listener)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert_dead(line)


async def test_a_second_cancellation_does_not_let_the_first_escape_early(
    sandbox: ForkServerSandbox, listener: socket.socket
) -> None:
    source = f"{CONNECT}\ndef spin(port: int):\n    line = connect(port)\n{LOOPS['busy']}"
    running = asyncio.create_task(sandbox.run(job(source, port=port_of(listener))))
    line = await arrival(listener)
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert_dead(line)


@pytest.mark.slow
@pytest.mark.parametrize("loop", list(LOOPS))
async def test_a_tool_that_overruns_its_time_is_dead_when_the_error_comes(
    sandbox: ForkServerSandbox, listener: socket.socket, loop: str
) -> None:
    source = f"{CONNECT}\ndef spin(port: int):\n    line = connect(port)\n    print('begun')\n{LOOPS[loop]}"
    for limit_s in (0.5, 5.5, 25.5):  # longer only where a busy machine did not let it begin in time
        asked = msgspec.structs.replace(job(source, port=port_of(listener)), timeout_s=limit_s)
        outcome = await sandbox.run(asked)
        assert outcome.status == "error"
        assert "TimeoutError" in texts(outcome)
        assert f"{limit_s} seconds" in texts(outcome)
        if outcome.stdout:
            break
    assert outcome.stdout == ("begun\n",)
    assert_dead(await arrival(listener))


async def leave(sandbox: ForkServerSandbox, listener: socket.socket, behind: str) -> socket.socket:
    """A tool returns and leaves something behind, and an open connection."""
    source = f"""{CONNECT}
{behind}
def leave(port: int):
    global line
    line = connect(port)
    go_on()
    return "left"
"""
    assert (await sandbox.run(job(source, port=port_of(listener)))).content == "left"
    return await arrival(listener)


A_PROCESS = """
import os, time
def go_on():
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        while True:
            time.sleep(1)
"""
A_THREAD = """
import threading, time
def go_on():
    threading.Thread(target=lambda: [time.sleep(0.001) for _ in iter(int, 1)], daemon=True).start()
"""
NOTHING = """
def go_on():
    pass
"""


@pytest.mark.parametrize("behind", [A_PROCESS, A_THREAD], ids=["process", "thread"])
async def test_what_a_tool_leaves_running_dies_when_it_returns(
    sandbox: ForkServerSandbox, listener: socket.socket, behind: str
) -> None:
    assert_dead(await leave(sandbox, listener, behind))


async def test_the_sandbox_of_a_call_that_has_answered_is_removed(
    sandbox: ForkServerSandbox, listener: socket.socket
) -> None:
    with await leave(sandbox, listener, NOTHING) as line:
        async with asyncio.timeout(60):
            assert await asyncio.get_running_loop().sock_recv(line, 1) == b""


async def test_what_speaks_for_itself_and_lives_on_is_ended(
    sandbox: ForkServerSandbox, listener: socket.socket
) -> None:
    source = f"""{CONNECT}
import os
def linger(port: int):
    line = connect(port)
    os.write(3, b'{{"status": "success", "content": "said"}}')
    os.closerange(1, 4)
    while True:
        pass
"""
    waiting = asyncio.create_task(
        sandbox.run(msgspec.structs.replace(job(source, port=port_of(listener)), timeout_s=5))
    )
    with await arrival(listener) as line:
        assert await asyncio.get_running_loop().sock_recv(line, 1) == b""
    outcome = await waiting
    assert outcome.content == "said" or "5 seconds" in texts(outcome)


async def test_server_secrets_are_nowhere_to_be_found(sandbox: ForkServerSandbox) -> None:
    source = """
import glob, os
def look() -> str:
    found = [repr(dict(os.environ))]
    for path in ["/proc/self/environ", *(f"/proc/{pid}/environ" for pid in range(1, 70_000))]:
        try:
            with open(path, "rb") as file:
                found.append(repr(file.read()))
        except OSError:
            pass
    return "".join(found)
"""
    # A process as the server might be: with the secrets in the environment it was started with.
    bystander = await asyncio.create_subprocess_exec("sleep", "60", env={**os.environ, **SECRETS})
    try:
        seen = texts(await sandbox.run(job(source)))
    finally:
        bystander.kill()
        await bystander.wait()
    assert "PATH" in seen
    assert not [name for name, value in SECRETS.items() if name in seen or value in seen]


async def test_the_data_directory_is_out_of_reach(sandbox: ForkServerSandbox) -> None:
    source = """
import os
def peek(path: str) -> list:
    results = []
    for attempt in (open, lambda path: open(path, "a"), lambda path: os.listdir(os.path.dirname(path))):
        try:
            results.append(repr(attempt(path)))
        except OSError as problem:
            results.append(type(problem).__name__)
    return results
"""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        database = Path(directory) / "holdfast.db"
        database.write_text("rows")
        outcome = await sandbox.run(job(source, path=str(database)))
        assert database.read_text() == "rows"
    denied = "FileNotFoundError" if sandbox._layers.bubblewrap else "PermissionError"
    read_only = "OSError" if sandbox._layers == MODES["namespaces"] else denied
    assert outcome.content == f'["{denied}","{read_only}","{denied}"]'


async def test_the_system_is_read_only(sandbox: ForkServerSandbox) -> None:
    source = """
import os
def write(paths: list) -> list:
    results = []
    for path in paths:
        try:
            open(path, "w").close()
            results.append("written")
        except OSError:
            results.append("denied")
    return results
"""
    paths = [f"{place}/planted" for place in ("/usr", "/etc", "/", "/dev", "..", str(Path(sys.executable).parent))]
    assert (await sandbox.run(job(source, paths=paths))).content == str(["denied"] * 6).replace("'", '"').replace(
        " ", ""
    )


async def test_one_call_cannot_see_the_environment_of_another(
    sandbox: ForkServerSandbox, listener: socket.socket
) -> None:
    holder = f"""{CONNECT}
import subprocess
def hold(port: int):
    line = connect(port)
    subprocess.run(["sleep", "60"])
"""
    looker = """
def look() -> list:
    found = []
    for path in ["/proc/self/environ", *(f"/proc/{pid}/environ" for pid in range(1, 70_000))]:
        try:
            with open(path, "rb") as file:
                found.append(b"THE_OTHER" in file.read())
        except OSError:
            pass
    return [len(found) > 0, any(found)]
"""
    held = Job(
        call_id="c",
        tool_name="hold",
        source_code=holder,
        arguments={"port": port_of(listener)},
        environment={"THE_OTHER": "private"},
    )
    running = asyncio.create_task(sandbox.run(held))
    with await arrival(listener):
        assert (await sandbox.run(job(looker))).content == "[true,false]"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_system_calls_that_weaken_isolation_are_refused(sandbox: ForkServerSandbox) -> None:
    source = """
import ctypes
def attempt() -> list:
    libc = ctypes.CDLL(None, use_errno=True)
    results = []
    calls = (("ptrace", (0, 0, 0, 0)), ("unshare", (0x10000000,)), ("mount", (None, b"/", None, 0, None)))
    for name, arguments in calls:
        results.append([getattr(libc, name)(*arguments), ctypes.get_errno()])
    return results
"""
    assert (await sandbox.run(job(source))).content == "[[-1,1],[-1,1],[-1,1]]"


async def test_a_killed_fork_server_costs_the_call_and_nothing_more(
    sandbox: ForkServerSandbox, listener: socket.socket
) -> None:
    source = f"{CONNECT}\ndef spin(port: int):\n    line = connect(port)\n{LOOPS['daemon']}"
    running = asyncio.create_task(sandbox.run(job(source, port=port_of(listener))))
    line = await arrival(listener)
    connection = sandbox._connection
    assert connection is not None
    os.kill(connection._process.pid, signal.SIGKILL)
    outcome = await running
    assert outcome.status == "error"
    assert "SandboxLost" in texts(outcome)
    line.setblocking(True)
    line.settimeout(30)  # the orphans die with their parent, but not in the same instant
    assert_dead(line)
    assert (await sandbox.run(job("def f():\n    return 'again'\n"))).content == "again"


async def test_fifty_calls_at_once_each_get_their_own_answer(sandbox: ForkServerSandbox) -> None:
    source = "def double(n: int) -> int:\n    print(n)\n    return 2 * n\n"
    outcomes = await asyncio.gather(*(sandbox.run(job(source, n=n)) for n in range(50)))
    assert [(outcome.content, outcome.stdout) for outcome in outcomes] == [(str(2 * n), (f"{n}\n",)) for n in range(50)]


async def test_even_a_tool_that_kills_its_reaper_leaves_nothing_behind(listener: socket.socket) -> None:
    source = f"""{CONNECT}
import os, signal, time
def rebel(port: int):
    line = connect(port)
    if os.fork() == 0:
        os.setsid()
        while True:
            time.sleep(1)
    os.kill(os.getppid(), signal.SIGKILL)
    while True:
        time.sleep(1)
"""
    bare = IsolationLayers(
        bubblewrap=False, namespaces=False, landlock=False, seccomp=False, own_users=False, egress=False
    )
    sandbox = ForkServerSandbox(egress=EgressConfig(policy=Egress("all")), layers=bare, unsafe=True)
    try:
        outcome = await sandbox.run(job(source, port=port_of(listener)))
        assert outcome.isolation == "process"
        assert "SIGKILL" in texts(outcome)
        assert_dead(await arrival(listener))
        assert (await sandbox.run(job("def f():\n    return 'unharmed'\n"))).content == "unharmed"
    finally:
        await sandbox.aclose()


async def test_no_more_calls_run_than_allowed(listener: socket.socket) -> None:
    source = f"{CONNECT}\ndef wait(port: int):\n    return connect(port).recv(1).decode()\n"
    sandbox = ForkServerSandbox(egress=LOOPBACK, concurrency=2, layers=MODES["namespaces"])
    try:
        calls = [asyncio.create_task(sandbox.run(job(source, port=port_of(listener)))) for _ in range(3)]
        first, second = await arrival(listener), await arrival(listener)
        with pytest.raises(BlockingIOError):
            listener.accept()
        first.sendall(b"1")
        third = await arrival(listener)
        second.sendall(b"2")
        third.sendall(b"3")
        assert sorted(texts(outcome) for outcome in await asyncio.gather(*calls)) == ["1", "2", "3"]
        for line in (first, second, third):
            line.close()
    finally:
        await sandbox.aclose()


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_bubblewrap_without_namespaces_of_its_own_still_contains_a_tool(listener: socket.socket) -> None:
    sandbox = ForkServerSandbox(egress=LOOPBACK, layers=IsolationLayers(namespaces=False))
    source = f"{CONNECT}\ndef spin(port: int):\n    line = connect(port)\n    open('f', 'w').close()\n{LOOPS['daemon']}"
    try:
        assert "namespaces" not in await sandbox.warm()
        running = asyncio.create_task(sandbox.run(job(source, port=port_of(listener))))
        line = await arrival(listener)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert_dead(line)
        left = await sandbox.run(job("import os\ndef f():\n    return os.listdir('.')\n"))
        assert (left.content, (left.isolation or "").split("+")[0]) == ("[]", "bubblewrap")
    finally:
        await sandbox.aclose()


async def test_without_bubblewrap_a_loud_warning_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    sandbox = ForkServerSandbox(egress=LOOPBACK, layers=MODES["namespaces"])
    try:
        assert (await sandbox.warm()).startswith("process")
        await sandbox.warm()
    finally:
        await sandbox.aclose()
    assert caplog.text.count("CUSTOM TOOLS ARE NOT FULLY ISOLATED") == 1


async def test_a_bubblewrap_that_fails_is_reported_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    sandbox = ForkServerSandbox(egress=LOOPBACK, bubblewrap="/bin/false")
    try:
        assert (await sandbox.warm()).startswith("process")
    finally:
        await sandbox.aclose()
    assert "bubblewrap does not work here" in caplog.text


async def test_a_sandbox_that_cannot_be_started_fails_calls_and_not_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    sandbox = ForkServerSandbox(egress=LOOPBACK, layers=MODES["process"])
    assert await sandbox.warm() == "none"
    assert "CUSTOM TOOLS DO NOT WORK" in caplog.text
    outcome = await sandbox.run(job("def f():\n    return 1\n"))
    assert outcome.status == "error"
    assert "No space left on device" in texts(outcome)
    await sandbox.aclose()


async def test_a_closed_sandbox_refuses_calls_and_leaves_no_files() -> None:
    sandbox = ForkServerSandbox(egress=LOOPBACK, layers=MODES["process"])
    await sandbox.warm()
    scratch = sandbox._scratch
    assert scratch is not None
    await sandbox.aclose()
    assert not scratch.path.exists()
    outcome = await sandbox.run(job("def f():\n    return 1\n"))
    assert outcome.status == "error"
    assert "shutting down" in texts(outcome)


@pytest.mark.parametrize("mode", list(MODES))
async def test_tools_die_when_the_server_is_killed(listener: socket.socket, mode: str) -> None:
    if mode == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    source = f"{CONNECT}\ndef spin(port: int):\n    line = connect(port)\n{LOOPS['daemon']}"
    server = f"""
import asyncio
from holdfast.core.egress_policy import Egress
from holdfast.tools.base import Job
from holdfast.tools.sandbox.contract import EgressConfig, IsolationLayers
from holdfast.tools.sandbox.fork_server_client import ForkServerSandbox
async def main():
    layers = IsolationLayers(bubblewrap={MODES[mode].bubblewrap}, namespaces={MODES[mode].namespaces})
    sandbox = ForkServerSandbox(layers=layers, egress=EgressConfig(policy=Egress("all")))
    arguments = {{"port": {port_of(listener)}}}
    await sandbox.run(Job(call_id="c", tool_name="spin", source_code={source!r}, arguments=arguments))
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", server, stderr=asyncio.subprocess.DEVNULL)
    line = await arrival(listener)
    process.kill()
    await process.wait()
    line.setblocking(True)
    line.settimeout(30)
    assert_dead(line)
