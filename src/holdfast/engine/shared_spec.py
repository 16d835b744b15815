"""The first event of a run as it is stored: what its spec shares with other runs is kept once, apart from it.

What stays in the event are ids and what a request may set differently with every message. What is shared is large and
changes seldom, so agents with the same tools and model share it, in all their conversations.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from holdfast.core.events import RunStarted
from holdfast.core.spec import RunSpec
from holdfast.store.specs import SharedSpec

SHARED: Final = ("model", "tools", "rules", "compaction", "skills")
_OWN: Final = tuple(name for name in RunSpec.__struct_fields__ if name not in SHARED)
_MOST_AGENTS: Final = 500
_encode = msgspec.json.Encoder().encode


def shared_part(spec: RunSpec) -> SharedSpec:
    """Objects keep the order of their keys, and the hash depends on it: a model is shown a schema as it was written."""
    text = _encode({name: getattr(spec, name) for name in SHARED})
    return SharedSpec(hashlib.sha256(text).hexdigest(), text.decode())


class SharedParts:
    """The shared part of each agent's newest spec: encoding and hashing it anew with every message costs more than to
    compare. A tool that was edited has another version, so equal ones are equal to the letter."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[RunSpec, SharedSpec]] = {}

    def of(self, spec: RunSpec) -> SharedSpec:
        known = self._newest.get(spec.agent_id)
        if known is not None and _shares(spec, known[0]):
            return known[1]
        if len(self._newest) >= _MOST_AGENTS:
            self._newest.clear()
        shared = shared_part(spec)
        self._newest[spec.agent_id] = spec, shared
        return shared


def _shares(one: RunSpec, other: RunSpec) -> bool:
    """As `SHARED` says, spelt out: it is asked with every message."""
    return (
        one.tools == other.tools
        and one.model == other.model
        and one.rules == other.rules
        and one.compaction == other.compaction
        and one.skills == other.skills
    )


def own_part(started: RunStarted) -> str:
    """The event without what is shared."""
    own = {name: getattr(started.spec, name) for name in _OWN}
    return _encode({"event": "run_started", **msgspec.structs.asdict(started), "spec": own}).decode()
