"""OpenAI's chat completions: programs that know only these can talk to an agent."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from holdfast.actions.messages.send import SendRequest
from holdfast.api.answers import EventStream, json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import Deps
from holdfast.api.routes.messages import ended, frames_of, parse
from holdfast.engine.streams import PACKET_GAP_S
from holdfast.wire.chat_completions import (
    ChatChunks,
    ChatCompletion,
    ChatCompletionRequest,
    agent_of,
    completion_view,
    sent_message,
)
from holdfast.wire.times import MICROSECONDS

router = LazyRouter(prefix="/v1/chat", tags=["chat_completions"])

_RUN_TYPE: Final = "chat_completions"


# LiveKit's plugin is told the whole path as the address of OpenAI's API, and its SDK puts the path after it.
@router.post(
    "/completions/chat/completions", responses={200: {"model": ChatCompletion}}, response_model=None, deprecated=True
)
@router.post("/completions", responses={200: {"model": ChatCompletion}}, response_model=None)
async def create_chat_completion(request: ChatCompletionRequest, deps: Deps) -> Response:
    agent_id, message = agent_of(request), sent_message(request)
    accepted = await deps.send(
        SendRequest(
            thread_id=agent_id,
            parsed=await parse(deps, message),
            request=message,
            run_type=_RUN_TYPE,
            request_config=message.request_config(),
            stream_tokens=True,  # both answers are made of the same pieces
            wait_s=0.0 if request.stream else deps.settings.queue_wait_s,
        )
    )
    run = accepted.run
    created = run.created_us // MICROSECONDS
    if request.stream:
        batches = accepted.stream.follow_to_end(PACKET_GAP_S) if accepted.stream else deps.reader.follow(run)
        include_usage = request.stream_options is not None and request.stream_options.include_usage
        chunks = ChatChunks(run.id, agent_id, created, include_usage=include_usage)
        return EventStream(batches, chunks, keepalive_s=deps.settings.keepalive_s, include_pings=False)
    frames = await frames_of(deps, accepted)
    end = ended(frames)
    if isinstance(end, Response):
        return end
    return json_response(completion_view(run.id, agent_id, created, frames, end.stop_reason, end.used.usage))
