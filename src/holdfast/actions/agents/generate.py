"""One answer of the model that an agent uses. Its memory, tools and history take no part, and nothing is stored."""

from __future__ import annotations

from typing import Any, Final

from holdfast.actions.runs.spec import effective_model
from holdfast.core.deltas import Reply
from holdfast.core.messages import Text, Turn, text_of
from holdfast.core.records import Agent, ModelChoice, Thread
from holdfast.core.usage import Usage
from holdfast.engine.model_call import Asker
from holdfast.errors import EmptyReply
from holdfast.llm.base import Catalog, ModelRequest, NamedTool, ToolSchema
from holdfast.store import agents, threads
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.generate import GenerateRequest, generate_view

_SYSTEM: Final = "Answer the user."  # some vendors refuse an empty one
_ANSWER: Final = "structured_output"


async def generate(
    agent_id: str, asked: GenerateRequest, *, database: Database, catalog: Catalog, asker: Asker
) -> dict[str, object]:
    async def load(tx: Transaction) -> tuple[Agent, Thread]:
        return await agents.get(tx, agent_id), await threads.get(tx, agent_id)

    agent, thread = await database.read(load)
    choice = await effective_model(catalog, agent, thread, asked.override_model)
    info = await catalog.find(choice.handle)
    reply = await asker.ask(info, catalog.open(info), _request(choice, asked, agent_id))
    content = _content(reply, structured=asked.response_schema is not None)
    return generate_view(content, info.name, reply.usage or Usage())


def _request(choice: ModelChoice, asked: GenerateRequest, agent_id: str) -> ModelRequest:
    schema = asked.response_schema
    return ModelRequest(
        handle=choice.handle,
        system=asked.system_prompt or _SYSTEM,
        turns=(Turn("user", (Text(asked.prompt),)),),
        # A tool that must be called: every vendor has that, and not all have another way to shape an answer.
        tools=(ToolSchema(_ANSWER, "Give the answer.", _parameters(schema)),) if schema is not None else (),
        tool_choice=NamedTool(_ANSWER) if schema is not None else "none",
        context_window=choice.context_window,
        max_output_tokens=choice.max_output_tokens,
        temperature=choice.temperature,
        settings=choice.settings,
        user=agent_id,
    )


def _parameters(schema: dict[str, Any]) -> dict[str, Any]:
    """What the schema does not say otherwise is required."""
    properties: dict[str, Any] = schema.get("properties") or {}
    return {"type": "object", "properties": properties, "required": list(properties), **schema}


def _content(reply: Reply, *, structured: bool) -> str:
    content = reply.calls[0].arguments if structured and reply.calls else text_of(reply.parts)
    if not content.strip():
        raise EmptyReply("The model returned an empty answer.")
    return content
