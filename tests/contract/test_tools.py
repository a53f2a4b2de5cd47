"""What laws and tests are written with: waiting for what must come true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.testing._async import runtime as asynchronous
from holdfast.testing._sync import runtime as blocking


def eventually_in_loop(*args: Any, **options: Any) -> None:
    asyncio.run(asynchronous.eventually(*args, **options))


@pytest.fixture(params=[blocking.eventually, eventually_in_loop], ids=["sync", "async"])
def eventually(request: pytest.FixtureRequest) -> Callable[..., None]:
    found: Callable[..., None] = request.param
    return found


def test_looks_again_and_drives_before_every_further_look(eventually: Callable[..., None]) -> None:
    driven: list[int] = []
    eventually(lambda: len(driven) >= 3, lambda: driven.append(1))
    assert len(driven) == 3
    eventually(lambda: True, driven.clear)
    assert len(driven) == 3


def test_says_what_was_waited_for(eventually: Callable[..., None]) -> None:
    never: list[int] = []
    with pytest.raises(AssertionError, match=r"within 0\.01 s: .*lambda: never"):
        eventually(lambda: never, limit=0.01)
    with pytest.raises(AssertionError, match=r"within 0\.01 s: <built-in"):
        eventually(never.copy, limit=0.01)
    with pytest.raises(AssertionError, match=r"waited 0\.01 s: look at 0 things"):
        eventually(lambda: never, limit=0.01, complaint=lambda: f"look at {len(never)} things")


def test_error_of_the_condition_ends_the_wait_at_once(eventually: Callable[..., None]) -> None:
    with pytest.raises(ZeroDivisionError):
        eventually(lambda: 1 / 0)


def test_condition_may_be_a_coroutine_function() -> None:
    answers = [False, False, True]

    async def asked() -> bool:
        return answers.pop(0)

    eventually_in_loop(asked)
    assert answers == []
