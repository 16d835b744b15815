"""Landlock: a tool reads what it is granted and writes only to its scratch directory, whatever its user id may do."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from typing import Final

from holdfast.tools.sandbox import linux

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_RULE_PATH_BENEATH, _RULE_NET_PORT = 1, 2
_BIND_TCP, _CONNECT_TCP = 1, 2
NETWORK_ABI: Final = 4  # the first that knows ports
_VERSION_FLAG: Final = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
SCOPES_SINCE: Final = 6


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _NetPort(ctypes.Structure):
    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


def version() -> int:
    """0 when the kernel has none."""
    try:
        return linux.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def open_paths(paths: Iterable[str]) -> list[int]:
    """Handles for rules; paths that do not exist are left out."""
    handles: list[int] = []
    for path in paths:
        try:
            handles.append(os.open(path, os.O_PATH | os.O_CLOEXEC))
        except OSError:  # a distribution without this path loses nothing
            continue
    return handles


def restrict(abi: int, readable: Iterable[int], writable: Iterable[int]) -> None:
    """Applies to this process and all that it starts, and cannot be undone. Needs no_new_privs."""
    rules = ruleset(abi, readable, writable)
    enforce(rules)
    os.close(rules)


def ruleset(abi: int, readable: Iterable[int], writable: Iterable[int]) -> int:
    """A handle, which any number of processes may enforce on themselves."""
    handled = _handled(abi)
    # The kernel takes a prefix of the structure: file rights, network rights (left alone), scopes.
    scopes = (_SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS) if abi >= SCOPES_SINCE else 0
    attributes = (ctypes.c_uint64 * 3)(handled, 0, scopes)
    size = 24 if abi >= SCOPES_SINCE else 16 if abi >= 4 else 8
    rules = linux.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for handle in readable:
            _allow(rules, handle, _READ & handled)
        for handle in writable:
            _allow(rules, handle, handled)
    except OSError:
        os.close(rules)
        raise
    return rules


def enforce_call(rules: int) -> linux.SystemCall:
    return linux.syscall_call(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0))


def enforce(rules: int) -> None:
    enforce_call(rules)()


def confine_signals() -> None:
    """From here on this process and all it starts can send signals only to each other. Since Linux 6.12."""
    attributes = (ctypes.c_uint64 * 3)(0, 0, _SCOPE_SIGNALS)
    rules = linux.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(24), ctypes.c_uint32(0))
    try:
        enforce(rules)
    finally:
        os.close(rules)


def forbid_port(forbidden: int) -> None:
    """No TCP connection to this port of any machine, and no listener on it. There are only rules that allow, so this
    takes one for every other port: some 100 ms, once for all calls. Needs no_new_privs."""
    attributes = (ctypes.c_uint64 * 2)(0, _BIND_TCP | _CONNECT_TCP)
    rules = linux.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(16), ctypes.c_uint32(0))
    try:
        for port in range(65_536):
            if port != forbidden:
                rule = _NetPort(_BIND_TCP | _CONNECT_TCP, port)
                linux.syscall(
                    _ADD_RULE,
                    ctypes.c_int(rules),
                    ctypes.c_int(_RULE_NET_PORT),
                    ctypes.byref(rule),
                    ctypes.c_uint32(0),
                )
        enforce(rules)
    finally:
        os.close(rules)


def _handled(abi: int) -> int:
    bits = 13 if abi == 1 else 14 if abi == 2 else 15 if abi < 5 else 16
    return (1 << bits) - 1


def _allow(rules: int, handle: int, rights: int) -> None:
    if not stat.S_ISDIR(os.fstat(handle).st_mode):
        rights &= _ON_FILES
    rule = _PathBeneath(rights, handle)
    linux.syscall(
        _ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_RULE_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0)
    )
