"""What a new agent's history begins with: its system message, and what the caller or its kind puts after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.core import dates, system_prompt
from holdfast.core.messages import Message, Text, Thoughts, ToolCall, ToolReturn
from holdfast.core.records import Agent, Block
from holdfast.errors import Invalid
from holdfast.wire.agent_requests import InitialMessage

_GREETING: Final = "Hello! I am ready. What would you like to do first?"
_THOUGHT: Final = "I have just been created. I should say hello."
# Kinds whose history begins with nothing but the system message.
_BARE: Final = frozenset({"letta_v1_agent", "sleeptime_agent", "voice_sleeptime_agent"})
# Kinds that speak by calling send_message.
_MESSENGERS: Final = frozenset({"memgpt_agent", "memgpt_v2_agent", "voice_convo_agent", "split_thread_agent"})


def first_messages(
    agent: Agent, blocks: Sequence[Block], sequence: Sequence[InitialMessage] | None, now_us: int
) -> list[Message]:
    system = system_prompt.compile_system(
        agent,
        blocks,
        conversation_id=None,
        recompiled_at_text=dates.local_time(now_us, agent.timezone),
        previous_messages=0,
    )
    messages = [_message("system", (Text(system),), now_us)]
    if sequence is not None:
        for given in sequence:
            messages.extend(_given(agent, given, now_us))
    elif agent.agent_type not in _BARE:
        messages.extend(_greeting(agent, now_us))
    return messages


def _given(agent: Agent, given: InitialMessage, now_us: int) -> Iterator[Message]:
    text = _text(given.content)
    match given.role:
        case "user":
            message = _message("user", (Text(text),), now_us)
            yield msgspec.structs.replace(
                message, otid=given.otid, name=given.name, sender_id=given.sender_id, group_id=given.group_id
            )
        case "system":
            yield _message("user", (Text(_packed(agent, {"type": "system_alert", "message": text}, now_us)),), now_us)
        case "assistant" if agent.agent_type in _MESSENGERS:
            yield from _spoken(agent, (), text, now_us)
        case "assistant":
            yield _message("assistant", (Text(text),), now_us, model=agent.model.handle)
        case _:
            raise Invalid(
                f"initial_message_sequence takes messages of the roles user, system and assistant, not {given.role!r}."
            )


def _greeting(agent: Agent, now_us: int) -> Iterator[Message]:
    yield from _spoken(agent, (Thoughts(_THOUGHT),), _GREETING, now_us)
    login = {"type": "login", "last_login": "Never (first login)"}
    yield _message("user", (Text(_packed(agent, login, now_us)),), now_us)


def _spoken(agent: Agent, thoughts: tuple[Thoughts, ...], text: str, now_us: int) -> Iterator[Message]:
    """The agent's words as these kinds of agent say them: a call of send_message, and its return."""
    arguments = msgspec.json.encode({"message": text}).decode()
    call = ToolCall(ids.new("call"), "send_message", arguments)
    yield _message("assistant", (*thoughts, call), now_us, model=agent.model.handle)
    answer = ToolReturn(call.id, call.name, "success", "Sent message successfully.")
    yield msgspec.structs.replace(_message("tool", (answer,), now_us), name=call.name)


def _message(role: Any, parts: tuple[Any, ...], now_us: int, model: str | None = None) -> Message:
    return Message(id=ids.new("message"), role=role, parts=parts, created_us=now_us, model=model)


def _packed(agent: Agent, fields: dict[str, str], now_us: int) -> str:
    return msgspec.json.encode({**fields, "time": dates.local_time(now_us, agent.timezone)}).decode()


def _text(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        text = content
    elif all(part.get("type") == "text" and isinstance(part.get("text"), str) for part in content):
        text = "\n".join(part["text"] for part in content)
    else:
        raise Invalid("initial_message_sequence may hold text only.")
    if not text.strip():
        raise Invalid("Message content is empty or invalid")
    return text
