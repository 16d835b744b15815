"""The limits that a child process sets for itself, before it reads anything."""

from __future__ import annotations

import resource

REFUSED = 3  # the return code of a child that says why it cannot do it


def apply(memory_bytes: int, cpu_s: int) -> None:
    for kind, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (allowed, allowed))
