"""What can be interrupted, and what interruption means."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.engine.cancel_scope import CancelScope, Interrupted


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


async def test_undisturbed_work_gives_its_result() -> None:
    assert await CancelScope().run(answer()) == 42


async def test_an_exception_of_the_work_is_its_own() -> None:
    async def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await CancelScope().run(fail())


async def test_interrupted_work_has_cleaned_up_before_anybody_hears_of_it() -> None:
    scope, began, cleaned = CancelScope(), asyncio.Event(), False

    async def work() -> None:
        nonlocal cleaned
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    task = asyncio.create_task(scope.run(work()))
    await began.wait()
    scope.cancel("user")
    with pytest.raises(Interrupted) as interrupted:
        await task
    assert interrupted.value.reason == "user"
    assert cleaned


async def test_a_scope_that_is_cancelled_starts_nothing_more() -> None:
    scope = CancelScope()
    scope.cancel("shutdown")
    with pytest.raises(Interrupted, match="shutdown"):
        await scope.run(answer())
    with pytest.raises(Interrupted):
        scope.check()


async def test_only_losing_the_lease_replaces_an_earlier_reason() -> None:
    scope = CancelScope()
    scope.cancel("user")
    scope.cancel("shutdown")
    assert scope.reason == "user"
    scope.cancel("lease_lost")
    assert scope.reason == "lease_lost"


async def test_a_cancel_that_is_on_record_no_longer_interrupts_but_other_reasons_do() -> None:
    scope = CancelScope()
    scope.cancel("user")
    scope.clear_user()
    scope.check()
    scope.cancel("shutdown")
    scope.clear_user()
    with pytest.raises(Interrupted, match="shutdown"):
        scope.check()


async def test_whoever_drives_the_run_can_be_cancelled_like_any_task() -> None:
    task = asyncio.create_task(CancelScope().run(asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_result_that_came_first_is_not_lost() -> None:
    scope = CancelScope()

    async def finish_then_be_cancelled() -> str:
        asyncio.get_running_loop().call_soon(scope.cancel, "user")
        return "done"

    assert await scope.run(finish_then_be_cancelled()) == "done"
