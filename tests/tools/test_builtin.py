from __future__ import annotations

import ast
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.core import memory
from holdfast.core.messages import AnyPart, Deny, Image, Message, Reasoning, Role, Text, Thoughts, ToolCall, ToolReturn
from holdfast.errors import ToolFailed
from holdfast.tools import agents, archival, builtin, files, history, voice
from holdfast.tools.history import Query, conversation_search

NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
_ARGUMENTS = {
    "core_memory_append": memory.CoreMemoryAppend,
    "core_memory_replace": memory.CoreMemoryReplace,
    "memory": memory.MemoryCommand,
    "memory_apply_patch": memory.MemoryApplyPatch,
    "memory_replace": memory.MemoryReplace,
    "memory_insert": memory.MemoryInsert,
    "memory_rethink": memory.MemoryRethink,
    "memory_finish_edits": memory.FinishEdits,
    "conversation_search": history.SearchArguments,
    "archival_memory_insert": archival.Insertion,
    "open_files": files.OpenArguments,
    "grep_files": files.GrepArguments,
    "semantic_search_files": files.SearchArguments,
    "store_memories": voice.StoreArguments,
    "rethink_user_memory": memory.RethinkUserMemory,
    "finish_rethinking_memory": memory.FinishEdits,
    "search_memory": voice.SearchArguments,
}


def us(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def row(role: Role, *parts: AnyPart | str, at: datetime = NOW) -> Message:
    made = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    return Message(id="m", role=role, parts=made, created_us=us(at))


class Rows:
    """A history that gives what it is asked for, and remembers how it was asked."""

    def __init__(self, *rows: Message) -> None:
        self.rows = rows
        self.asked: list[tuple[Query, int]] = []

    async def __call__(self, query: Query, limit: int) -> Sequence[Message]:
        self.asked.append((query, limit))
        return [row for row in self.rows if row.role in query.roles][:limit]


async def search(rows: Rows, timezone: str = "UTC", **arguments: Any) -> dict[str, Any]:
    return ast.literal_eval(await conversation_search(arguments, rows, timezone=timezone, now_us=us(NOW)))


async def contents(rows: Rows, **arguments: Any) -> list[str]:
    return [result["content"] for result in (await search(rows, **arguments))["results"]]


class TestTheShippedTools:
    @pytest.mark.parametrize("name", builtin.TOOLS)
    def test_describe_themselves_and_every_argument(self, name: str) -> None:
        tool = builtin.TOOLS[name]
        parameters = tool.json_schema["parameters"]
        assert tool.json_schema["name"] == name
        assert tool.json_schema["description"] == tool.description
        assert tool.tags == (tool.tool_type,)
        assert set(parameters["required"]) <= set(parameters["properties"])
        assert all(about["description"] for about in parameters["properties"].values())

    @pytest.mark.parametrize("name", _ARGUMENTS)
    def test_promise_the_arguments_that_they_take(self, name: str) -> None:
        assert set(builtin.TOOLS[name].json_schema["parameters"]["properties"]) == set(
            _ARGUMENTS[name].__struct_fields__
        )

    def test_are_all_carried_out_somewhere(self) -> None:
        outside = {"run_code", "run_code_with_tools", "web_search", "fetch_webpage", *agents.NAMES}
        inside = {history.NAME, archival.INSERT, archival.SEARCH, voice.STORE, voice.SEARCH, *files.NAMES}
        others = {"send_message", *inside, *outside}
        assert set(builtin.TOOLS) == {*memory.TOOLS, *others}

    def test_know_which_of_them_may_run_side_by_side(self) -> None:
        safe = [name for name, tool in builtin.TOOLS.items() if tool.parallel_safe]
        assert safe == [
            "conversation_search",
            "archival_memory_search",
            "run_code",
            "web_search",
            "fetch_webpage",
            "grep_files",
            "semantic_search_files",
        ]


class TestConversationSearch:
    async def test_shows_when_and_who_and_what(self) -> None:
        rows = Rows(row("user", "I like tea", at=datetime(2026, 3, 10, 11, 59, 48, tzinfo=UTC)))
        assert await search(rows, "Europe/Rome", query="TEA") == {
            "message": "Showing 1 results:",
            "results": [
                {
                    "timestamp": "2026-03-10T12:59:48+01:00",
                    "time_ago": "12s ago",
                    "role": "user",
                    "relevance": {"search_mode": "sql"},
                    "content": "I like tea",
                }
            ],
        }

    async def test_shows_what_was_thought_beside_what_was_said(self) -> None:
        said = row("assistant", Thoughts("greet"), ToolCall("c", "send_message", '{"message": "hello"}'))
        only_thought = row("assistant", Thoughts("look it up"), ToolCall("c", "lookup", "{}"))
        first, second = (await search(Rows(said, only_thought)))["results"]
        assert list(first) == ["timestamp", "time_ago", "role", "relevance", "thinking", "content"]
        assert (first["thinking"], first["content"]) == ("greet", "hello")
        assert ("thinking" in second, second["content"]) == (False, "look it up")

    async def test_shows_notices_member_by_member_and_no_heartbeats(self) -> None:
        login = row("user", '{"type": "login", "role": "x", "last_login": "Never"}')
        heartbeat = row("user", '{"type": "heartbeat", "reason": "go on"}')
        (result,) = (await search(Rows(heartbeat, login), limit=1))["results"]
        assert "content" not in result
        assert (result["type"], result["role"], result["last_login"]) == ("login", "user", "Never")
        assert await contents(Rows(row("user", "{not json"), row("user", "[1]"))) == ["{not json", "[1]"]

    async def test_says_when_there_is_nothing(self) -> None:
        assert await search(Rows(), query="tea") == {"message": "No results found.", "results": []}

    @pytest.mark.parametrize(
        ("at", "expected"),
        [
            (datetime(2026, 3, 10, 11, 57, tzinfo=UTC), "3m ago"),
            (datetime(2026, 3, 10, 7, 0, tzinfo=UTC), "5h ago"),
            (datetime(2026, 3, 1, 7, 0, tzinfo=UTC), "9d ago"),
            (datetime(2026, 3, 10, 12, 1, tzinfo=UTC), "0s ago"),
        ],
    )
    async def test_tells_how_long_ago_it_was(self, at: datetime, expected: str) -> None:
        (result,) = (await search(Rows(row("user", "x", at=at))))["results"]
        assert result["time_ago"] == expected

    @pytest.mark.parametrize("name", ["conversation_search", "search_memory"])
    async def test_leaves_out_earlier_searches_before_it_counts(self, name: str) -> None:
        searching = row("assistant", "I will look for tea", ToolCall("c", name, "{}"))
        found = row("tool", ToolReturn("c", name, "success", "tea"))
        rows = Rows(*[searching, found] * 20, *(row("user", f"tea {number}") for number in range(4)))
        answer = await search(rows, query="tea", limit=3, roles=["user", "assistant", "tool"])
        assert answer["message"] == "Showing 3 results:"
        assert [result["content"] for result in answer["results"]] == ["tea 0", "tea 1", "tea 2"]

    async def test_of_a_row_of_returns_shows_only_those_that_are_no_search_results(self) -> None:
        both = row(
            "tool",
            ToolReturn("c", "conversation_search", "success", "tea"),
            ToolReturn("d", "brew", "success", (Text("tea is ready"), Image("image/png", ""))),
        )
        assert await contents(Rows(both), query="tea", roles=["tool"]) == ["tea is ready [Image omitted]"]

    async def test_does_not_show_a_row_whose_match_is_not_shown(self) -> None:
        both = row(
            "tool",
            ToolReturn("c", "conversation_search", "success", "tea"),
            ToolReturn("d", "brew", "success", "milk"),
        )
        assert await contents(Rows(both), query="tea", roles=["tool"]) == []

    async def test_shows_rows_without_words_to_nobody(self) -> None:
        rows = Rows(row("approval", Deny("c", "no")), row("assistant", Reasoning("hm"), ToolCall("c", "brew", "{}")))
        assert await contents(rows) == []

    async def test_looks_at_people_and_itself_unless_told_otherwise(self) -> None:
        rows = Rows(row("tool", ToolReturn("d", "brew", "success", "3")), row("user", "1"), row("assistant", "2"))
        assert await contents(rows) == ["1", "2"]
        assert await contents(rows, roles=["tool"]) == ["3"]
        assert await contents(rows, roles=[]) == ["1", "2"]

    async def test_counts_a_reply_that_waited_for_approval_as_the_assistants(self) -> None:
        (result,) = (await search(Rows(row("approval", "May I?", ToolCall("c", "brew", "{}"))), roles=["assistant"]))[
            "results"
        ]
        assert (result["role"], result["content"]) == ("assistant", "May I?")

    async def test_shows_five_unless_told_otherwise_and_never_more_than_a_hundred(self) -> None:
        rows = Rows(*[row("user", "tea")] * 300)
        assert len(await contents(rows)) == 5
        assert len(await contents(rows, limit="7")) == 7
        assert len(await contents(rows, limit=1_000)) == 100

    @pytest.mark.parametrize(
        ("given", "start", "end"),
        [
            ("2026-03-01", "2026-02-28T23:00:00+00:00", "2026-03-01T22:59:59.999999+00:00"),
            ("2026-03-29", "2026-03-28T23:00:00+00:00", "2026-03-29T21:59:59.999999+00:00"),  # summer time begins
            ("2026-03-01T09:30", "2026-03-01T08:30:00+00:00", "2026-03-01T08:30:59.999999+00:00"),
            (" 2026-03-01T09:30:15Z ", "2026-03-01T09:30:15+00:00", "2026-03-01T09:30:15+00:00"),
        ],
    )
    async def test_takes_dates_in_the_agents_time_zone_and_to_their_end(self, given: str, start: str, end: str) -> None:
        rows = Rows()
        await search(rows, "Europe/Rome", start_date=given, end_date=given)
        ((query, _),) = rows.asked
        assert query.start_us == _exact_us(start)
        assert query.end_us == _exact_us(end)

    async def test_without_dates_looks_at_all_times(self) -> None:
        rows = Rows()
        await search(rows, query="", start_date="", end_date=None)
        assert rows.asked == [
            (Query(text=None, roles=("assistant", "approval", "user"), start_us=None, end_us=None), 5)
        ]

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            ({"start_date": "yesterday"}, "Invalid start_date format: yesterday. Use ISO 8601"),
            ({"limit": 0}, "limit must be at least 1"),
            ({"roles": ["system"]}, "do not fit"),
            ({"words": "tea"}, "unknown field `words`"),
        ],
    )
    async def test_says_what_is_wrong_with_its_arguments(self, arguments: dict[str, Any], why: str) -> None:
        with pytest.raises(ToolFailed, match=why):
            await search(Rows(), **arguments)


def _exact_us(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int(moment.replace(microsecond=0).timestamp()) * 1_000_000 + moment.microsecond


async def test_a_search_for_a_text_longer_than_a_pattern_may_be_is_an_error_that_the_model_hears() -> None:
    with pytest.raises(ToolFailed, match="query has 60000 characters; search for at most 5000"):
        await search(Rows(), query="a" * 60_000)
    assert (await search(Rows(), query="a" * 5_000))["results"] == []
