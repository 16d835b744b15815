"""What the console computes, without a page around it: its modules are imported in a browser and called."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from holdfast.core import transitions
from tests.serving import ServerProcess


@pytest.fixture(scope="module")
def page(browser: Browser, server: ServerProcess) -> Generator[Page]:
    """One for all: what is called here changes nothing."""
    context = browser.new_context()
    opened = context.new_page()
    opened.goto(server.url)
    yield opened
    context.close()


def call(page: Page, module: str, expression: str, given: Any = None) -> Any:
    """`expression` is of `m`, the module, and `given`."""
    return page.evaluate(
        f"async given => {{ const m = await import('./console/{module}'); return {expression}; }}", given
    )


SCHEMA = {
    "type": "object",
    "required": ["name", "amount"],
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "amount": {"type": "integer", "minimum": 1},
        "rate": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "urgent": {"type": "boolean"},
        "kind": {"$ref": "#/$defs/Kind"},
        "tags": {"type": "array"},
        "more": {"type": "object"},
    },
    "$defs": {"Kind": {"enum": ["a", 2, None]}},
}


def test_a_form_reads_every_type_of_a_schema(page: Page) -> None:
    texts = {"name": "Ada", "amount": "3", "rate": "0.5", "urgent": "false", "kind": "1", "tags": "[1]", "more": "{}"}
    read = call(page, "parts/schema_form.js", "m.readForm(...given)", [SCHEMA, texts])
    assert read["problems"] == {}
    assert read["values"] == {
        "name": "Ada", "amount": 3, "rate": 0.5, "urgent": False, "kind": 2, "tags": [1], "more": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "text", "problem"),
    [
        ("amount", "", "This is required."),
        ("amount", "three", "This is not a number."),
        ("amount", "1.5", "This is not a whole number."),
        ("amount", "0", "At least 1."),
        ("name", "Adaline", "At most 5 characters."),
        ("tags", "[1", "This is not JSON"),
        ("tags", "{}", "A list is wanted"),
        ("more", "[]", "An object is wanted"),
    ],
)
def test_a_form_says_what_is_wrong_with_a_field(page: Page, field: str, text: str, problem: str) -> None:
    texts = {"name": "Ada", "amount": "3", field: text}
    read = call(page, "parts/schema_form.js", "m.readForm(...given)", [SCHEMA, texts])
    assert list(read["problems"]) == [field]
    assert read["problems"][field].startswith(problem)


def test_what_is_left_empty_is_not_sent_unless_it_is_required(page: Page) -> None:
    read = call(page, "parts/schema_form.js", "m.readForm(...given)", [SCHEMA, {"amount": "3"}])
    assert read == {"values": {"name": "", "amount": 3}, "problems": {}}


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"type": "run_first"}, "t is called first."),
        ({"type": "run_first", "args": {"a": 1}}, 't is called first, with {"a":1}.'),
        ({"type": "exit_loop"}, "After t the turn ends."),
        ({"type": "continue_loop"}, "After t the agent goes on."),
        ({"type": "required_before_exit"}, "t must be called before the turn may end."),
        ({"type": "max_count_per_step", "max_count_limit": 1}, "t is called at most 1 time in a turn."),
        ({"type": "constrain_child_tools", "children": ["a", "b"]}, "After t only a, b may be called."),
        ({"type": "parent_last_tool", "children": ["a"]}, "a may be called only right after t."),
        (
            {"type": "conditional", "child_output_mapping": {"yes": "a"}, "default_child": "b"},
            "What follows t depends on its result: “yes” leads to a, anything else to b.",
        ),
        ({"type": "requires_approval"}, "t needs approval."),
    ],
)
def test_every_tool_rule_is_a_sentence(page: Page, rule: dict[str, Any], sentence: str) -> None:
    assert call(page, "parts/rules.js", "m.sentenceOf(given)", {"tool_name": "t", **rule}) == sentence


def test_a_failed_try_leaves_nothing_of_what_it_had_said(page: Page) -> None:
    events = [
        {"message_type": "assistant_message", "id": "message-1", "otid": "a", "run_id": "r", "content": "half a"},
        {
            "message_type": "event_message",
            "event_type": "retry",
            "id": "message-2",
            "run_id": "r",
            "event_data": {
                "attempt": 2,
                "max_attempts": 4,
                "message": "overloaded",
                "retry_in_ms": 500,
                "abandoned_message_ids": ["message-1"],
            },
        },
        {"message_type": "assistant_message", "id": "message-3", "otid": "b", "run_id": "r", "content": "whole"},
    ]
    fold = "(() => { const t = new m.Transcript(); given.forEach(e => t.fold(e)); return t.items.map(i => i.text); })()"
    assert call(page, "transcript.js", fold, events) == ["Try 2 of 4 follows in 0.5 s: overloaded", "whole"]


def test_the_console_knows_how_the_server_tells_that_a_call_did_not_end(page: Page) -> None:
    """`outcomes` reads it off the return's text, so the texts of the core must begin as the console thinks."""
    not_run, cut_off = call(page, "transcript.js", "[m.NOT_RUN, m.CUT_OFF]")
    assert transitions.NOT_RUN.startswith(not_run) and transitions.NOT_RUN_AFTER_FAILURE.startswith(not_run)
    assert transitions.CUT_OFF.startswith(cut_off[0]) and transitions.OUTCOME_UNKNOWN.startswith(cut_off[1])


def test_a_fork_of_what_is_gone_stands_at_the_top_of_the_tree(page: Page) -> None:
    made = [
        {"id": "conv-2", "forked_from": "conv-1", "created_at": "2"},
        {"id": "conv-3", "forked_from": "conv-2", "created_at": "3"},
        {"id": "conv-4", "forked_from": "agent-1", "created_at": "4"},
    ]
    shape = "(function names(nodes) { return nodes.map(n => [n.id, names(n.children)]); })(m.treeOf('agent-1', given))"
    tree = call(page, "parts/conversations.js", shape, made)
    assert tree == [["agent-1", [["conv-4", []]]], ["conv-2", [["conv-3", []]]]]


def test_only_rows_around_the_screen_are_drawn(page: Page) -> None:
    ranges = call(
        page, "parts/virtual_list.js", "given.map(a => m.rangeOf(Array(1000).fill(100), a, 500))", [0, 500, None]
    )
    assert ranges == [[0, 12], [493, 512], [988, 1000]]
    assert call(page, "parts/virtual_list.js", "m.rangeOf([], null, 500)") == [0, 0]


def test_settings_of_a_model_are_sent_as_the_api_nests_them(page: Page) -> None:
    settings = {"temperature": 0.5, "reasoning": {"reasoning_effort": "low"}, "strict": False}
    sent = "(() => { const s = m.settingsSchema(given, 1000); return m.nested(s, m.flat(given)); })()"
    assert call(page, "parts/model_form.js", sent, settings) == {
        "temperature": 0.5,
        "max_output_tokens": None,
        "context_window_limit": None,
        "parallel_tool_calls": None,
        "reasoning": {"reasoning_effort": "low"},
        "strict": False,
    }
