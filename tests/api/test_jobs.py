"""Jobs, which are runs under their old name, and the one user and organisation; on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import ids
from tests.served import ServedClient, served

# Of the schema `Job` of the old server, which allows no others.
FIELDS = {
    "id",
    "job_type",
    "status",
    "stop_reason",
    "metadata",
    "background",
    "agent_id",
    "user_id",
    "created_by_id",
    "last_updated_by_id",
    "created_at",
    "updated_at",
    "completed_at",
    "callback_url",
    "callback_sent_at",
    "callback_status_code",
    "callback_error",
    "ttft_ns",
    "total_duration_ns",
}


@pytest.fixture
async def client(database_url: str, tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path, database_url=database_url) as client:
        yield client


async def test_runs_are_listed_read_cancelled_and_deleted_as_jobs(client: ServedClient) -> None:
    agent = await client.agent()
    path = f"/v1/agents/{agent.id}/messages/async"
    ended = await client.ask("POST", path, {"input": "Hello [[say:Hi.]]"})
    await client.deps.reader.until_stopped(ended["id"])
    stalled = await client.ask("POST", path, {"input": "Hello [[stall]]"})
    await client.model_asked()
    listed = await client.ask("GET", "/v1/jobs/")
    assert [job["id"] for job in listed] == [stalled["id"], ended["id"]]
    assert all(set(job) == FIELDS for job in listed)
    assert [job["id"] for job in await client.ask("GET", "/v1/jobs/", after=stalled["id"])] == [ended["id"]]
    for active in (await client.ask("GET", "/v1/jobs/active"), await client.ask("GET", "/v1/jobs/", active=True)):
        assert [job["id"] for job in active] == [stalled["id"]]
    assert await client.ask("GET", "/v1/jobs/", source_id="source-1") == []
    await client.refusal(409, "DELETE", f"/v1/jobs/{stalled['id']}")
    for _ in range(2):
        cancelled = await client.ask("PATCH", f"/v1/jobs/{stalled['id']}/cancel")
        assert (cancelled["status"], cancelled["job_type"]) == ("cancelled", "run")
    assert (await client.ask("PATCH", f"/v1/jobs/{ended['id']}/cancel"))["status"] == "completed"
    assert (await client.ask("DELETE", f"/v1/jobs/{ended['id']}"))["id"] == ended["id"]
    for method, route in (("GET", ""), ("DELETE", ""), ("PATCH", "/cancel")):
        await client.refusal(404, method, f"/v1/jobs/{ended['id']}{route}")
        await client.refusal(404, method, f"/v1/jobs/{ids.new('job')}{route}")
        await client.refusal(422, method, f"/v1/jobs/nonsense{route}")


async def test_there_is_one_user_in_one_organisation(client: ServedClient) -> None:
    [user] = await client.ask("GET", "/v1/admin/users/")
    [organization] = await client.ask("GET", "/v1/admin/orgs/")
    assert (user["id"], user["organization_id"]) == (ids.DEFAULT_USER, organization["id"])
    assert "not built yet" in await client.refusal(501, "POST", "/v1/admin/users/", {"name": "x"})
