"""What the client read of an agent's settings it may write back, as it is or dumped, and nothing changes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.llm.base import ModelInfo
from holdfast.llm.catalog.catalog import ModelCatalog
from tests.effort import examples
from tests.properties.settings_cases import MODELS, addressed, changes

from .resources import Served, serving

pytestmark = pytest.mark.slow


class EveryProvider(ModelCatalog):
    async def find(self, handle: str) -> ModelInfo:
        return next(info for info in MODELS if info.handle == handle)


async def shown(served: Served, agent_id: str) -> tuple[Any, Any, Any]:
    agent = await served.ok("GET", f"/v1/agents/{agent_id}")
    return agent["model"], agent["model_settings"], agent["llm_config"]


async def check(served: Served, info: ModelInfo, said: dict[str, Any]) -> None:
    made = await served.create(**addressed(said, info.handle), include_base_tools=False)
    before = await shown(served, made["id"])
    read = await served.client.agents.retrieve(made["id"])
    settings, config = read.api_model_settings, read.llm_config
    assert settings is not None
    ways: list[dict[str, Any]] = [
        {"model_settings": settings},
        {"llm_config": config},
        {"model_settings": settings, "llm_config": config, "model": read.model},
        {"model_settings": settings.model_dump()},
        {"llm_config": config.model_dump(by_alias=True)},
        {"model_settings": before[1], "llm_config": before[2], "response_format": made["response_format"]},
        {"max_tokens": config.max_tokens, "parallel_tool_calls": config.parallel_tool_calls},
    ]
    update: Any = served.client.agents.update
    for fields in ways:
        await update(made["id"], **fields)
        assert await shown(served, made["id"]) == before
    create: Any = served.client.agents.create
    copy = await create(
        model=read.model, model_settings=settings, context_window_limit=config.context_window, include_base_tools=False
    )
    assert await shown(served, copy.id) == before
    described = await create(llm_config=config, include_base_tools=False)
    assert (await shown(served, described.id))[2] == before[2]


def test_a_round_trip_through_the_client_changes_nothing(database_url: str, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        served = runner.run(stack.enter_async_context(serving(database_url, tmp_path, EveryProvider())))

        @examples(15 if database_url.startswith("sqlite") else 5)  # the database only keeps the text
        @given(info=st.sampled_from(MODELS), said=changes())
        def holds(info: ModelInfo, said: dict[str, Any]) -> None:
            runner.run(check(served, info, said))

        try:
            holds()
            for info in {info.provider_type: info for info in MODELS}.values():  # as they are by default
                runner.run(check(served, info, {}))
        finally:
            runner.run(stack.aclose())
