"""Calls that wait for a human or for the client: what was asked, and whether an answer fits the question."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.context import cut_content
from holdfast.core.messages import Approve, ClientReturn, Decision, ToolCall
from holdfast.errors import Conflict, Invalid


class HeldCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """`note` is set on a sibling that was refused when the model made it; it is told so once the hold is decided."""

    call: ToolCall
    asks: bool  # False: a sibling of the same reply that needs no decision and waits with the others
    client: bool = False  # only the client can run it
    version: int = 0  # of the tool, when it was asked
    note: str | None = None


class Hold(msgspec.Struct, frozen=True):
    request_id: str  # the approval request message
    step_id: str
    calls: tuple[HeldCall, ...]  # in the order of the reply

    @property
    def asked_ids(self) -> tuple[str, ...]:
        return tuple(held.call.id for held in self.calls if held.asks)


def check_answer(hold: Hold, decisions: Sequence[Decision], versions: dict[str, int]) -> tuple[Decision, ...]:
    """The decisions in the order of the calls; raises when they do not answer exactly what was asked.

    `versions` are the current versions of the tools by name: an approval is for the tool as it was when asked.
    """
    if not decisions:
        raise Invalid("Invalid approval response. Approval response message does not contain any approvals.")
    if len(hold.asked_ids) == 1 and len(decisions) == 1 and decisions[0].call_id == hold.request_id:
        decisions = (msgspec.structs.replace(decisions[0], call_id=hold.asked_ids[0]),)
    given = [decision.call_id for decision in decisions]
    if sorted(given) != sorted(hold.asked_ids):
        raise Invalid(f"Invalid tool call IDs. Expected '{list(hold.asked_ids)}', but received '{given}'.")
    by_id = {decision.call_id: decision for decision in decisions}
    for held in hold.calls:
        decision = by_id.get(held.call.id)
        if isinstance(decision, Approve):
            _check_approvable(held, versions)
    return tuple(by_id[call_id] for call_id in hold.asked_ids)


def answers_same_calls(hold: Hold, decisions: Sequence[Decision]) -> bool:
    """Whether this is the same answer sent again, for a hold that is decided already."""
    given = {decision.call_id for decision in decisions}
    return given == set(hold.asked_ids) or given == {hold.request_id}


def cut_answer(decision: Decision, limit: int) -> Decision:
    """A client's return is stored no longer than what a model would be shown of it."""
    if not isinstance(decision, ClientReturn):
        return decision
    return msgspec.structs.replace(decision, content=cut_content(decision.content, limit))


def client_answers(decisions: Sequence[Decision]) -> dict[str, ClientReturn]:
    return {decision.call_id: decision for decision in decisions if isinstance(decision, ClientReturn)}


def _check_approvable(held: HeldCall, versions: dict[str, int]) -> None:
    name = held.call.name
    if held.client:
        raise Invalid(
            f"The client tool '{name}' must be answered with a tool return: the server cannot execute it. "
            f'Send {{"type": "tool", "tool_call_id": "{held.call.id}", "tool_return": …, "status": "success"}}.'
        )
    if name in versions and versions[name] != held.version:
        raise Conflict(
            f"CONFLICT: The tool '{name}' was changed after approval was asked for call {held.call.id}. "
            "Deny the call, or cancel the run, and let the agent ask again."
        )
