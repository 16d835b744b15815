"""Calls that wait for a human or for the client: what was asked, of which very tool, and whether an answer fits."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.core.messages import Approve, ClientReturn, Decision, ToolCall
from holdfast.core.model_history import cut_content
from holdfast.core.records import MCP_TAG, Tool
from holdfast.errors import Conflict, Invalid

# Everything else of a tool is part of its hash, so that a field added later is covered as soon as it is used.
# Tags are part of it: some of them, such as retry-safe, change how a tool is run.
_NOT_HASHED: Final = frozenset(
    {
        "id",
        "version",
        "return_char_limit",
        "default_requires_approval",
        "enable_parallel_execution",
        "metadata",
        "project_id",
        "created_us",
        "updated_us",
    }
)
_HASHED: Final = tuple(name for name in Tool.__struct_fields__ if name not in _NOT_HASHED)


class HeldCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """`note` is set on a sibling that was refused when the model made it: what it is told once the hold is decided."""

    call: ToolCall
    asks: bool  # False: a sibling of the same reply that needs no decision and waits with the others
    client: bool = False  # only the client can run it
    version: int = 0  # of the tool, when it was asked
    note: str | None = None
    # None for a client tool, a sibling, and in a hold that was stored before tools were identified by more than these.
    tool: ToolIdentity | None = None


class Hold(msgspec.Struct, frozen=True, omit_defaults=True):
    request_id: str  # the approval request message
    step_id: str
    calls: tuple[HeldCall, ...]  # in the order of the reply
    # The agent's secrets when it was asked, by name: the id of each, which changes when its value does. None when no
    # tool that asks gets any, and in a hold that was stored before this was remembered.
    secrets: dict[str, str] | None = None

    @property
    def asked_ids(self) -> tuple[str, ...]:
        return tuple(held.call.id for held in self.calls if held.asks)


class HeldTools(msgspec.Struct, frozen=True):
    """What is known of the tools that a hold asks about, when it is made."""

    identities: dict[str, ToolIdentity] = {}  # by the name that they were called by
    secrets: dict[str, str] | None = None  # as the hold remembers them

    def remembered_in(self, hold: Hold) -> Hold:
        calls = tuple(self._identified(held) for held in hold.calls)
        return msgspec.structs.replace(hold, calls=calls, secrets=self.secrets)

    def _identified(self, held: HeldCall) -> HeldCall:
        """A sibling that asks for nothing is held to no tool: it needs no approval."""
        identity = self.identities.get(held.call.name) if held.asks and not held.client else None
        return msgspec.structs.replace(held, tool=identity)


NO_TOOLS: Final = HeldTools()


def check_answer(hold: Hold, decisions: Sequence[Decision], tools: Mapping[str, ToolIdentity]) -> tuple[Decision, ...]:
    """The decisions in the order of the calls; raises when they do not answer exactly what was asked.

    `tools` are those that the agent has now, by name: an approval is for the tool as it was when asked. A tool that is
    gone may be approved: nothing runs, and the model is told that it was not found.
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
            _check_approvable(held, tools)
    return tuple(by_id[call_id] for call_id in hold.asked_ids)


def _check_approvable(held: HeldCall, tools: Mapping[str, ToolIdentity]) -> None:
    name = held.call.name
    if held.client:
        raise Invalid(
            f"The client tool '{name}' must be answered with a tool return: the server cannot execute it. "
            f'Send {{"type": "tool", "tool_call_id": "{held.call.id}", "tool_return": …, "status": "success"}}.'
        )
    current = tools.get(name)
    if current is None:
        return
    instead = "Deny the call, or cancel the run, and let the agent ask again."
    if held.tool is not None and held.tool.tool_id != current.tool_id:
        raise Conflict(
            f"CONFLICT: The name '{name}' belongs to another tool now than when approval was asked for call "
            f"{held.call.id}. {instead}"
        )
    if current.version != held.version or (held.tool is not None and held.tool != current):
        raise Conflict(
            f"CONFLICT: The tool '{name}' was changed after approval was asked for call {held.call.id}: its code, its "
            f"schema, its requirements, its tags or the names of the secrets that it gets. {instead}"
        )


def changed_secrets(hold: Hold, current: Mapping[str, str]) -> list[str]:
    """The names of the secrets that were changed, added or removed since it was asked. `current`: their ids by name."""
    if hold.secrets is None:
        return []
    names = hold.secrets.keys() | current.keys()
    return sorted(name for name in names if hold.secrets.get(name) != current.get(name))


def run_names(hold: Hold, decisions: Sequence[Decision]) -> frozenset[str]:
    """The names of the tools that an answer lets the server run: those approved, and siblings that ask for nothing."""
    approved = {decision.call_id for decision in decisions if isinstance(decision, Approve)}
    return frozenset(
        held.call.name for held in hold.calls if not held.client and (not held.asks or held.call.id in approved)
    )


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


class ToolIdentity(msgspec.Struct, frozen=True):
    """What makes a tool that very tool: its id, its version and a hash over what it runs and what an approver is shown.

    It is worked out only where an approval is asked for, answered or carried out; other calls do not need it.
    `fingerprint` is None when the tool was gone already when its approval was asked for.
    """

    tool_id: str
    version: int
    fingerprint: str | None


def identity_of(tool: Tool, secret_names: Collection[str], attached: Iterable[Tool] = ()) -> ToolIdentity:
    """`secret_names`, `attached`: the secrets and the tools of the agent that it runs for."""
    return ToolIdentity(tool.id, tool.version, fingerprint(tool, secret_names, attached))


def fingerprint(tool: Tool, secret_names: Collection[str], attached: Iterable[Tool] = ()) -> str:
    parts: dict[str, Any] = {name: getattr(tool, name) for name in _HASHED}
    # The tag that names the MCP server is left out: the tool is bound to the server's id, and its name may change.
    parts["tags"] = sorted(tag for tag in tool.tags if not (tool.mcp_server_id and tag.startswith(MCP_TAG)))
    parts["secrets"] = sorted(secret_names) if tool.gets_secrets else []
    if tool.calls_others:
        parts["calls"] = sorted(fingerprint(other, secret_names) for other in attached if not other.calls_others)
    # An empty field counts as one that is not there: adding a field changes no hash that is stored already.
    present = {name: value for name, value in parts.items() if value not in (None, [], {}, "")}
    return hashlib.sha256(msgspec.json.encode(present, order="deterministic")).hexdigest()
