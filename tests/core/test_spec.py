"""What a run was asked to do."""

from __future__ import annotations

import msgspec

from holdfast.core.spec import RunSpec
from holdfast.core.tool_rules import ExitLoop

from .machine import EFFECTS, spec


def test_tools_are_found_by_name() -> None:
    given = spec()
    assert given.tool_names == tuple(EFFECTS)
    found = given.tool("lookup")
    assert found is not None
    assert found.effect == "retry_safe"
    assert given.tool("unknown") is None


def test_a_spec_survives_a_round_trip_through_json() -> None:
    given = spec(ExitLoop(tool_name="finish"), max_steps=3, override_system="Be short.", stream_tokens=True)
    assert msgspec.json.decode(msgspec.json.encode(given), type=RunSpec) == given
