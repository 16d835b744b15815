"""What a sleeptime agent is shown of the turns of the agent that it looks after. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from holdfast.core.compaction import shortened, without_middle
from holdfast.core.messages import Message, Text, ToolCall, content_text, text_of
from holdfast.core.spec import Speaking, only_confirms_speech, spoken_text

RUN_TYPE: Final = "sleeptime_agent_send_message_async"
TASK: Final = "sleeptime"
_ASKED: Final = """\
<system-reminder>
Below is what was said since you last looked, in order. You do not take part in it, and nobody in it reads what you \
write. Bring the memory blocks up to date with what will matter later, then call memory_finish_edits.
</system-reminder>

Messages:
"""
_SPEAKING: Final = Speaking()


def assignment(messages: Sequence[Message], limit: int) -> str | None:
    """The message that sets a sleeptime agent to work; None when there is nothing to show. Of a transcript of more than
    `limit` bytes the middle is left out."""
    lines = [line for message in messages for line in _lines(message)]
    return _ASKED + without_middle("\n".join(lines), limit) if lines else None


def _lines(message: Message) -> Iterator[str]:
    match message.role:
        case "user":
            yield f"user: {shortened(text_of(message.parts))}"
        case "assistant" | "approval":
            for part in message.parts:
                yield from _spoken(part)
        case "tool":
            for answer in message.returns:
                if not only_confirms_speech(answer, _SPEAKING):
                    yield f"assistant: Tool call returned {shortened(content_text(answer.content))}"
        case _:
            pass  # instructions and summaries: what they tell was said in messages that were shown before


def _spoken(part: object) -> Iterator[str]:
    if isinstance(part, Text):
        yield f"assistant: {shortened(part.text)}"
    elif isinstance(part, ToolCall):
        words = spoken_text(part, _SPEAKING)
        yield f"assistant: {shortened(words or f'Tool call {part.name} with {part.arguments}')}"
