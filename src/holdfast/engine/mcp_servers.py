"""Talks to stored MCP servers, and calls their tools for runs: opens their secrets, fills in templates, sends and
refreshes logins.

The SDK is loaded with the first conversation: it is optional, and slow to import.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast import ids
from holdfast.core.arguments import arguments_of
from holdfast.core.hold import identity_of
from holdfast.core.mcp import LoginStatus, McpLogin, McpSecrets, McpServer, filled
from holdfast.core.messages import ToolReturn
from holdfast.core.records import Tool
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec
from holdfast.engine.clock import Clock
from holdfast.engine.tool_calls import NOT_FOUND, Execute, changed_text
from holdfast.errors import ConfigError, Invalid, NotFound, RequestError, Unsupported
from holdfast.secretbox import SecretBox
from holdfast.ssrf_guard import Guard, require_web_url
from holdfast.store import agents, mcp_servers, sealed, tools
from holdfast.store.transaction import Database, Transaction
from holdfast.tools.base import cut_to_limit, failure_text
from holdfast.tools.mcp.values import Authorization, Called, Destination, Limits, Listing, LoginState

if TYPE_CHECKING:
    from holdfast.tools.mcp.client import McpClient
    from holdfast.tools.mcp.oauth import Login

OAUTH_CALLBACK: Final = "/v1/tools/mcp/oauth/callback"
_BEARER: Final = "Bearer "
NO_SERVER: Final = "The MCP server of this tool is not here: add it under the name that the tool's tag has."
STDIO_OFF: Final = (
    "MCP stdio servers are disabled: they start programs on the machine of this server. The operator enables them with "
    "HOLDFAST_MCP_STDIO=true."
)


class Reached(msgspec.Struct, frozen=True):
    """A server, read together with what its headers may need. Not to be logged."""

    server: McpServer
    login: McpLogin | None = None
    secrets: Mapping[str, str] = {}  # of the agent for which it is called
    agent_id: str | None = None


class McpServers:
    def __init__(
        self,
        database: Database,
        secretbox: SecretBox,
        clock: Clock,
        guard: Guard,
        limits: Limits,
        *,
        stdio: bool,
        redirect_uri: str,
    ) -> None:
        self._database = database
        self._secretbox = secretbox
        self._clock = clock
        self._guard = guard
        self._limits = limits
        self._stdio = stdio
        self._redirect_uri = redirect_uri
        self._loading = asyncio.Lock()
        self._client: McpClient | None = None
        self.login_changed = asyncio.Event()  # replaced by a new one when it is set

    @property
    def guard(self) -> Guard:
        return self._guard

    async def reach(self, tx: Transaction, server: McpServer, agent_id: str | None = None) -> Reached:
        stored = (await agents.secrets_of(tx, [agent_id])).get(agent_id, []) if agent_id else []
        secrets = {secret.key: self._secretbox.open(secret.sealed) for secret in stored}
        return Reached(server, await mcp_servers.find_login(tx, server.id), secrets, agent_id)

    async def list_tools(self, reached: Reached) -> Listing:
        destination = self.destination(reached)
        client = await self._loaded()
        return await client.list_tools(destination, self._login(reached, destination))

    async def call(self, reached: Reached, name: str, arguments: dict[str, Any], call_id: str) -> Called:
        destination = self.destination(reached, call_id)
        client = await self._loaded()
        return await client.call(destination, name, arguments, call_id, self._login(reached, destination))

    def require_stdio(self) -> None:
        if not self._stdio:
            raise Invalid(STDIO_OFF)

    def seal(self, secrets: McpSecrets) -> str | None:
        return None if secrets == McpSecrets() else self._sealed(secrets)

    def open(self, server: McpServer) -> McpSecrets:
        if server.secrets is None:
            return McpSecrets()
        return msgspec.json.decode(self._secretbox.open(sealed.from_text(server.secrets)), type=McpSecrets)

    def _sealed(self, value: McpSecrets | LoginState) -> str:
        return sealed.as_text(self._secretbox.seal(msgspec.json.encode(value).decode()))

    def destination(self, reached: Reached, call_id: str | None = None) -> Destination:
        server, kept = reached.server, self.open(reached.server)
        if server.kind == "stdio":
            self.require_stdio()
            env = {name: filled(value, reached.secrets) for name, value in (kept.env or {}).items()}
            return Destination(kind="stdio", command=server.command or "", args=server.args, env=env)
        headers = {name: filled(value, reached.secrets) for name, value in (kept.custom_headers or {}).items()}
        if kept.auth_token is not None:
            header = server.auth_header or "Authorization"
            headers[header] = _credential(header, filled(kept.auth_token, reached.secrets))
        if reached.agent_id is not None:
            headers["X-Agent-Id"] = reached.agent_id
        if call_id is not None:
            headers["Idempotency-Key"] = call_id
        url = filled(server.url or "", reached.secrets)
        require_web_url(url)
        return Destination(kind=server.kind, url=url, headers=headers)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    # Logins

    async def begin_login(self, reached: Reached) -> Authorization | None:
        """What a person has to open; None if the server wants no login. From then on the callback may come."""
        client, destination = await self._loaded(), self.destination(reached)
        begun = await _oauth().begin(client, destination, self._new_login(reached, destination))
        if begun is not None:
            await self._save_login(reached.server.id, "pending", begun.kept, begun.state)
        return begun

    async def finish_login(self, state: str, code: str | None, iss: str | None, refusal: str | None) -> McpLogin:
        """The callback: its state is good for one use, whatever comes of it."""

        async def take(tx: Transaction) -> tuple[McpLogin, Reached]:
            login = await mcp_servers.find_login_with_state(tx, state)
            if login is None:
                raise NotFound("This login is not known, or is over: begin it anew.")
            await mcp_servers.save_login(tx, msgspec.structs.replace(login, state=None))
            return login, await self.reach(tx, await mcp_servers.get(tx, login.server_id))

        login, reached = await self._database.write(take)
        if refusal is not None or code is None:
            refused = f"The authorization server said: {refusal or 'no code'}"[:500]
            return await self._save_login(login.server_id, "error", self._opened(login), error=refused)
        destination = self.destination(reached)
        client = await self._loaded()
        try:
            await self._new_login(reached, destination).exchange(client, code, iss)
        except RequestError as error:
            return await self._save_login(login.server_id, "error", self._opened(login), error=error.message)
        found = await self._database.read(lambda tx: mcp_servers.find_login(tx, login.server_id))
        assert found is not None
        return found

    async def login_of(self, server_id: str) -> McpLogin | None:
        return await self._database.read(lambda tx: mcp_servers.find_login(tx, server_id))

    def _login(self, reached: Reached, destination: Destination) -> Login | None:
        """Sent only if there is one, and no other token: that was given on purpose."""
        has_token = any(name.lower() == "authorization" for name in destination.headers)
        if reached.login is None or reached.login.status != "authorized" or has_token:
            return None
        return self._new_login(reached, destination)

    def _new_login(self, reached: Reached, destination: Destination) -> Login:
        server_id = reached.server.id
        state = self._opened(reached.login) if reached.login else LoginState()

        async def save(changed: LoginState) -> None:
            await self._save_login(server_id, "authorized" if changed.tokens else "pending", changed)

        return _oauth().Login(destination.url, self._redirect_uri, state, save)

    def _opened(self, login: McpLogin) -> LoginState:
        if login.secrets is None:
            return LoginState()
        return msgspec.json.decode(self._secretbox.open(sealed.from_text(login.secrets)), type=LoginState)

    async def _save_login(
        self,
        server_id: str,
        status: LoginStatus,
        kept: LoginState,
        state: str | None = None,
        error: str | None = None,
    ) -> McpLogin:
        """Under the id of the one before it."""
        secrets = self._sealed(kept)
        now_us = self._clock.now_us()

        async def write(tx: Transaction) -> McpLogin:
            await mcp_servers.get(tx, server_id, lock=True)
            known = await mcp_servers.find_login(tx, server_id)
            login = McpLogin(
                id=known.id if known else ids.new("mcp-oauth"),
                server_id=server_id,
                status=status,
                state=state,
                secrets=secrets,
                error=error,
                created_us=known.created_us if known else now_us,
                updated_us=now_us,
            )
            await mcp_servers.save_login(tx, login)
            return login

        written = await self._database.write(write)
        self.login_changed.set()
        self.login_changed = asyncio.Event()
        return written

    async def _loaded(self) -> McpClient:
        async with self._loading:
            if self._client is None:
                # In a thread: other runs must not stand still while it is imported.
                self._client = await asyncio.to_thread(self._load)
            return self._client

    def _load(self) -> McpClient:
        try:
            from holdfast.tools.mcp import client  # noqa: PLC0415
        except ImportError as missing:
            raise Unsupported(
                "MCP servers need the MCP SDK, which is not installed: pip install 'holdfast[mcp]'"
            ) from missing
        return client.McpClient(self._guard, self._limits)


def _oauth() -> Any:
    from holdfast.tools.mcp import oauth  # noqa: PLC0415

    return oauth


def _credential(header: str, token: str) -> str:
    """A token of one word is a bearer token; one that names its scheme is sent as it is."""
    return f"{_BEARER}{token}" if header.lower() == "authorization" and " " not in token else token


_Found = tuple[Tool, Reached]


class McpExecutor:
    """Runs the calls of MCP tools. What was approved is what runs: this tool, with this schema, of this server."""

    def __init__(self, database: Database, servers: McpServers) -> None:
        self._database = database
        self._servers = servers

    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        found = await self._look_up(spec, call)

        async def execute() -> ToolReturn:
            if isinstance(found, str):
                return _failed(call, found)
            tool, reached = found
            try:
                called = await self._servers.call(
                    reached, tool.mcp_name or tool.name, arguments_of(call.call.arguments), call.call.id
                )
            except (RequestError, ConfigError) as error:
                return _failed(call, failure_text(tool.name, type(error).__name__, error.message))
            content = cut_to_limit(called.content, tool.return_char_limit)
            return ToolReturn(call.call.id, tool.name, called.status, content, (), ())

        return execute

    async def _look_up(self, spec: RunSpec, call: OpenCall) -> _Found | str:
        """What is to be called, or why nothing is."""
        told = spec.tool(call.call.name)
        tool_id = told.tool_id if told is not None else None
        if tool_id is None:
            return NOT_FOUND

        async def read(tx: Transaction) -> _Found | str:
            tool = await tools.get(tx, tool_id)
            if tool.mcp_server_id is None:
                return failure_text(tool.name, "NotFound", NO_SERVER)
            server = await mcp_servers.get(tx, tool.mcp_server_id)
            return tool, await self._servers.reach(tx, server, spec.agent_id)

        try:
            found = await self._database.read(read)
        except NotFound:
            return NOT_FOUND
        if isinstance(found, str):
            return found
        tool, reached = found
        # What was read here is what is called: the database is not asked again.
        if call.approved is not None and identity_of(tool, reached.secrets) != call.approved:
            return changed_text(tool.name, again=call.status == "started")
        return tool, reached


def _failed(call: OpenCall, text: str) -> ToolReturn:
    return ToolReturn(call.call.id, call.call.name, "error", text, (), ())
