"""Agent files: an agent written as JSON, and agents made from it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import msgspec
from fastapi import File, Form, Header, Query, UploadFile
from starlette.responses import Response

from holdfast.actions.agent_files.export import ExportAgent, ExportOptions
from holdfast.actions.agent_files.importing import ImportAgents
from holdfast.actions.dependencies import Holdfast
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.middleware import check_json
from holdfast.api.params import AgentId, Deps, defaults_of
from holdfast.errors import Invalid, Unprocessable
from holdfast.wire.agent_file_views import ExportAgentRequest, ImportedView
from holdfast.wire.agent_files import AgentFile, ImportOptions, agent_file_of, given_secrets, new_name

router = LazyRouter(prefix="/v1/agents", tags=["agents"])

MAX_VALUES: Final = 1_000_000  # of one file; it is read in a thread, so it may hold more than other requests
Deprecated = Annotated[str | None, Form(deprecated=True)]


@router.get("/{agent_id}/export", responses={200: {"model": dict[str, Any]}}, response_model=None)
async def export(
    deps: Deps,
    agent_id: AgentId,
    conversation_id: Annotated[str | None, Query(description="Write this conversation's messages.")] = None,
    scrub_messages: Annotated[bool, Query(description="Leave the messages out.")] = False,
    include_archives: Annotated[bool, Query(description="Write the archival memory, too.")] = False,
    include_identities: Annotated[bool, Query(description="Write whom the agents belong to, too.")] = False,
    include_files: Annotated[bool, Query(description="Write the files of its folders.")] = True,
    max_steps: Annotated[int, Query(deprecated=True)] = 100,
    use_legacy_format: Annotated[bool, Query(deprecated=True)] = False,
) -> Response:
    if use_legacy_format:
        raise Invalid("The older format of agent files is read, but not written any more: leave out use_legacy_format.")
    options = ExportOptions(
        conversation_id=conversation_id,
        scrub_messages=scrub_messages,
        include_archives=include_archives,
        include_identities=include_identities,
        include_files=include_files,
    )
    return _file_response(await _export(deps)(agent_id, options, deps.clock.now_us()))


@router.post("/{agent_id}/export", responses={200: {"model": dict[str, Any]}}, response_model=None)
async def export_with_skills(deps: Deps, agent_id: AgentId, request: ExportAgentRequest | None = None) -> Response:
    asked = request or ExportAgentRequest()
    options = ExportOptions(
        conversation_id=asked.conversation_id,
        scrub_messages=asked.scrub_messages,
        include_archives=asked.include_archives,
        include_identities=asked.include_identities,
        include_files=asked.include_files,
    )
    return _file_response(await _export(deps)(agent_id, options, deps.clock.now_us(), asked.skills))


@router.post("/import", responses={200: {"model": ImportedView}}, response_model=None)
async def import_file(
    deps: Deps,
    file: Annotated[UploadFile, File(description="The agent file.")],
    name: Annotated[str | None, Form(description="What all agents of the file are to be called.")] = None,
    model: Annotated[str | None, Form(description="A handle, in place of the models in the file.")] = None,
    embedding: Annotated[str | None, Form(description="A handle, in place of the embedding models.")] = None,
    secrets: Annotated[str | None, Form(description="A JSON object with the values of declared secrets.")] = None,
    override_existing_tools: Annotated[bool, Form()] = True,
    strip_messages: Annotated[bool, Form(description="Leave the messages of the file out.")] = False,
    append_copy_suffix: Annotated[bool, Form(deprecated=True)] = True,
    project_id: Deprecated = None,
    override_name: Deprecated = None,
    override_model_handle: Deprecated = None,
    override_embedding_handle: Deprecated = None,
    env_vars_json: Deprecated = None,
    x_override_embedding_model: Annotated[str | None, Header()] = None,
    x_project_id: Annotated[str | None, Header()] = None,
) -> Response:
    options = ImportOptions(
        name=new_name(name or override_name),
        model=model or override_model_handle or None,
        embedding=embedding or override_embedding_handle or x_override_embedding_model or None,
        secrets=given_secrets(secrets or env_vars_json),
        project_id=project_id or x_project_id or None,
        override_existing_tools=override_existing_tools,
        append_copy_suffix=append_copy_suffix,
        strip_messages=strip_messages,
    )
    told = await asyncio.to_thread(_parsed, await file.read())
    import_agents = ImportAgents(
        deps.database, deps.catalog, deps.secretbox, deps.archival, deps.mcp, deps.tasks, defaults_of(deps)
    )
    return json_response(await import_agents(told, options, deps.clock.now_us()))


def _export(deps: Holdfast) -> ExportAgent:
    return ExportAgent(deps.database, deps.mcp, deps.settings.max_body_bytes)


def _parsed(content: bytes) -> AgentFile:
    try:
        value = check_json(content, "file", MAX_VALUES)
        if isinstance(value, str):  # some programs encode the text of a file once more
            value = check_json(value.encode(), "file", MAX_VALUES)
    except Unprocessable as error:
        raise Invalid(error.message) from error
    return agent_file_of(value)


def _file_response(told: dict[str, Any]) -> Response:
    """Indented, because people read and compare these files."""
    return Response(msgspec.json.format(msgspec.json.encode(told), indent=2), media_type="application/json")
