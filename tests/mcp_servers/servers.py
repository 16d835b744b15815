"""Real MCP servers, made with the SDK's own classes: served over HTTP in this process, or run as a program."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ToolAnnotations
from starlette.types import ASGIApp

ROOT = Path(__file__).parent.parent.parent
# The smallest PNG: one transparent dot.
DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001"
    "e221bc330000000049454e44ae426082"
)
Kind = Literal["sse", "streamable_http"]


class Tools:
    """What they were called with, and a gate at which `wait` stands."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.keys: list[str | None] = []
        self.waiting = asyncio.Event()
        self.let_go = asyncio.Event()
        self.stopped = asyncio.Event()

    def note(self, name: str, ctx: Context, **arguments: Any) -> None:
        self.calls.append((name, arguments))
        self.headers.append({key.lower(): value for key, value in (ctx.headers or {}).items()})
        meta: Any = ctx.request_context.meta or {}
        self.keys.append(meta.get("holdfast/idempotency-key"))


def server_of(tools: Tools, name: str = "harbour") -> MCPServer:
    server = MCPServer(name)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int, ctx: Context) -> str:
        """Adds two numbers."""
        tools.note("add", ctx, a=a, b=b)
        return str(a + b)

    @server.tool()
    def book(berth: str, ctx: Context, nights: int = 1) -> str:
        """Books a berth."""
        tools.note("book", ctx, berth=berth, nights=nights)
        return f"{berth} for {nights}"

    @server.tool()
    async def wait(ctx: Context) -> str:
        """Waits until it is let go."""
        tools.note("wait", ctx)
        tools.waiting.set()
        try:
            await tools.let_go.wait()
        finally:
            if not tools.let_go.is_set():
                tools.stopped.set()
        return "let go"

    @server.tool()
    def fail(ctx: Context) -> str:
        """Fails."""
        tools.note("fail", ctx)
        raise ValueError("the crane is stuck")

    @server.tool(structured_output=False)
    def photograph(ctx: Context) -> list[Any]:
        """Takes a picture."""
        tools.note("photograph", ctx)
        return ["a dot", Image(data=DOT, format="png")]

    @server.tool(structured_output=False)
    def nothing(ctx: Context) -> None:
        """Says nothing."""
        tools.note("nothing", ctx)

    return server


class _Announced(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@asynccontextmanager
async def served_app(app: ASGIApp, host: str = "127.0.0.1") -> AsyncGenerator[str]:
    """On a free port of this machine. Its URL."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        server = _Announced(uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=0))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await server.up.wait()
        try:
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait([serving])


@asynccontextmanager
async def served_mcp(server: MCPServer, kind: Kind = "streamable_http") -> AsyncGenerator[str]:
    """The URL that a client is given."""
    app = server.streamable_http_app() if kind == "streamable_http" else server.sse_app()
    async with served_app(app) as url:
        yield f"{url}/{'mcp' if kind == 'streamable_http' else 'sse'}"


def stdio_config(*arguments: str) -> dict[str, Any]:
    """The configuration of the program below."""
    return {
        "mcp_server_type": "stdio",
        "command": sys.executable,
        "args": ["-m", "tests.mcp_servers.servers", *arguments],
        "env": {"PYTHONPATH": str(ROOT), "HARBOUR": "in the environment"},
    }


def main() -> None:
    server = MCPServer("program")

    @server.tool()
    def process() -> str:
        """Tells its process, its environment and what it was given."""
        return f"{os.getpid()} {os.environ.get('HARBOUR')} {os.environ.get('HOLDFAST_API_KEY')}"

    @server.tool()
    def block(marker: str) -> str:
        """Holds everything up, with a child, and hears nothing."""
        child = os.fork()
        if child == 0:
            os.execvp("sleep", ["sleep", "60"])
        with open(marker, "w") as file:
            file.write(f"{os.getpid()} {child}")
        os.waitpid(child, 0)
        return "never"

    server.run("stdio")


if __name__ == "__main__":
    main()
