from __future__ import annotations

from holdfast.core.messages import Message, Text
from holdfast.core.model_history import HistoryBuilder
from holdfast.engine.run_loading import Windows


def window(size: int) -> list[Message]:
    return [Message(id=f"message-{each}", role="user", parts=(Text("hi"),), created_us=0) for each in range(size)]


def test_a_window_is_good_only_while_its_thread_ends_where_it_ended() -> None:
    windows, kept = Windows(), window(3)
    windows.keep("thread", 3, kept, HistoryBuilder())
    assert windows.of("thread", 3) is kept
    assert windows.of("thread", 4) is None
    assert windows.of("another", 3) is None


def test_a_newer_window_takes_the_place_of_the_older_one() -> None:
    windows, newer = Windows(), window(4)
    windows.keep("thread", 3, window(3), HistoryBuilder())
    windows.keep("thread", 4, newer, HistoryBuilder())
    assert windows.of("thread", 3) is None
    assert windows.of("thread", 4) is newer


def test_windows_that_were_not_used_for_longest_make_room() -> None:
    windows = Windows(most_messages=10)
    windows.keep("first", 4, window(4), HistoryBuilder())
    windows.keep("second", 4, window(4), HistoryBuilder())
    assert windows.of("first", 4)
    windows.keep("third", 4, window(4), HistoryBuilder())
    assert (windows.of("first", 4) is None, windows.of("second", 4) is None) == (False, True)


def test_a_window_that_is_too_large_is_not_kept() -> None:
    windows = Windows(most_messages=10)
    windows.keep("small", 4, window(4), HistoryBuilder())
    windows.keep("large", 11, window(11), HistoryBuilder())
    assert windows.of("large", 11) is None
    windows.keep("small", 4, window(4), HistoryBuilder())
    assert windows.of("small", 4)


def test_a_history_is_told_on_where_the_last_run_ended_even_if_the_window_changed() -> None:
    windows, told = Windows(), HistoryBuilder()
    windows.keep("thread", 3, window(3), told)
    assert windows.history_builder_of("thread") is told
    assert windows.history_builder_of("another") is not told


def test_windows_make_room_by_what_their_messages_weigh() -> None:
    windows = Windows(most_bytes=10_000_000)
    heavy = Message(id="message-1", role="user", parts=(Text("x" * 6_000_000),), created_us=0)
    windows.keep("a", 1, [heavy], HistoryBuilder())
    windows.keep("a", 2, [heavy], HistoryBuilder())
    assert windows.of("a", 2) == [heavy]
    windows.keep("b", 1, [heavy], HistoryBuilder())
    assert windows.of("a", 2) is None
    assert windows.of("b", 1) == [heavy]
