"""A run that is loaded by its id does the same as one whose acceptance hands over what it has read."""

from __future__ import annotations

from pathlib import Path

from .crashing import MortalNode, Story
from .scenes import MODES, Mode, Scene, lead_up, pending_hold, play, played
from .templates import Template, world_from
from .test_crash_everywhere import ON_POSTGRES, check_memory, check_tools, story_of


async def told(template: Template, directory: Path, scene: Scene, mode: Mode, *, by_id: bool) -> Story:
    async with world_from(template, directory) as world:
        node = MortalNode(world, flushes=False)
        if by_id:
            node.worker.claims = lambda background: False
        await lead_up(node, scene)
        accepted = await play(node, scene.act, mode, hold=await pending_hold(world))
        assert (accepted.stream is None) is by_id
        await node.settled()
        story = await story_of(world)
        await check_tools(world, story)
        await check_memory(world, scene)
        return story


@played(MODES, ON_POSTGRES)
async def test_a_run_that_is_loaded_by_its_id_does_what_one_does_that_is_handed_over(
    template: Template, tmp_path: Path, scene: Scene, mode: Mode
) -> None:
    assert await told(template, tmp_path, scene, mode, by_id=True) == await told(
        template, tmp_path, scene, mode, by_id=False
    )
