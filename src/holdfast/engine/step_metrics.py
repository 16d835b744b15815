"""What is known of the step at hand, whatever becomes of the draft: who serves it, what it costs, how long it takes.

Starting over undoes decisions, not time. A call that was made has taken what it took, also when a cancel overtakes its
reply, and so have tools that were killed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import ids
from holdfast.core.records import ModelChoice, Run, Step
from holdfast.core.usage import Price
from holdfast.llm.base import ModelInfo


def pending_step(
    run: Run,
    model: ModelChoice,
    number: int,
    now_us: int,
    provider_name: str | None = None,
    endpoint: str | None = None,
) -> Step:
    """The record of a model call that is about to be made."""
    return Step(
        id=ids.derive("step", run.id, number),
        run_id=run.id,
        agent_id=run.agent_id,
        number=number,
        status="pending",
        model_handle=model.handle,
        context_window_limit=model.context_window,
        provider_name=provider_name or model.handle.partition("/")[0],
        provider_category=model.provider_category,
        model_endpoint=endpoint,
        created_us=now_us,
        step_start_ns=now_us * 1_000,
    )


class StepMetrics(msgspec.Struct):
    step_id: str
    began_ns: int = 0  # when the step began, by the monotonic clock of this process
    serving: dict[str, Any] = {}  # columns of the step that tell who answers
    price: Price | None = None
    prompt_guess: int = 0  # tokens of the request at hand, for when nobody will tell how many they were
    llm_request_start_ns: int | None = None  # a time of day
    llm_request_ns: int | None = None
    ttft_ns: int | None = None
    tool_execution_ns: int | None = None
    failed_tries: list[dict[str, Any]] = []  # what traced tries before the present one ended with

    @classmethod
    def of(cls, step: Step, began_ns: int) -> StepMetrics:
        """Carries on where an earlier process, or an earlier try, has stopped."""
        return cls(
            step.id,
            began_ns,
            llm_request_start_ns=step.llm_request_start_ns,
            llm_request_ns=step.llm_request_ns,
            ttft_ns=step.ttft_ns,
            tool_execution_ns=step.tool_execution_ns,
        )

    def served_by(self, info: ModelInfo) -> None:
        self.price = info.price
        self.serving = {
            "provider_name": info.provider_name,
            "provider_category": info.provider_category,
            "model_endpoint": info.endpoint,
        }

    def asking_model(self, at_us: int) -> None:
        if self.llm_request_start_ns is None:
            self.llm_request_start_ns = at_us * 1_000

    def asked_model(self, started_ns: int, first_ns: int | None, ended_ns: int) -> None:
        """One try. Pauses between tries are not the model's; the first content is that of the last try that had any."""
        self.llm_request_ns = (self.llm_request_ns or 0) + ended_ns - started_ns
        if first_ns is not None:
            self.ttft_ns = first_ns - started_ns

    def ran_tools(self, took_ns: int) -> None:
        """Tools that ran together are given once, with the time that all of them took."""
        self.tool_execution_ns = (self.tool_execution_ns or 0) + took_ns

    def columns(self) -> dict[str, Any]:
        return self.serving | {
            "llm_request_start_ns": self.llm_request_start_ns,
            "llm_request_ns": self.llm_request_ns,
            "ttft_ns": self.ttft_ns,
            "tool_execution_ns": self.tool_execution_ns,
        }
