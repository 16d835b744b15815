"""A server that ends while a vendor's model has the word, or a person: the next one carries on with the same vendor.

About the server, so of the adapters a run has one of ours and one that speaks through a vendor's library.
"""

from __future__ import annotations

import pytest
from letta_client import AsyncLetta

from tests.conformance.answers import answer, approval, asked_ids
from tests.conformance.checks import check_at_rest, check_next_message_works, check_told_is_stored, read_agent, rows
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import ended_run, eventually, send
from tests.conformance.proofs import PROOF, proofs
from tests.conformance.vendors import Site, VendorProcess, with_four_adapters

# A vendor and its server may have to be started first, then the server again: a busy machine needs a while.
pytestmark = [with_four_adapters, pytest.mark.timeout(300)]


async def test_an_approval_is_given_after_a_crash(
    client: AsyncLetta, make_agent: MakeAgent, fake: VendorProcess, site: Site
) -> None:
    agent = await make_agent("bash_tool", "print_tool")
    both = " ".join(f'[[call:bash_tool {{"operation": "{name}"}}]]' for name in ("ls", "pwd"))
    paused = await send(client, "token", agent, f'{both} [[call:print_tool {{"message": "hi"}}]]')
    asked = paused.only("approval_request_message")
    ls, pwd = asked_ids(asked)

    site.server.kill()
    site.server.start()

    assert (await read_agent(client, agent))["pending_approval"]["id"] == asked["id"]
    answered = await send(client, "token", agent, answer([approval(ls, True), approval(pwd, False, "not here")]))
    returns = answered.messages[0]["tool_returns"]
    assert [back["status"] for back in returns] == ["success", "error", "success"]
    assert returns[0]["tool_return"] == "ran ls"
    assert "not here" in answered.text
    if site.vendor.name in PROOF:
        assert len(proofs(fake, site)) >= 1, "what it thought before the crash"
    await check_told_is_stored(client, agent, answered)
    await check_next_message_works(client, agent)


async def test_a_reply_that_a_restart_interrupted_is_asked_for_again(
    client: AsyncLetta, make_agent: MakeAgent, fake: VendorProcess, site: Site
) -> None:
    """The vendor's line goes dead with the server; the run goes on with a new one."""
    agent = await make_agent("print_tool")
    before = fake.standing()
    begun = await client.agents.messages.create_async(
        agent_id=agent, messages=[{"role": "user", "content": "Call print_tool with 'x' [[ttft:4@2]]"}]
    )

    async def look() -> bool | None:
        return True if fake.standing().asked == before.asked + 2 else None

    await eventually(look, "the second call was not made")
    site.server.stop()
    assert fake.check_none_open().left == before.left + 1
    site.server.start()

    assert (await ended_run(client, begun.id, patience_s=60))["stop_reason"] == "end_turn"
    assert (await rows(client, agent)).count("tool_return_message") == 1
    await check_at_rest(client, agent)
    await check_next_message_works(client, agent)
