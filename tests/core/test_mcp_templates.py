from __future__ import annotations

import pytest

from holdfast.core.mcp import filled, has_template, only_names_a_secret

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
