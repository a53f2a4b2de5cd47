"""What the tests of formats share: every verb of a store that was in use before its data got another format."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from holdfast._async.store import Store
from holdfast.core.claim import Claim, Granted, Record, Renewed, Unknown, Waiting
from holdfast.core.fence import Fence
from holdfast.errors import StoreError, StoreUnavailable

HELD = Claim("r", "client.held")
WAITING = Claim("r", "client.waiting")


class InUse(NamedTuple):
    """A store in the middle of its life: "r" is held and waited for, and the register "k" is written."""

    store: Store
    fence: Fence
    waiting: Waiting


async def use(store: Store) -> InUse:
    """Bring a store into the middle of its life."""
    held, waiting = await store.claim(HELD), await store.claim(WAITING)
    assert isinstance(held, Granted)
    assert isinstance(waiting, Waiting)
    fence = Fence("default", "r", held.token)
    await store.write("k", "before", fence)
    return InUse(store, fence, waiting)


def verbs(in_use: InUse, *, keeps: bool = True, ends: bool = True) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return a call of every verb on what is there, by name. `keeps` and `ends`: of releases, too."""
    store, fence, _ = in_use
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "claim": lambda: store.claim(Claim("r", "client.new")),
        "claim at once": lambda: store.claim(Claim("r", "client.new"), False),
        "claim of the holder": lambda: store.claim(HELD),
        "claim of a waiter": lambda: store.claim(WAITING),
        "renew": lambda: store.renew([HELD]),
        "inspect": lambda: store.inspect(),
        "watch": lambda: store.watch("r", None, time.monotonic() + 60),
        "read": lambda: store.read("k"),
        "read with a fence": lambda: store.read("k", fence),
        "write": lambda: store.write("k", "after", fence),
    }
    if ends:
        calls["release"] = lambda: store.release("r", HELD.holder)
        calls["withdraw"] = lambda: store.release("r", WAITING.holder)
    if keeps:
        calls["release and keep"] = lambda: store.release("r", HELD.holder, 5.0)
    return calls


async def said_by(call: Callable[[], Awaitable[object]]) -> str:
    """Return with which words a verb is refused; a renewal may answer that it does not know, and why."""
    try:
        answer = await call()
    except StoreError as error:
        return f"asked again for nothing: {error}" if isinstance(error, StoreUnavailable) else str(error)
    if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], Unknown):
        return answer[0].cause
    return f"not refused: {answer!r}"


async def check_all_refused(
    in_use: InUse, look: Callable[[], object], *, keeps: bool = True, ends: bool = True
) -> None:
    """Check that every verb is refused, names format 2 and format 1, and changes nothing."""
    before = look()
    for name, call in verbs(in_use, keeps=keeps, ends=ends).items():
        said = await said_by(call)
        assert "has format 2, and this version of holdfast reads format 1" in said, (name, said)
        assert not said.startswith("asked again"), (name, said)
        assert look() == before, name


async def check_goes_on(in_use: InUse, *, renews: bool = True) -> None:
    """Check that the same client goes on with data of its own format: only the number was in the way."""
    store, fence, _ = in_use
    (renewed,) = await store.renew([HELD])
    assert isinstance(renewed, Renewed) is renews
    assert [state.holders[0].token for state in await store.inspect()] == [fence.token]
    assert await store.read("k", fence) == Record("before", fence.token)
    await store.write("k", "after", fence)
    assert await store.release("r", HELD.holder)
    assert isinstance(await store.claim(WAITING), Granted)
    assert await store.release("r", WAITING.holder)
