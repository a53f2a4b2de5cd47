"""uvloop instead of asyncio's own loop: a blocked loop loses no lease, and a cancellation leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import holdfast.aio
from holdfast.errors import LeaseLost
from holdfast.testing import contract
from holdfast.testing._async import runtime
from holdfast.testing.contract import Law, Target

uvloop: Any = pytest.importorskip("uvloop")

STORES = [Target("memory://", driven=True), Target("sqlite://{folder}/locks.db", driven=True)]
TABLE = [
    (store, law)
    for store in STORES
    for law in contract.laws(store, ["async"])
    if law.number == 15 or "cancel" in law.needs
]


def run(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
    """Run to its end in a loop of uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(function(*args))


@pytest.mark.parametrize(("store", "law"), TABLE, ids=str)
def test_law_on_uvloop(store: Target, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[object] = []

    def noted(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        async def play() -> Any:
            loops.append(asyncio.get_running_loop())
            return await function(*args)

        return run(play)

    monkeypatch.setattr(runtime, "run", noted)
    law.run(store)
    assert [type(loop) for loop in loops] == [uvloop.Loop]


def test_a_loss_cancels_the_body(name: str) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(f"memory://{name}") as locks:
            with pytest.raises(LeaseLost):
                async with locks.lock("r", ttl=0.5, renew=False):
                    await asyncio.sleep(60)

    run(main)
