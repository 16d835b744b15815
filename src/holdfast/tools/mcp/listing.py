"""Lists of tools, read before the SDK checks them: it would refuse a whole list for one tool that is malformed."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Self, cast

from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from holdfast.tools.mcp.values import ListedTool, Listing

_MOST_NAME: Final = 256
_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


class TappedTransport:
    """Takes the tools out of every list that passes. The SDK sees an empty list, and its cursor."""

    def __init__(self, inner: Transport, taken: list[Any]) -> None:
        self._inner = inner
        self._taken = taken

    async def __aenter__(self) -> tuple[Any, Any]:
        reading, writing = await self._inner.__aenter__()
        return _Tapped(reading, self._taken), writing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


class _Tapped:
    def __init__(self, inner: Any, taken: list[Any]) -> None:
        self._inner = inner
        self._taken = taken

    async def receive(self) -> SessionMessage | Exception:
        return self._passed(await self._inner.receive())

    def _passed(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            tools = item.message.result.get("tools")
            if isinstance(tools, list):
                self._taken += cast("list[Any]", tools)
                item.message.result["tools"] = []
        return item

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._passed(await self._inner.__anext__())

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


def read_tools(raw_tools: list[Any]) -> Listing:
    """Of two with one name the first counts."""
    tools: dict[str, ListedTool] = {}
    left_out: dict[str, str] = {}
    for number, raw in enumerate(raw_tools, start=1):
        given = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
        name, schema = given.get("name"), given.get("inputSchema")
        if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME:
            left_out[f"tool {number}"] = "it has no name of a usable length"
        elif not isinstance(schema, dict):
            left_out[name] = "it has no input schema"
        elif name not in tools:
            tools[name] = _listed(name, cast("dict[str, Any]", schema), given)
    return Listing(tuple(tools.values()), left_out)


def _listed(name: str, schema: dict[str, Any], given: dict[str, Any]) -> ListedTool:
    title, description = given.get("title"), given.get("description")
    output = given.get("outputSchema")
    return ListedTool(
        name=name,
        title=title if isinstance(title, str) else None,
        description=description if isinstance(description, str) else "",
        input_schema=schema,
        output_schema=cast("dict[str, Any]", output) if isinstance(output, dict) else None,
        annotations=_hints(given.get("annotations")),
    )


def _hints(annotations: Any) -> dict[str, Any]:
    given = cast("dict[str, Any]", annotations) if isinstance(annotations, dict) else {}
    return {name: given[name] for name in _HINTS if isinstance(given.get(name), bool)}
