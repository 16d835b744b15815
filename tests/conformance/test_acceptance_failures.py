"""When the model fails: the same story in every mode, on the run, in the stream and in the answer."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from letta_client import AsyncLetta

from tests.conformance.checks import (
    check_next_message_works,
    check_told_is_stored,
    read_agent,
    read_run,
    rows,
    steps_of,
)
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import Json, Mode, Outcome, in_modes, send

GENERIC = "An error occurred with the LLM request."


class Expected(NamedTuple):
    status: int
    error_type: str
    body_type: str | None  # of a blocking answer; None: it has only a detail
    message: str
    stop_reason: str = "llm_api_error"


TABLE = {
    "timeout": Expected(504, "llm_timeout", "llm_timeout", "The LLM request timed out. Please try again."),
    "rate_limit": Expected(
        429,
        "llm_rate_limit",
        "llm_rate_limit",
        "Rate limit exceeded for LLM model provider. Please wait before making another request.",
    ),
    "auth": Expected(
        401, "llm_authentication", "llm_authentication", "Authentication failed with the LLM model provider."
    ),
    "server": Expected(500, "llm_error", "llm_error", GENERIC),
    "runtime": Expected(
        500, "internal_error", None, "An unknown error occurred with the LLM streaming request.", "error"
    ),
}
RARER = {
    "quota": Expected(402, "llm_error", "llm_insufficient_credits", GENERIC),
    "bad_request": Expected(400, "llm_error", "llm_bad_request", GENERIC),
    "overloaded": Expected(503, "llm_error", None, GENERIC),
    "empty": Expected(
        500, "llm_empty_response", "llm_error", "LLM returned an empty response.", "invalid_llm_response"
    ),
    "malformed": Expected(
        400, "internal_error", None, "The model's response could not be understood.", "invalid_llm_response"
    ),
}


async def check_failure(
    client: AsyncLetta, agent: str, mode: Mode, kind: str, expected: Expected, *, after_tool: bool
) -> None:
    said = f"Call print_tool with 'x' [[error:{kind}@2]]" if after_tool else f"Hello [[error:{kind}]]"

    failed = await send(client, mode, agent, f"{said} [[message:TEST: as told]]")

    check_told(failed, await read_run(client, failed.run_id), expected)
    assert (await read_agent(client, agent))["last_stop_reason"] == expected.stop_reason
    await check_failed_steps(client, agent, failed.run_id, after_tool=after_tool)
    await check_told_is_stored(client, agent, failed)


def check_told(failed: Outcome, run: Json, expected: Expected) -> None:
    """One story, in the answer, in the stream and on record."""
    assert failed.stop_reason == expected.stop_reason
    assert (run["status"], run["stop_reason"]) == ("failed", expected.stop_reason)
    error = run["metadata"]["error"]
    assert error["error_type"] == expected.error_type
    assert error["message"] == expected.message
    assert "TEST: as told" in error["detail"]
    assert error["run_id"] == failed.run_id
    assert run["metadata"]["run_type"].startswith("send_message")
    assert "TEST: as told" in failed.error_text
    if failed.mode == "blocking":
        assert failed.status == expected.status
        if expected.body_type:
            assert failed.error["error"]["type"] == expected.body_type
            assert failed.error["error"]["message"] == expected.message
        else:
            assert "TEST: as told" in failed.error["detail"]
    elif failed.mode != "async":
        assert failed.status == 200
        assert failed.error["message_type"] == "error_message"
        assert {name: failed.error[name] for name in ("error_type", "message", "detail", "run_id")} == {
            name: error[name] for name in ("error_type", "message", "detail", "run_id")
        }


async def check_failed_steps(client: AsyncLetta, agent: str, run_id: str | None, *, after_tool: bool) -> None:
    """Finished steps stay; the failed one stored nothing; the input is never lost."""
    steps = await steps_of(client, run_id)
    assert [step["status"] for step in steps] == (["success", "failed"] if after_tool else ["failed"])
    assert steps[-1]["error_type"]
    assert steps[-1]["error_data"]["message"]
    kept = ["user_message", "reasoning_message", "tool_call_message", "tool_return_message"]
    assert await rows(client, agent) == (kept if after_tool else kept[:1])
    await check_next_message_works(client, agent)


@in_modes("BSTGA", adapters="T")
@pytest.mark.parametrize("kind", TABLE)
async def test_a18_a_failure_at_the_start_is_told_and_recorded(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode, kind: str
) -> None:
    await check_failure(client, await make_agent(), mode, kind, TABLE[kind], after_tool=False)


@in_modes("BSTGA", adapters="T")
@pytest.mark.parametrize("kind", TABLE)
async def test_a18_a_failure_after_a_tool_keeps_what_the_tool_did(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode, kind: str
) -> None:
    await check_failure(client, await make_agent("print_tool"), mode, kind, TABLE[kind], after_tool=True)


@in_modes("BSTGA", adapters="T")
@pytest.mark.parametrize("kind", RARER)
async def test_a18_the_rarer_failures_have_their_own_names(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode, kind: str
) -> None:
    await check_failure(client, await make_agent(), mode, kind, RARER[kind], after_tool=False)


@in_modes("BSTGA", adapters="T")
async def test_a18_a_context_that_stays_too_long_is_told_and_recorded(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()

    failed = await send(
        client, mode, agent, "Hello [[error:context]] [[summary_error:context]] [[message:TEST: as told]]"
    )

    run = await read_run(client, failed.run_id)
    told = run["metadata"]["error"]["detail"]  # table 10: the detail is what a stream says of it
    check_told(failed, run, Expected(400, "internal_error", None, told, "error"))
    assert "CONTEXT_WINDOW_EXCEEDED: " in failed.error_text
    steps = await steps_of(client, failed.run_id)
    assert [(step["status"], step["error_type"]) for step in steps] == [("failed", "ContextTooLong")]


@in_modes("BSTGA")
async def test_a18_a_system_prompt_that_is_too_long_is_told_and_recorded(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent(system="TEST: as told. " * 800, context_window_limit=2_000)
    kind = "context_window_overflow_in_system_prompt"

    failed = await send(client, mode, agent, "Hello")

    run = await read_run(client, failed.run_id)
    assert (run["status"], run["stop_reason"], failed.stop_reason) == ("failed", kind, kind)
    assert run["metadata"]["error"]["error_type"] == kind
    assert "shorten the instructions, memory blocks or tools" in run["metadata"]["error"]["message"]
    assert failed.status == (400 if mode == "blocking" else 200)
    assert "CONTEXT_WINDOW_EXCEEDED: " in failed.error_text


@in_modes("BSTGA", adapters="T")
async def test_a18_a_reply_of_nothing_at_all_is_told_and_recorded(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()

    failed = await send(client, mode, agent, "[[empty]] [[usage:9,0]]")

    run = await read_run(client, failed.run_id)
    assert (run["status"], failed.stop_reason) == ("failed", "invalid_llm_response")
    assert run["metadata"]["error"]["error_type"] == "llm_empty_response"
    assert failed.status == (500 if mode == "blocking" else 200)
    await check_next_message_works(client, agent)


@in_modes("TG", adapters="T")
async def test_a18_a_failure_amid_the_answer_is_told_as_what_it_is(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()

    failed = await send(client, mode, agent, "[[no_reasoning]] [[tokens:9]] [[error:timeout]] [[error_after:4]]")

    assert failed.error["error_type"] == "llm_timeout"
    assert failed.stop_reason == "llm_api_error"
    run = await read_run(client, failed.run_id)
    assert run["status"] == "failed"
    assert run["metadata"]["error"]["error_type"] == "llm_timeout"
    assert await rows(client, agent) == ["user_message"]
    await check_next_message_works(client, agent)


@in_modes("BSTGA", adapters="T")
async def test_a_tool_that_fails_is_the_models_business_not_the_runs(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("broken_tool")

    told = await send(client, mode, agent, "Call broken_tool with 'no such luck'")

    back = told.only("tool_return_message")
    assert back["status"] == "error"
    assert back["tool_return"] == "Error executing function broken_tool: ValueError: no such luck"
    assert "Traceback" in "".join(back["stderr"])
    assert told.stop_reason == "end_turn"
    await check_told_is_stored(client, agent, told)
    await check_next_message_works(client, agent)
