"""Carries out a custom tool's call in the sandbox, with the agent's own secrets and nothing else of the server's."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.core.messages import ToolReturn
from holdfast.core.records import Tool
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec
from holdfast.engine.acting import Execute
from holdfast.errors import NotFound
from holdfast.store import agents, tools
from holdfast.store.transaction import Database, Transaction
from holdfast.tools.base import Job, Sandbox


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
            if job is None:
                return ToolReturn(call.call.id, call.call.name, "error", "Tool not found")
            outcome = await self._sandbox.run(job)
            return ToolReturn(
                call.call.id, job.tool_name, outcome.status, outcome.content, outcome.stdout or (), outcome.stderr or ()
            )

        return execute

    async def _job(self, spec: RunSpec, call: OpenCall) -> Job | None:
        tool = spec.tool(call.call.name)
        if tool is None or tool.tool_id is None:
            return None
        tool_id = tool.tool_id
        found = await self._database.read(lambda tx: self._look_up(tx, tool_id, spec.agent_id))
        if found is None:
            return None
        stored, environment = found
        return Job(
            call_id=call.call.id,
            tool_name=stored.name,
            tool_id=stored.id,
            agent_id=spec.agent_id,
            agent_name=spec.agent_name,
            source_code=stored.source_code or "",
            arguments=msgspec.json.decode(call.call.arguments or "{}"),
            environment=environment,
            timeout_s=self._timeout_s,
            return_char_limit=stored.return_char_limit,
            egress=stored.egress,
        )

    async def _look_up(self, tx: Transaction, tool_id: str, agent_id: str) -> tuple[Tool, dict[str, str]] | None:
        try:
            tool = await tools.get(tx, tool_id)
        except NotFound:
            return None
        secrets = (await agents.secrets_of(tx, [agent_id])).get(agent_id, [])
        return tool, {secret.key: self._open_secret(secret.sealed) for secret in secrets}
