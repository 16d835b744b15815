from __future__ import annotations

from letta_client.types.agents.letta_response import LettaResponse

from holdfast.core.messages import Summary, Text, ToolReturn
from holdfast.core.usage import Usage
from holdfast.wire.responses import error_message, letta_response, live_messages, usage_statistics

from .examples import RUN, as_event, check_shape, row, through_sdk

MADE = [
    row("user", Text("Where is the key?")),
    row("tool", ToolReturn("call_7", "find_item", "success", "mat")),
    row("summary", Summary("Keys.", shown=True)),
    row("assistant", Text("Under the mat.")),
]


def test_an_answer_holds_what_the_run_made_and_how_it_ended() -> None:
    answer = letta_response(MADE, "end_turn", Usage(70, 5), step_count=2, context_tokens=75)
    assert [message["message_type"] for message in answer["messages"]] == ["tool_return_message", "assistant_message"]
    assert answer["stop_reason"] == {"message_type": "stop_reason", "stop_reason": "end_turn"}
    assert answer["usage"] == {
        "message_type": "usage_statistics",
        "completion_tokens": 5,
        "prompt_tokens": 70,
        "total_tokens": 75,
        "step_count": 2,
        "run_ids": None,
        "cached_input_tokens": None,
        "cache_write_tokens": None,
        "reasoning_tokens": None,
        "context_tokens": 75,
    }
    assert (answer["logprobs"], answer["turns"]) == (None, None)


def test_the_client_reads_an_answer() -> None:
    answer = letta_response(MADE, "requires_approval", Usage(70, 5), step_count=1, include_compaction=True)
    read = through_sdk(LettaResponse, answer)
    assert read.stop_reason.stop_reason == "requires_approval"
    assert [message.message_type for message in read.messages] == [
        "tool_return_message",
        "summary_message",
        "assistant_message",
    ]
    assert read.usage.total_tokens == 75


def test_an_answer_is_filtered_by_the_types_asked_for() -> None:
    (shown,) = live_messages(MADE, include_types={"assistant_message"})
    assert shown["content"] == "Under the mat."


def test_usage_tells_a_silent_vendor_from_one_that_said_zero() -> None:
    shown = usage_statistics(Usage(1, 2, 0, None, 7), step_count=1, run_ids=[RUN])
    check_shape(shown)
    assert (shown["cached_input_tokens"], shown["cache_write_tokens"], shown["reasoning_tokens"]) == (0, None, 7)
    assert shown["run_ids"] == [RUN]


def test_an_error_keeps_its_type_and_the_vendors_words() -> None:
    kept = {"error_type": "llm_timeout", "message": "model did not answer", "detail": "60s", "run_id": RUN}
    shown = error_message(kept, "run-other", seq_id=4)
    check_shape(shown)
    assert shown == {"message_type": "error_message", "seq_id": 4} | kept
    assert as_event(shown).detail == "60s"


def test_an_error_that_says_little_is_still_complete() -> None:
    shown = error_message({"detail": ""}, RUN)
    check_shape(shown)
    assert (shown["error_type"], shown["run_id"], shown["detail"]) == ("internal_error", RUN, "")
    assert "seq_id" not in shown and "detail" not in error_message({}, RUN)
