from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.mcp import McpServer, filled, has_template, only_names_a_secret

SERVER = McpServer(id="mcp_server-1", name="harbour", kind="streamable_http", url="https://a.example/mcp")


@pytest.mark.parametrize(
    "changes", [{"kind": "sse"}, {"url": "https://b.example/mcp"}, {"command": "x"}, {"args": ("x",)}]
)
def test_a_server_that_is_called_otherwise_has_another_destination(changes: dict[str, Any]) -> None:
    assert msgspec.structs.replace(SERVER, **changes).destination != SERVER.destination


@pytest.mark.parametrize("changes", [{"name": "port"}, {"secrets": "sealed"}, {"sync_error": "no"}, {"updated_us": 5}])
def test_what_else_changes_of_a_server_leaves_its_destination(changes: dict[str, Any]) -> None:
    assert msgspec.structs.replace(SERVER, **changes).destination == SERVER.destination


SECRETS = {"KEY": "value", "OTHER_KEY_2": "other"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("{{ KEY }}", "value"),
        ("{{KEY}}/{{ OTHER_KEY_2 }}", "value/other"),
        ("{{ KEY | unused }}", "value"),
        ("{{ MISSING | the default }}", "the default"),
        ("{{ MISSING |}}", ""),
        ("{{ MISSING }}", "{{ MISSING }}"),
        ("{{ KEY }} {{ MISSING }}", "{{ KEY }} {{ MISSING }}"),
        ("{{ key }}", "{{ key }}"),
        ("{ KEY }", "{ KEY }"),
    ],
)
def test_a_text_is_filled_in_whole_or_not_at_all(text: str, result: str) -> None:
    assert filled(text, SECRETS) == result


def test_what_a_secret_holds_is_not_taken_for_a_template() -> None:
    assert filled("{{ KEY }}", {"KEY": "{{ OTHER }}", "OTHER": "x"}) == "{{ OTHER }}"


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("{{ KEY }}", True),
        ("Bearer {{ KEY }}", True),
        ("{{ KEY | secret }}", False),
        ("x{{ KEY }}", False),
        ("secret", False),
    ],
)
def test_what_names_a_secret_is_told_from_what_holds_one(text: str, only: bool) -> None:
    assert only_names_a_secret(text) is only
    assert has_template(text) is ("{{" in text)
