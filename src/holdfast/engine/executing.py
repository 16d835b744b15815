"""Carries out a custom tool's call in the sandbox, with the agent's own secrets and nothing else of the server's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.core.arguments import arguments_of
from holdfast.core.fingerprint import calls_others, gets_secrets, identity_of
from holdfast.core.messages import ToolReturn
from holdfast.core.records import Tool
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec
from holdfast.engine.acting import Execute, Executor
from holdfast.errors import NotFound
from holdfast.store import agents, tools
from holdfast.store.transaction import Database, Transaction
from holdfast.tools import builtin
from holdfast.tools.base import Job, Sandbox
from holdfast.tools.code_with_tools import with_tools

_NOT_FOUND: Final = "Tool not found"


class SandboxExecutor:
    def __init__(
        self, database: Database, sandbox: Sandbox, open_secret: Callable[[bytes], str], timeout_s: float
    ) -> None:
        self._database = database
        self._sandbox = sandbox
        self._open_secret = open_secret
        self._timeout_s = timeout_s

    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        job = await self._job(spec, call)

        async def execute() -> ToolReturn:
            if isinstance(job, str):
                return ToolReturn(call.call.id, call.call.name, "error", job)
            outcome = await self._sandbox.run(job)
            return ToolReturn(
                call.call.id, job.tool_name, outcome.status, outcome.content, outcome.stdout or (), outcome.stderr or ()
            )

        return execute

    async def _job(self, spec: RunSpec, call: OpenCall) -> Job | str:
        """What is to be run, or why nothing is."""
        tool = spec.tool(call.call.name)
        if tool is None or tool.tool_id is None:
            return _NOT_FOUND
        tool_id = tool.tool_id
        found = await self._database.read(lambda tx: self._look_up(tx, tool_id, spec.agent_id))
        if found is None:
            return _NOT_FOUND
        stored, attached, environment = found
        # What was read here is what runs: the database is not asked again.
        if call.approved is not None and identity_of(stored, environment, attached) != call.approved:
            return changed_text(stored.name, again=call.status == "started")
        job = Job(
            call_id=call.call.id,
            tool_name=stored.name,
            tool_id=stored.id,
            agent_id=spec.agent_id,
            agent_name=spec.agent_name,
            source_code=builtin.sandboxed_source(stored),
            arguments=arguments_of(call.call.arguments),  # judged before: what cannot be read has been refused
            args_schema=stored.args_json_schema,
            environment=environment if gets_secrets(stored) else {},
            timeout_s=self._timeout_s,
            return_char_limit=stored.return_char_limit,
            egress=stored.egress,
        )
        if not calls_others(stored):
            return job
        # One that was attached since is left out: the rules of this run do not know it.
        known = [other for other in attached if (told := spec.tool(other.name)) and told.tool_id == other.id]
        at_client = [other.name for other in spec.tools if other.effect == "client"]
        return with_tools(job, known, spec.rules, environment, at_client)

    async def _look_up(
        self, tx: Transaction, tool_id: str, agent_id: str
    ) -> tuple[Tool, list[Tool], dict[str, str]] | None:
        """The tool, the agent's tools if it calls them, and the agent's secrets."""
        try:
            tool = await tools.get(tx, tool_id)
        except NotFound:
            return None
        attached = await tools.of_agent(tx, agent_id) if calls_others(tool) else []
        secrets = (await agents.secrets_of(tx, [agent_id])).get(agent_id, [])
        return tool, attached, {secret.key: self._open_secret(secret.sealed) for secret in secrets}


class Executors:
    """The sandbox, but for the shipped tools that are carried out by something else."""

    def __init__(self, usual: Executor) -> None:
        self._usual = usual
        self.own: dict[str, Executor] = {}  # by the id of the tool

    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        tool = spec.tool(call.call.name)
        own = self.own.get(tool.tool_id) if tool is not None and tool.tool_id is not None else None
        return await (own or self._usual).prepare(spec, call)


def changed_text(name: str, *, again: bool) -> str:
    """`again`: a crash cut off a first try of the call."""
    text = f"Error: the tool '{name}' was changed after it was approved; it was not run"
    if again:
        return f"{text} again. Its first try was cut off: check whether it took effect."
    return f"{text}. Call it again to ask for approval of the tool as it is now."
