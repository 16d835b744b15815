from __future__ import annotations

from typing import Any

from tests.client_0x.sources import FLIP


def double(number: int) -> str:
    """Double a number.

    Args:
        number (int): which
    """
    return str(number * 2)


def test_a_tool_is_made_found_changed_and_deleted(client: Any) -> None:
    tool = client.tools.create(source_code=FLIP)
    assert tool.json_schema["parameters"]["required"] == ["times"]
    assert client.tools.retrieve(tool_id=tool.id).name == "flip"
    assert [found.id for found in client.tools.list(name="flip")] == [tool.id]
    assert client.tools.modify(tool_id=tool.id, description="Throws a coin.").description == "Throws a coin."
    assert client.tools.count() >= 1
    client.tools.delete(tool_id=tool.id)
    assert client.tools.list(name="flip") == []


def test_a_function_becomes_a_tool_and_runs(client: Any) -> None:
    tool = client.tools.upsert_from_function(func=double)
    assert client.tools.create_from_function(func=double).id == tool.id
    returned = client.tools.run_tool_from_source(source_code=tool.source_code, args={"number": 21})
    assert (returned.status, returned.tool_return) == ("success", "42")


def test_the_built_in_tools_are_listed(client: Any) -> None:
    assert {"send_message", "memory_insert"} <= {tool.name for tool in client.tools.upsert_base_tools()}
