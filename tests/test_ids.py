"""Ids look like version 4 uuids to every client, and derived ones never change."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import ids


def tail(made: str) -> uuid.UUID:
    return uuid.UUID(made.partition("-")[2])


def test_a_new_id_is_a_version_4_uuid_with_room_for_the_index_of_a_part() -> None:
    made = {ids.new("message") for _ in range(1_000)}
    assert len(made) == 1_000
    for each in made:
        assert ids.is_id("message", each)
        assert tail(each).version == 4 and tail(each).variant == uuid.RFC_4122 and tail(each).int % 128 == 0


@given(st.lists(st.text() | st.integers(), min_size=1, max_size=4))
def test_the_same_parts_give_the_same_valid_id(parts: list[str | int]) -> None:
    made = ids.derive("step", *parts)
    assert made == ids.derive("step", *parts)
    assert ids.is_id("step", made) and tail(made).version == 4


def test_a_derived_id_is_the_same_in_every_release() -> None:
    assert ids.derive("message", "run-1", 2, "reply") == "message-3cd776d4-02b1-4408-95fc-5965a69b8100"


@given(st.integers(0, 127))
def test_the_otid_of_a_part_is_the_id_with_the_index_in_its_lowest_bits(index: int) -> None:
    made = ids.new("message")
    assert uuid.UUID(ids.part_otid(made, index)).int == tail(made).int + index


def test_a_message_cannot_show_more_parts_than_there_is_room_for() -> None:
    with pytest.raises(ValueError, match="at most 128"):
        ids.part_otid(ids.new("message"), 128)


@pytest.mark.parametrize("text", ["agent-1", "run-" + "0" * 36, "", "agent", ids.DEFAULT_USER.upper()])
def test_what_is_no_id_is_told_apart(text: str) -> None:
    assert not ids.is_id("agent", text) and not ids.is_id("user", text)
