"""Holdfast inside another program: the ordinary client, talking to the ordinary application, without a socket."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from letta_client import AsyncLetta

from holdfast.api.server import create_app
from holdfast.asgi_transport import AsgiTransport
from holdfast.settings import Settings
from holdfast.wiring import build


@asynccontextmanager
async def embedded(
    data_dir: str | Path | None = None, *, environment: Mapping[str, str] | None = None
) -> AsyncGenerator[AsyncLetta]:
    """A ready client. Settings come from `environment`, by default the process's own; `data_dir` wins over it.

    At the end runs may finish for `HOLDFAST_DRAIN_S` seconds; what is left goes on the next time the directory is used.
    """
    variables = dict(os.environ if environment is None else environment)
    if data_dir is not None:
        variables["HOLDFAST_DATA_DIR"] = str(data_dir)
    settings = Settings.from_environment(variables)
    raised: BaseException | None = None
    async with build(settings) as deps:
        transport = AsgiTransport(create_app(deps))
        http = httpx.AsyncClient(transport=transport, base_url="http://holdfast")
        async with AsyncLetta(base_url="http://holdfast", api_key=settings.api_key or "", http_client=http) as client:
            try:
                yield client
            except BaseException as exception:
                # Raised again below. Let through here, it would reach the caller wrapped in the group of side tasks.
                raised = exception
    if raised is not None:
        raise raised
