"""The laws between processes: exclusion, kill, stop and fork."""

from __future__ import annotations

import signal

from ...core.promises import Scope
from ..law import law
from .case import Case
from .runtime import eventually


@law(1, "host")
async def processes_exclude_each_other(case: Case) -> None:
    """Of several processes one at a time is inside, and all their tokens are different."""
    inside = str(case.folder / "inside")
    children = [case.child("contend", ttl=60, rounds=25, inside=inside) for _ in range(3)]
    tokens: list[int] = []
    for child in children:
        await eventually(lambda child=child: child.ended, limit=60)  # type: ignore[misc]
        assert child.said[0][0] == "tokens"
        tokens += child.said[0][1]
        assert child.said[0][1] == sorted(child.said[0][1])
    assert len(set(tokens)) == len(tokens) == 75


@law(6, "host")
async def killed_holder_is_followed_by_the_next_waiter(case: Case) -> None:
    """kill -9 of a holder: whoever waits has the resource within ttl + waiting life + 1 s."""
    child = case.child("hold", ttl=case.real_ttl)
    await eventually(child.heard)
    client = await case.client(real=True)
    call = case.spawn(client.lock("r", ttl=60).acquire)
    await eventually(lambda: client.tap.count("wait") > 0)
    child.kill()
    lease = await call.join(case.real_ttl + case.capabilities.waiting_life + 1.0)
    assert lease.token > child.said[0][1]


@law(6, "host", "fair")
async def killed_waiter_does_not_block_the_line(case: Case) -> None:
    """kill -9 of a waiter: whoever stands behind it moves up within a waiting life + 1 s."""
    client, behind = await case.client(real=True), await case.client(real=True)
    lease = await client.lock("r", ttl=60).acquire()
    child = case.child("hold", ttl=case.real_ttl)
    await eventually(child.heard)
    assert child.said == [["queued"]]
    call = case.spawn(behind.lock("r", ttl=60).acquire)
    await eventually(lambda: behind.tap.count("wait") > 0)
    child.kill()
    await lease.release()
    await call.join(case.capabilities.waiting_life + 1.0)


@law(9, "host")
async def stopped_holder_sees_its_loss_at_the_first_look(case: Case) -> None:
    """SIGSTOP of a holder past its ttl: the waiter gets the resource, and the resumed process knows."""
    look = case.folder / "look"
    child = case.child("hold", ttl=case.real_ttl, look=str(look))
    await eventually(child.heard)
    client = await case.client(real=True)
    child.signal(signal.SIGSTOP)
    call = case.spawn(client.lock("r", ttl=60).acquire)
    lease = await call.join(case.real_ttl + case.capabilities.waiting_life + 1.0)
    assert lease.token > child.said[0][1]
    look.touch()
    child.signal(signal.SIGCONT)
    await eventually(lambda: child.heard(2))
    assert child.said[1] == ["lost", True]


@law(14, "host", "detached")
async def detached_claim_outlives_its_process(case: Case) -> None:
    """kill -9 does not free what was promised to stay taken until its ttl."""
    ttl = case.real_ttl + 1.0
    child = case.child("hold", ttl=ttl, renew=False)
    await eventually(child.heard)
    child.kill()
    client = await case.client(real=True)
    assert await client.lock("r", ttl=60).try_acquire() is None
    call = case.spawn(client.lock("r", ttl=60).acquire)
    lease = await call.join(ttl + case.capabilities.waiting_life + 1.0)
    assert lease.token > child.said[0][1]


@law(14, "host")
async def closed_process_leaves_nothing(case: Case) -> None:
    """A process that closed its client has given everything back."""
    child = case.child("hold", ttl=60)
    await eventually(child.heard)
    client = await case.client(real=True)
    call = case.spawn(client.lock("r", ttl=60).acquire)
    await eventually(lambda: client.tap.count("wait") > 0)
    child.stop()
    await call.join()
    await eventually(lambda: child.said[-1] == ["closed"])


@law(11)
async def lease_stays_with_the_process_that_took_it(case: Case) -> None:
    """In a forked child an inherited lease is not held and its `with` ends silently; the child's own locks work."""
    child = case.child("fork", ttl=60)
    await eventually(lambda: child.ended)
    said = {line[0]: line[1:] for line in child.said}
    assert "failed" not in said, said
    assert said["check"] == ["NotHeld"]
    assert said["release"] == ["NotHeld"]
    assert said["lost"] == [True]
    assert said["exit"] == ["silent"]
    assert said["other"] == ["held"]
    if case.capabilities.scope is not Scope.PROCESS:
        assert said["same"] == [True]
    assert said["parent"] == [False, "held"]
    assert said["released"] == ["released"]
