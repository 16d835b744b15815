"""How the fork server is started: what it may see, and the command line that makes it so."""

from __future__ import annotations

import compileall
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.errors import SandboxLost
from holdfast.tools.sandbox import hidden_paths
from holdfast.tools.sandbox.contract import CALL, CallsCgroup, EgressConfig, ForkServerConfig, IsolationLayers, Limits
from holdfast.tools.sandbox.hidden_paths import lies_in

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC_NAMES: Final = """
    alternatives ca-certificates ca-certificates.conf crypto-policies gai.conf group host.conf hosts ld.so.cache
    ld.so.conf ld.so.conf.d localtime mime.types nsswitch.conf passwd pki protocols resolv.conf services ssl timezone
"""
_ETC: Final = tuple(f"/etc/{name}" for name in _ETC_NAMES.split())
_SPARES: Final = 2
_SCRATCH: Final = "/scratch"
_INHERITED: Final = ("LANG", "LC_ALL", "TZ")
_SANDBOX: Final = Path(__file__).resolve().parent
_PACKAGE: Final = _SANDBOX.parents[1]
# Where there is no typing_extensions, msgspec takes the same names from typing. It is large, so there is none until a
# tool wants it.
LOAD: Final = """
import sys
sys.modules["typing_extensions"] = None
from holdfast.tools.sandbox.fork_server import main
del sys.modules["typing_extensions"]
"""
_ENTRY: Final = f"import sys; sys.path.append(sys.argv[1]){LOAD}main(sys.argv[2])"


def compile_modules(directory: Path = _SANDBOX) -> None:
    """The fork server can only read the package, so what it compiled would be compiled again at every start. Compiling
    also leaves it with memory that makes every call dearer (decision 33)."""
    if not sys.dont_write_bytecode:
        compileall.compile_dir(directory, maxlevels=0, quiet=2)  # which is silent where nothing can be written


def configure(
    limits: Limits,
    layers: IsolationLayers,
    environment: Mapping[str, str],
    scratch: Path | None,
    hidden: Iterable[Path],
    egress: EgressConfig,
    cgroup: CallsCgroup | None = None,
) -> ForkServerConfig:
    """Without a scratch directory: for bubblewrap, which has one of its own."""
    kept = {name: environment[name] for name in _INHERITED if name in environment}
    readable = (*_SYSTEM, *_ETC, *_interpreter_paths())
    needed = readable if scratch is None else (*readable, str(scratch))
    return ForkServerConfig(
        limits=limits,
        layers=layers,
        readable=readable,
        hidden=hidden_paths.resolve(hidden, needed),
        scratch=_SCRATCH if scratch is None else str(scratch),
        environment={"LANG": "C.UTF-8", **kept, "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"},
        spares=_SPARES,
        shell="bubblewrap" if scratch is None else "process",
        egress=egress,
        cgroup=cgroup,
    )


def python_command(config: ForkServerConfig) -> list[str]:
    return [sys.executable, "-I", "-c", _ENTRY, str(_PACKAGE.parent), msgspec.json.encode(config).decode()]


def bubblewrap_command(bwrap: str, config: ForkServerConfig) -> list[str]:
    problem = hidden_paths.too_full(hidden_paths.seen_at(config.hidden, config.readable))
    if problem:
        raise SandboxLost(f"custom tools are refused on this server: {problem}")
    isolated = "--unshare-user --unshare-ipc --unshare-pid --unshare-uts --die-with-parent --new-session --clearenv"
    command = [bwrap, *isolated.split(), "--cap-drop", "ALL"]
    if config.cgroup is None:  # from a cgroup namespace of its own the fork server could not put calls into theirs
        command += ["--unshare-cgroup-try"]
    if os.geteuid() == 0:
        # To lift what bubblewrap lays over /proc, and to map uid 0 further in. They hold only inside bubblewrap's own
        # namespaces and are given up before any tool runs.
        command += ["--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETFCAP"]
    call_directory = f"{config.scratch}/{CALL}"
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", config.scratch, "--dir", call_directory]
    for path in config.readable:
        command += _shown(path)
    seen = hidden_paths.seen_at(config.hidden, config.readable)
    for directory in hidden_paths.mixed(seen):
        command += _emptied(directory, seen)
    for path in seen:
        command += ["--tmpfs", path, "--remount-ro", path] if os.path.isdir(path) else []
    if not any(lies_in(path, "/tmp") for path in config.readable):  # unless part of the interpreter lives there
        command += ["--symlink", call_directory, "/tmp"]
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
    for name, value in config.environment.items():
        command += ["--setenv", name, value]
    return [*command, "--", *python_command(config)]


def _shown(path: str) -> list[str]:
    if not os.path.exists(path):
        return []
    if path in _SYSTEM and os.path.islink(path):  # /bin → usr/bin and the like
        return ["--symlink", os.readlink(path), path]
    return ["--ro-bind", os.path.realpath(path), path]


def _emptied(directory: str, hidden: Iterable[str]) -> list[str]:
    """Only what may be seen is in it, and nothing that is made in it later."""
    options = ["--tmpfs", directory]
    for name in hidden_paths.kept_in(directory, hidden):
        path = os.path.join(directory, name)
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        else:
            options += ["--ro-bind-try", path, path]
    return [*options, "--remount-ro", directory]


def _interpreter_paths() -> tuple[str, ...]:
    """The interpreter, the virtual environment and this package, but for what lies in the system directories."""
    prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, str(_PACKAGE))
    kept: list[str] = []
    for path in sorted({os.path.abspath(path) for path in prefixes}, key=len):
        if not any(lies_in(path, other) for other in (*_SYSTEM, *kept)):
            kept.append(path)
    return tuple(kept)
