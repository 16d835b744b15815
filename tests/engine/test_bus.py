from __future__ import annotations

import asyncio

from holdfast.engine.bus import Bus

SOON = 5.0


async def test_whoever_watches_a_run_is_woken_and_nobody_else() -> None:
    bus = Bus()
    with bus.watch("run-1") as first, bus.watch("run-1") as second, bus.watch("run-2") as other:
        waiting = [asyncio.create_task(watch.woken(None)) for watch in (first, second)]
        bus.wake("run-1")
        await asyncio.wait_for(asyncio.gather(*waiting), SOON)
        elsewhere = asyncio.create_task(other.woken(None))
        await asyncio.sleep(0)
        assert not elsewhere.done()
        bus.wake_all()
        await asyncio.wait_for(elsewhere, SOON)


async def test_a_wake_up_that_comes_before_the_wait_is_not_lost() -> None:
    bus = Bus()
    with bus.watch("run-1") as watch:
        bus.wake("run-1")
        await asyncio.wait_for(watch.woken(None), SOON)
        again = asyncio.create_task(watch.woken(None))
        await asyncio.sleep(0)
        assert not again.done(), "one wake-up ends one wait"
        again.cancel()


async def test_a_wait_ends_by_itself_when_nobody_wakes_it() -> None:
    with Bus().watch("run-1") as watch:
        await asyncio.wait_for(watch.woken(0.001), SOON)


async def test_a_run_that_nobody_watches_any_more_is_forgotten() -> None:
    bus = Bus()
    with bus.watch("run-1"), bus.watch("run-1"):
        pass
    bus.wake("run-1")
    assert not vars(bus)["_watches"]
