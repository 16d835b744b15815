"""Whatever dies between a turn and the work that it sets a sleeptime agent to: that work is done once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.invariants import assert_invariants
from tests.scenario import Moment
from tests.serving import ServerProcess

from .performing import perform, perform_and_die, runs_of, told
from .scenes import on_both_databases
from .templates import Template, world_from

_HELLO = "Hello [[say:Good day.]] [[no_reasoning]]"


@on_both_databases
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_server_that_dies_at_any_write_of_the_handover_leaves_one_run(
    template: Template, tmp_path: Path, moment: Moment
) -> None:
    write, died = 1, True
    while died:
        async with world_from(template, tmp_path) as world:
            second = await world.be_looked_after()
            await world.node().ask(_HELLO)
            died = await perform_and_die(world, write, moment)
            [run] = await runs_of(world, second)
            assert (run.status, await told(world, run)) == ("completed", 1), f"crashed {moment} write {write}"
            await assert_invariants(world.database, idle=True)
            assert await perform(world.node())
            assert len(await runs_of(world, second)) == 1
        write += 1
    assert write > 4


async def test_two_servers_that_perform_the_same_handover_make_one_run(template: Template, tmp_path: Path) -> None:
    async with world_from(template, tmp_path) as world:
        second = await world.be_looked_after()
        await world.node().ask(_HELLO)
        await asyncio.gather(perform(world.node()), perform(world.node()))
        assert await perform(world.node())
        assert len(await runs_of(world, second)) == 1


def _say(server: ServerProcess, agent_id: str, text: str) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}/v1/agents/{agent_id}/messages", json={"input": text}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.kill9
def test_a_killed_server_that_has_answered_sets_the_sleeptime_agent_to_work_once(tmp_path: Path) -> None:
    """It is killed as soon as the answer is there, or a moment later: before, while and after the run is accepted."""
    with ServerProcess(tmp_path, HOLDFAST_DEFAULT_MODEL="holdfast/offline") as server:
        body = {"name": "main", "enable_sleeptime": True, "agent_type": "letta_v1_agent"}
        main = httpx.post(f"{server.url}/v1/agents/", json=body, timeout=60).json()
        group = main["managed_group"]
        every = {"manager_type": "sleeptime", "sleeptime_agent_frequency": 1}
        httpx.patch(f"{server.url}/v1/groups/{group['id']}", json={"manager_config": every}, timeout=60)
        promised: list[str] = []
        for number in range(6):
            [run_id] = _say(server, main["id"], f"turn {number} [[say:Hi.]]")["usage"]["run_ids"]
            promised.append(run_id)
            _pause(number * 0.004)
            server.kill()
            server.start()
        made = _finished_runs(server, group["agent_ids"][0], len(promised))
        assert [run["id"] for run in made] == promised
        for number, run in enumerate(made):
            rows = httpx.get(f"{server.url}/v1/runs/{run['id']}/messages", timeout=60).json()
            [shown] = [row["content"] for row in rows if row["message_type"] == "user_message"]
            assert shown.count("user: turn") == 1 and f"user: turn {number} " in shown


def _pause(seconds: float) -> None:
    """When it is killed is what is being tried."""
    asyncio.run(asyncio.sleep(seconds))


def _finished_runs(server: ServerProcess, agent_id: str, count: int) -> list[dict[str, Any]]:
    for _ in range(600):
        query = {"agent_id": agent_id, "order": "asc"}
        listed = httpx.get(f"{server.url}/v1/runs/", params=query, timeout=60).json()
        if len(listed) >= count and all(run["status"] == "completed" for run in listed):
            return listed
        _pause(0.05)  # there is no event that a client could wait for
    raise AssertionError(f"they never ended:\n{server.read_log()}")
