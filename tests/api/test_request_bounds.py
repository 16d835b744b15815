"""A request that holds too much is refused with a sentence, and one that holds as much as it may is served."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.wire.bounds import MAX_ITEMS, MAX_QUERY
from holdfast.wire.tool_rules import MAX_RULE_NAMES

from .resources import Served

TOO_MANY = MAX_ITEMS + 1


def rule(number: int) -> dict[str, Any]:
    return {"type": "continue_loop", "tool_name": f"tool_{number}"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tool_rules", [rule(number) for number in range(16_000)]),
        ("memory_blocks", [{"label": f"block_{number}"} for number in range(TOO_MANY)]),
        ("block_ids", ["block-x"] * TOO_MANY),
        ("tool_ids", ["tool-x"] * TOO_MANY),
        ("tags", ["t"] * TOO_MANY),
        ("tools", ["t"] * TOO_MANY),
        ("secrets", {f"K{number}": "v" for number in range(TOO_MANY)}),
        ("initial_message_sequence", [{"role": "user", "content": "hi"}] * TOO_MANY),
    ],
)
async def test_too_many_of_one_thing_are_refused_with_field_count_and_limit(
    served: Served, field: str, value: Any
) -> None:
    answer = await served.http.post("/v1/agents/", json={"model": "holdfast/offline", field: value})
    assert answer.status_code == 422
    detail = answer.json()["detail"]
    assert field in detail and str(len(value)) in detail and str(MAX_ITEMS) in detail


async def test_rules_that_name_too_many_tools_in_all_are_refused(served: Served) -> None:
    children = [f"tool_{number}" for number in range(MAX_ITEMS)]
    rules = [{"type": "parent_last_tool", "tool_name": "a", "children": children}] * (MAX_RULE_NAMES // MAX_ITEMS + 1)
    answer = await served.http.post("/v1/agents/", json={"model": "holdfast/offline", "tool_rules": rules})
    assert answer.status_code == 422
    assert f"the rules name {MAX_RULE_NAMES + MAX_ITEMS} tools in all" in answer.json()["detail"]


async def test_a_list_of_many_mistakes_is_refused_for_the_first_of_them(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": [1] * MAX_ITEMS}] * 100}
    answer = await served.http.post("/v1/agents/agent-00000000-0000-4000-8000-000000000000/messages", json=body)
    assert answer.status_code == 422
    assert "more" not in answer.json()["detail"]


async def test_a_thousand_blocks_tags_and_rules_make_one_agent(served: Served) -> None:
    body = {
        "model": "holdfast/offline",
        "memory_blocks": [{"label": f"block_{number}", "value": "v"} for number in range(MAX_ITEMS)],
        "tags": [f"tag_{number}" for number in range(MAX_ITEMS)],
        "tool_rules": [rule(number) for number in range(MAX_ITEMS)],
        "secrets": {f"K{number}": "v" for number in range(MAX_ITEMS)},
    }
    answer = await served.http.post("/v1/agents/", json=body)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert (len(made["blocks"]), len(made["tags"]), len(made["tool_rules"])) == (MAX_ITEMS, MAX_ITEMS, MAX_ITEMS)


async def test_two_new_blocks_of_one_label_are_refused_and_the_label_is_named(served: Served) -> None:
    blocks = [{"label": "human"}, {"label": "persona"}, {"label": "human"}]
    answer = await served.http.post("/v1/agents/", json={"model": "holdfast/offline", "memory_blocks": blocks})
    assert answer.status_code == 409
    assert "'human'" in answer.json()["detail"]


async def test_names_as_long_as_they_may_be_fit_into_every_index(served: Served) -> None:
    """PostgreSQL refuses to index more than 2,704 bytes, once it has failed to compress them."""
    letters = random.Random(7)
    long = "".join(chr(letters.randrange(0x20000, 0x2A6D0)) for _ in range(512))
    body = {
        "model": "holdfast/offline",
        "name": long,
        "tags": [long],
        "secrets": {long: "v"},
        "memory_blocks": [{"label": long, "tags": [long]}],
    }
    answer = await served.http.post("/v1/agents/", json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("length", [513, 1_024])
async def test_a_name_that_no_index_holds_is_refused_with_a_sentence(served: Served, length: int) -> None:
    letters = random.Random(7)
    long = "".join(chr(letters.randrange(0x20000, 0x2A6D0)) for _ in range(length))
    answer = await served.http.post("/v1/agents/", json={"model": "holdfast/offline", "name": long})
    assert answer.status_code == 422
    assert "bytes" in answer.json()["detail"]


async def test_a_search_for_a_text_longer_than_a_pattern_may_be_is_refused(served: Served) -> None:
    long = "a" * 60_000
    posted = await served.http.post("/v1/tools/search", json={"query": long})
    assert posted.status_code == 422
    assert "query" in posted.json()["detail"] and "5000" in posted.json()["detail"]
    for path in ("agents/?query_text", "tools/?search", "blocks/?value_search", "conversations/?summary_search"):
        answer = await served.http.get(f"/v1/{path}={long}")
        assert answer.status_code == 422, path


async def test_the_longest_search_passes_though_every_character_of_it_is_escaped(served: Served) -> None:
    longest = "%" * MAX_QUERY
    assert (await served.http.post("/v1/tools/search", json={"query": longest})).json() == []
    for path in ("agents/?query_text", "tools/?search", "blocks/?value_search", "conversations/?summary_search"):
        answer = await served.http.get(f"/v1/{path}={'%25' * MAX_QUERY}")
        assert (answer.status_code, answer.json()) == (200, []), path


async def test_messages_of_too_many_content_parts_in_all_are_refused(served: Served) -> None:
    content = [{"type": "text", "text": "x"}] * MAX_ITEMS
    body = {"messages": [{"role": "user", "content": content}] * 11}
    answer = await served.http.post("/v1/agents/agent-00000000-0000-4000-8000-000000000000/messages", json=body)
    assert answer.status_code == 422
    assert "11000 content parts" in answer.json()["detail"]


async def test_source_code_that_would_take_seconds_to_parse_is_refused(served: Served) -> None:
    source = 'def k() -> str:\n    """Doc."""\n' + "    x = 1\n" * 300_000
    answer = await served.http.post("/v1/tools/", json={"source_code": source})
    assert answer.status_code == 422
    assert "source_code" in answer.json()["detail"]
