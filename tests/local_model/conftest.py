"""A real small model, a real inference server, a real Holdfast between it and the unmodified client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any

import pytest
from letta_client import AsyncLetta

from tests.local_model.inference import NAME, InferenceProcess, pointing_at
from tests.serving import ServerProcess

MODEL = f"llamacpp/{NAME}"
OVERRATED = f"openai-proxy/{NAME}"
MakeAgent = Callable[..., Awaitable[str]]


@pytest.fixture(scope="session")
def inference(tmp_path_factory: pytest.TempPathFactory) -> Generator[InferenceProcess]:
    with InferenceProcess(tmp_path_factory.mktemp("inference") / "llama.log") as inference:
        yield inference


@pytest.fixture(scope="session")
def server(inference: InferenceProcess, tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("holdfast"), **pointing_at(inference.url)) as server:
        yield server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncGenerator[AsyncLetta]:
    async with server.async_client(max_retries=0, timeout=100.0) as client:
        yield client


@pytest.fixture
def make_agent(client: AsyncLetta) -> MakeAgent:
    """With few words before the first message, and always the same reply to the same words."""

    async def make(*, most: int = 200, **fields: Any) -> str:
        settings = {"provider_type": "openai", "temperature": 0, "max_output_tokens": most}
        plain: dict[str, Any] = {
            "name": "ada",
            "model": MODEL,
            "system": "You answer in one short sentence.",
            "include_base_tools": False,
            "model_settings": settings,
        }
        agent = await client.agents.create(**plain | fields)
        return agent.id

    return make


async def request_of(client: AsyncLetta, agent: str) -> dict[str, Any]:
    """What the model was sent for the agent's last run, as it was sent."""
    newest = (await client.runs.list(agent_id=agent, limit=1)).items[0]
    (trace,) = await client.get(f"/v1/runs/{newest.id}/trace", cast_to=list[dict[str, Any]])
    return trace["request_json"]
