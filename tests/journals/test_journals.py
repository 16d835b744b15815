"""Journals recorded by each release fold to the same end for ever. A change that breaks one would strand real runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.core.run import NEW, Phase, apply, plan, replay
from holdfast.errors import IllegalEvent

from .expectation import Expectation, decode, told_by

HERE = Path(__file__).parent
RECORDED = sorted(HERE.glob("v*/*.jsonl"))
REFUSED = sorted(HERE.glob("refused/*.jsonl"))


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_there_are_journals_to_replay() -> None:
    assert len(RECORDED) >= 15
    assert REFUSED


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_a_recorded_journal_folds_to_what_it_always_did(path: Path) -> None:
    expected = msgspec.json.decode(path.with_suffix(".expected.json").read_bytes(), type=Expectation)
    assert told_by(replay(decode(lines_of(path)))) == expected


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_a_recorded_journal_can_be_carried_on_from_anywhere(path: Path) -> None:
    state = NEW
    for event in decode(lines_of(path)):
        state = apply(state, event)
        assert state.phase is not Phase.NEW
        assert plan(state) == plan(state)


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_a_recorded_journal_is_written_today_as_it_was_then(path: Path) -> None:
    for line, event in zip(lines_of(path), decode(lines_of(path)), strict=True):
        assert msgspec.json.decode(msgspec.json.encode(event)) == msgspec.json.decode(line)


@pytest.mark.parametrize("path", REFUSED, ids=name_of)
def test_a_journal_that_cannot_have_happened_is_refused(path: Path) -> None:
    with pytest.raises((IllegalEvent, msgspec.ValidationError)):
        replay(decode(lines_of(path)))
