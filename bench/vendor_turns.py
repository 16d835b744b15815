"""Turns of agents whose model is a vendor's, against asking the vendor directly: the heart's budget, with adapters.

The floor is taken between the turns, not before or after them: a machine's minutes differ by more than the figures.
"""

from __future__ import annotations

from typing import Final

from bench.client import ECHO_TOOL, Client
from bench.line import Line
from bench.process import Server
from bench.sections import Row, at_most, median_ms
from bench.vendor import CALL_ECHO, Vendor
from bench.words import ANTHROPIC, CHAT, Words

ONE_TOKEN: Final = "stream 1 every 0 us"
_ROUNDS: Final = 20
_EACH: Final = 10


async def vendor_turns(server: Server, client: Client, vendor: Vendor) -> list[Row]:
    tool = await client.tool(ECHO_TOOL)
    rows: list[Row] = []
    for name, model, words in (("OpenAI", "openai-proxy/bench", CHAT), ("Anthropic", "anthropic/bench", ANTHROPIC)):
        plain = [await client.agent(model=model) for _ in range(_ROUNDS)]
        with_tool = [await client.agent(tool, model=model) for _ in range(_ROUNDS)]
        rows += _measured(name, server, vendor, words, plain, with_tool)
    return rows


def _measured(
    name: str, server: Server, vendor: Vendor, words: Words, plain: list[str], with_tool: list[str]
) -> list[Row]:
    floor: list[float] = []
    floor_first: list[float] = []
    turn: list[float] = []
    first: list[float] = []
    tool_turn: list[float] = []
    cpu_s = 0.0
    with Line(server.url) as line, Line(vendor.root) as direct:
        for agent in plain:
            line.turn(agent, ONE_TOKEN)
        for agent, busy in zip(plain, with_tool, strict=True):
            floor += [direct.reply(words.path, ONE_TOKEN) for _ in range(_EACH)]
            before = server.cpu_s()
            turn += [line.turn(agent, ONE_TOKEN) for _ in range(_EACH)]
            cpu_s += server.cpu_s() - before
            floor_first += [direct.first_word(words.path, ONE_TOKEN) for _ in range(_EACH)]
            first += [line.first_piece(agent, ONE_TOKEN) for _ in range(_EACH)]
            tool_turn += [line.turn(busy, CALL_ECHO) for _ in range(_EACH // 2)]
    asked, over = median_ms(floor), f"through {name}'s protocol"
    return [
        at_most(f"no-tool turn {over}, overhead p50", median_ms(turn) - asked, "ms", 5),
        at_most(f"one-tool turn {over}, overhead p50", median_ms(tool_turn) - 2 * asked, "ms", 15),
        at_most(f"CPU of a no-tool turn {over}", cpu_s / len(turn) * 1e3, "ms", 5),
        at_most(f"time to the first token {over}, over the floor", median_ms(first) - median_ms(floor_first), "ms", 3),
    ]
