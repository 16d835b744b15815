"""Turns of agents whose model is a vendor's, against asking the vendor directly: the heart's budget, with adapters.

The floor is taken between the turns, not before or after them: a machine's minutes differ by more than the figures.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from bench.calibration import Gauge
from bench.client import ECHO_TOOL, Client
from bench.payload import ANTHROPIC, CHAT, Words
from bench.process import Server
from bench.sections import AGENTS, Row, at_most, rounds
from bench.socket_client import Line
from bench.vendor import CALL_ECHO, Vendor

ONE_TOKEN: Final = "stream 1 every 0 us"
_EACH: Final = 10


async def vendor_turns(server: Server, client: Client, vendor: Vendor) -> list[Row]:
    tool = await client.tool(ECHO_TOOL)
    rows: list[Row] = []
    for name, model, words in (("OpenAI", "openai-proxy/bench", CHAT), ("Anthropic", "anthropic/bench", ANTHROPIC)):
        plain = [await client.agent(model=model) for _ in range(AGENTS)]
        with_tool = [await client.agent(tool, model=model) for _ in range(AGENTS)]
        rows += _measured(name, server, vendor, words, plain, with_tool)
    return rows


def _measured(
    name: str, server: Server, vendor: Vendor, words: Words, plain: list[str], with_tool: list[str]
) -> list[Row]:
    gauge = Gauge()
    with Line(server.url) as line, Line(vendor.root) as direct:
        for agent in plain:
            line.turn(agent, ONE_TOKEN)
        for number in rounds(gauge):
            agent, busy = plain[number % AGENTS], with_tool[number % AGENTS]
            gauge.take("floor", partial(direct.reply, words.path, ONE_TOKEN), _EACH)
            gauge.take("turn", partial(line.turn, agent, ONE_TOKEN), _EACH, server.cpu_s)
            gauge.take("first floor", partial(direct.first_word, words.path, ONE_TOKEN), _EACH)
            gauge.take("first", partial(line.first_piece, agent, ONE_TOKEN), _EACH)
            gauge.take("tool turn", partial(line.turn, busy, CALL_ECHO), _EACH // 2)
    over = f"through {name}'s protocol"
    return [
        at_most(f"no-tool turn {over}, overhead p50", gauge.over("turn", "floor"), "ms", 5),
        at_most(f"one-tool turn {over}, overhead p50", gauge.over("tool turn", "floor", 2), "ms", 15),
        at_most(f"CPU of a no-tool turn {over}", gauge.mean_ms("turn cpu"), "ms", 5),
        at_most(f"time to the first token {over}, over the floor", gauge.over("first", "first floor"), "ms", 3),
    ]
