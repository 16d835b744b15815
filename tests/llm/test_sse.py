from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import BadReply
from holdfast.llm import sse
from holdfast.llm.sse import Event, SseReader

from ..effort import examples

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12).map(str.encode)


def read(*chunks: bytes) -> list[Event]:
    reader = SseReader()
    return [event for chunk in chunks for event in reader.feed(chunk)] + reader.close()


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[Event]]:
    """Events as a server may write them, and what is to be read."""
    end, written, expected = draw(ENDS), list[bytes](), list[Event]()
    for _ in range(draw(st.integers(0, 4))):
        name, data = draw(st.sampled_from([b"", b"delta", b"ping"])), draw(st.lists(LINES, max_size=3))
        lines = [b"data: " + line for line in data] + [b": a comment", b"id: 7", b"retry: 3"][: draw(st.integers(0, 3))]
        lines += [b"event: " + name] if name else []
        written += [*draw(st.permutations(lines)), b""]
        if data:
            order = [line[6:] for line in written[-1 - len(lines) : -1] if line.startswith(b"data: ")]
            expected.append((name, b"\n".join(order)))
    return b"".join(line + end for line in written), expected


@pytest.mark.slow
@examples(200)
@given(stream=streams(), data=st.data())
@example(stream=(b"data: a\r\n\r\ndata: b\r\n\r\n", [(b"", b"a"), (b"", b"b")]), data=None)
def test_any_split_gives_the_same_events(stream: tuple[bytes, list[Event]], data: st.DataObject | None) -> None:
    written, expected = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8))) if data else range(len(written) + 1)
    bounds = [0, *cuts, len(written)]
    assert read(*(written[start:stop] for start, stop in pairwise(bounds))) == expected
    assert read(written) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"data:a\n\n", [(b"", b"a")]),
        (b"data:  a\n\n", [(b"", b" a")]),
        (b"event: ping\ndata: {}\n\n", [(b"ping", b"{}")]),
        (b"data: one\ndata: two\n\n", [(b"", b"one\ntwo")]),
        (b": waiting\n\ndata: a\n\n", [(b"", b"a")]),
        (b"event: ping\n\ndata: a\n\n", [(b"", b"a")]),
        (b"\n\n\n\ndata: a\n\n\n\n", [(b"", b"a")]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\r\rdata: b\r\r", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\n\ndata: the last", [(b"", b"a"), (b"", b"the last")]),
        (b"data: a\n", [(b"", b"a")]),
        (b"data\n\n", [(b"", b"")]),
        (b"datum: a\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"\xef\xbb\xbfdata: a", [(b"", b"a")]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [(b"", b"a")]),
        (b"", []),
    ],
)
def test_events_are_read_as_the_standard_says(written: bytes, expected: list[Event]) -> None:
    assert read(written) == expected
    assert read(*(written[at : at + 1] for at in range(len(written)))) == expected


def test_an_event_is_given_out_as_soon_as_it_is_whole() -> None:
    reader = SseReader()
    assert reader.feed(b"data: a\n") == []
    assert reader.feed(b"\nda") == [(b"", b"a")]
    assert reader.feed(b"ta: b\r\n\r") == []
    assert reader.feed(b"\n") == [(b"", b"b")]


def test_an_event_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1_000)
    reader = SseReader()
    reader.feed(b"data: " + b"x" * 500)
    with pytest.raises(BadReply, match="more than 1000 bytes"):
        reader.feed(b"x" * 600)


@pytest.mark.slow
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_of_very_many_lines_takes_no_longer_than_its_length(end: bytes) -> None:
    """Joined anew with every line, it would take longer than any test may."""
    reader, lines = SseReader(), 200_000
    for _ in range(lines):
        assert reader.feed(b"data: a line" + end) == []
    events = reader.feed(end) + reader.close()
    assert events == [(b"", b"\n".join([b"a line"] * lines))]
