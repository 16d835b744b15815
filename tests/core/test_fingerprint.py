"""What makes a tool that very tool, and what does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.hold import fingerprint, identity_of
from holdfast.core.records import Tool

TOOL = Tool(
    id="tool-1",
    name="pay",
    tool_type="custom",
    description="Pays.",
    json_schema={"name": "pay", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}},
    source_code="def pay(a, b): ...",
    tags=("money", "urgent"),
)


def changed(**fields: Any) -> str:
    return fingerprint(msgspec.structs.replace(TOOL, **fields), ("TOKEN",))


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "pay2"},
        {"tool_type": "letta_core"},
        {"description": "Plays."},
        {"json_schema": {"name": "pay"}},
        {"source_code": "def pay(a, b): pass"},
        {"source_type": "typescript"},
        {"args_json_schema": {"type": "object"}},
        {"tags": ("money", "urgent", "retry-safe")},
        {"pip_requirements": [{"name": "requests"}]},
        {"npm_requirements": [{"name": "left-pad"}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_whatever_decides_what_runs_or_what_is_shown_changes_the_fingerprint(fields: dict[str, Any]) -> None:
    assert changed(**fields) != changed()


@pytest.mark.parametrize(
    "fields",
    [
        {"tags": ("urgent", "money")},
        {"json_schema": {"parameters": {"properties": {"b": {}, "a": {}}, "type": "object"}, "name": "pay"}},
        {"pip_requirements": []},
        {"return_char_limit": 1},
        {"default_requires_approval": True},
        {"enable_parallel_execution": True},
        {"metadata": {"owner": "ada"}},
        {"updated_us": 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_order_and_what_changes_neither_leave_the_fingerprint_as_it_is(fields: dict[str, Any]) -> None:
    assert changed(**fields) == changed()


def test_the_names_of_the_secrets_that_a_tool_gets_are_part_of_its_fingerprint() -> None:
    assert fingerprint(TOOL, ("A", "B")) == fingerprint(TOOL, ("B", "A")) != fingerprint(TOOL, ("A",))


def test_a_built_in_tool_gets_no_secrets_so_their_names_do_not_matter() -> None:
    built_in = msgspec.structs.replace(TOOL, tool_type="letta_core")
    assert fingerprint(built_in, ("A",)) == fingerprint(built_in, ())


def test_tools_of_equal_content_are_told_apart_by_their_ids() -> None:
    again = msgspec.structs.replace(TOOL, id="tool-2")
    assert identity_of(again, ()) != identity_of(TOOL, ())
    assert identity_of(again, ()).fingerprint == identity_of(TOOL, ()).fingerprint


def test_the_fingerprint_that_is_stored_with_a_hold_stays_the_same_between_releases() -> None:
    """A change here makes every approval that waits at an upgrade a 409."""
    assert fingerprint(TOOL, ("TOKEN",)) == "f07f697560e7c9f92a7fa894b235b1fb5d658e5b7376a5aa772ea0574d56aa38"


@pytest.mark.parametrize("name", ["run_code", "run_code_with_tools"])
def test_what_a_program_may_call_is_part_of_the_fingerprint_of_the_tool_that_runs_it(name: str) -> None:
    runner = msgspec.structs.replace(TOOL, id="tool-3", name=name, tool_type="letta_builtin")
    edited = msgspec.structs.replace(TOOL, source_code="def pay(a, b): pass")
    other = msgspec.structs.replace(TOOL, id="tool-4", name="other")
    assert (
        fingerprint(runner, (), [runner, TOOL]) == fingerprint(runner, (), [TOOL]) != fingerprint(runner, (), [edited])
    )
    assert fingerprint(runner, (), [TOOL, other]) == fingerprint(runner, (), [other, TOOL]) != fingerprint(runner, ())
    assert fingerprint(runner, ("A",), [TOOL]) != fingerprint(runner, (), [TOOL])
    assert fingerprint(TOOL, (), [other]) == fingerprint(TOOL, ())
    assert identity_of(runner, (), [TOOL]).fingerprint == fingerprint(runner, (), [TOOL])


def test_a_tool_of_an_mcp_server_is_bound_to_the_server_and_not_to_its_name() -> None:
    of_server = msgspec.structs.replace(
        TOOL, tool_type="external_mcp", mcp_server_id="mcp_server-1", mcp_name="pay", tags=("mcp:harbour",)
    )
    elsewhere = msgspec.structs.replace(of_server, mcp_server_id="mcp_server-2")
    renamed = msgspec.structs.replace(of_server, tags=("mcp:port",))
    repeatable = msgspec.structs.replace(of_server, tags=("mcp:harbour", "retry-safe"))
    assert fingerprint(of_server, ()) == fingerprint(renamed, ()) != fingerprint(elsewhere, ())
    assert fingerprint(of_server, ()) != fingerprint(repeatable, ())
    assert fingerprint(of_server, ("KEY",)) != fingerprint(of_server, ())
