"""What is kept of an exchange with a vendor: no keys, no secrets, no pictures, and no more than there is room for."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.redaction import HIDDEN, LEAST_BYTES, Redactor, cut, is_secret_name

PICTURE = base64.b64encode(bytes(range(256)) * 4).decode()
PLAIN = Redactor()

# Written in two pieces each, so that nobody who scans this file for keys finds one.
KEYS = [
    "sk-" + "proj-abcdefghijklmnop1234",
    "sk-" + "ant-api03-abcdefghijklmnop",
    "AIza" + "SyA1234567890abcdefghijklmnopqrstu",
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "ghp_" + "abcdefghijklmnopqrstuvwxyz0123456789",
    "xoxb-" + "1234567890-abcdef",
    "gsk_" + "abcdefghijklmnopqrstuv",
    "xai-" + "abcdefghijklmnopqrstuv",
    "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "-----BEGIN RSA " + "PRIVATE KEY-----\nabc\n-----END RSA " + "PRIVATE KEY-----",
]
json_values = st.recursive(
    st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.text(max_size=20)
    | st.text(max_size=5).map(lambda text: text * 99),
    lambda inner: (
        st.lists(inner, max_size=6).map(lambda items: items * 3) | st.dictionaries(st.text(), inner, max_size=6)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("key", KEYS)
def test_what_looks_like_a_key_is_hidden_wherever_it_stands(key: str) -> None:
    shown = PLAIN.hide({"messages": [{"content": f"use {key} please"}], key: 1})
    assert key not in str(shown)
    assert shown["messages"][0]["content"] == f"use {HIDDEN} please"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abcdefgh12345", f"Authorization: Bearer {HIDDEN}"),
        ('{"api_key": "abcdefgh12345"}', f'{{"api_key": "{HIDDEN}"}}'),
        (r"{\"x-api-key\": \"abcdefgh12345\"}", rf"{{\"x-api-key\": \"{HIDDEN}\"}}"),
        ("https://host/path?token=abcdefgh12345&page=2", f"https://host/path?token={HIDDEN}&page=2"),
        ("DB_PASSWORD=correcthorse", f"DB_PASSWORD={HIDDEN}"),
        ("bearer abcdefgh12345", f"bearer {HIDDEN}"),
        ("the bear ate 12345678 berries", "the bear ate 12345678 berries"),
        ("password: short", "password: short"),
        ("a token of my affection", "a token of my affection"),
    ],
)
def test_a_value_that_is_named_like_a_secret_is_hidden_within_a_text(text: str, shown: str) -> None:
    assert PLAIN.hide(text) == shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "begun", ["eyJhbGciOiJI-", "eyJ-", "sk-", "-----BEGIN " + "PRIVATE KEY", "token ", "bearer ", "data:a/", "://a:"]
)
def test_a_text_full_of_beginnings_of_keys_takes_no_longer_than_its_length(begun: str) -> None:
    """Looked through to its end from each of them, it would take longer than any test may."""
    assert Redactor().hide_in_text(begun * (2_000_000 // len(begun)) + " ;base64, that is all").endswith(" that is all")


def test_fields_that_carry_keys_are_hidden_and_counts_of_tokens_are_not() -> None:
    sent = {
        "Authorization": "x",
        "x-api-key": "y",
        "clientSecret": "z",
        "set-cookie": "c",
        "max_tokens": 10,
        "token": {"type": "string"},
        "password": None,
    }
    assert PLAIN.hide(sent) == {
        "Authorization": HIDDEN,
        "x-api-key": HIDDEN,
        "clientSecret": HIDDEN,
        "set-cookie": HIDDEN,
        "max_tokens": 10,
        "token": {"type": "string"},
        "password": None,
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://ada:lovelace@db/x and on", f"postgres://ada:{HIDDEN}@db/x and on"),
        ("see https://:s3cret@host:8443/a.png", f"see https://:{HIDDEN}@host:8443/a.png"),
        ("https://h/a.png?sv=1&sig=ab%2Fcd&se=2", f"https://h/a.png?sv=1&sig={HIDDEN}&se=2"),
        ("https://h/k?X-Amz-Signature=deadbeef", f"https://h/k?X-Amz-Signature={HIDDEN}"),
        ("https://h/k?Expires=1&Signature=a~b-c_", f"https://h/k?Expires=1&Signature={HIDDEN}"),
        ("https://host:8080/a@b?design=round", "https://host:8080/a@b?design=round"),
        ("https://host/x, mail: ada@host", "https://host/x, mail: ada@host"),
        ("http://host:8080 is ada@host", "http://host:8080 is ada@host"),
    ],
)
def test_what_opens_an_address_is_hidden_and_the_rest_of_the_address_is_not(text: str, shown: str) -> None:
    assert PLAIN.hide(text) == shown


@pytest.mark.parametrize(("name", "is_secret"), [("API_KEY", True), ("refresh-token", True), ("prompt_tokens", False)])
def test_a_name_says_whether_its_value_is_a_secret(name: str, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret


def test_known_secrets_are_hidden_also_as_json_spells_them_and_the_longest_first() -> None:
    redactor = Redactor(['two "words"', "letmein", "letmein-more", "no"])
    arguments = msgspec.json.encode({"said": 'two "words"'}).decode()
    assert redactor.hide(["letmein-more, letmein", arguments, 'two "words"', "no", 7]) == [
        f"{HIDDEN}, {HIDDEN}",
        f'{{"said":"{HIDDEN}"}}',
        HIDDEN,
        "no",
        7,
    ]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (
            {"image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
            {"image_url": {"url": "data:image/png;base64,[1024 bytes]"}},
        ),
        (
            {"type": "base64", "media_type": "image/png", "data": PICTURE[:40]},
            {"type": "base64", "media_type": "image/png", "data": "[30 bytes]"},
        ),
        ({"mimeType": "image/png", "data": "AAAA"}, {"mimeType": "image/png", "data": "[3 bytes]"}),
        ({"signature": PICTURE}, {"signature": "[1024 bytes]"}),
        ({"data": "words"}, {"data": "words"}),
    ],
)
def test_pictures_are_replaced_by_their_size(sent: dict[str, Any], shown: dict[str, Any]) -> None:
    assert PLAIN.hide(sent) == shown


def test_what_fits_is_left_alone() -> None:
    value = {"messages": [{"content": "hello"}], "n": 1}
    assert cut(value, 1_000) == value


def test_small_parts_stay_whole_and_the_large_ones_share_the_rest() -> None:
    value = {"model": "gpt", "messages": ["a" * 5_000, "short", "b" * 5_000]}
    shown = cut(value, 1_000)
    assert shown["model"] == "gpt"
    first, second, third = shown["messages"]
    assert second == "short"
    assert first.startswith("a" * 300)
    assert first.endswith("characters cut]")
    assert third.startswith("b" * 300)


def test_a_long_list_keeps_its_first_and_last_items() -> None:
    shown = cut({"messages": [f"message {number}" for number in range(10_000)]}, 2_000)["messages"]
    assert (shown[0], shown[-1]) == ("message 0", "message 9999")
    assert [item for item in shown if item.endswith("items cut]")] == [f"[{10_000 - len(shown) + 1} items cut]"]


def test_an_object_with_too_many_fields_says_how_many_are_missing() -> None:
    shown = cut({f"field {number}": "x" * 50 for number in range(1_000)}, 1_000)
    assert shown["field 0"].startswith("x")
    assert shown["…"] == f"[{1_000 - len(shown) + 1} fields cut]"


@pytest.mark.parametrize(
    "value",
    [{"k" * 500: 1}, 10**200, ["x" * 99] * 99, "\x00" * 99, {"a": {"b": {"c": ["d" * 99] * 99}}}],
    ids=["long name", "long number", "list", "escapes", "deep"],
)
def test_there_is_always_room_for_the_least(value: Any) -> None:
    assert len(msgspec.json.encode(cut(value, 1))) <= LEAST_BYTES


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(value=st.dictionaries(st.text(), json_values, max_size=8), room=st.integers(LEAST_BYTES, 2_000))
def test_whatever_is_cut_fits_and_is_an_object_still(value: dict[str, Any], room: int) -> None:
    shown = cut(value, room)
    encoded = msgspec.json.encode(shown)
    assert len(encoded) <= room
    assert isinstance(msgspec.json.decode(encoded), dict)


@settings(max_examples=50, deadline=None)
@given(value=json_values, secret=st.text(min_size=4, max_size=20))
def test_a_known_secret_is_never_shown(value: Any, secret: str) -> None:
    shown = Redactor([secret]).hide({"before": value, "at": f"x{secret}y", secret: [f"{secret}{secret}"]})
    assert secret not in str(list(shown)[1:]) + str(shown["at"]) or secret in HIDDEN
