"""Fences: what a resource keeps so that it can refuse the stale writer."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import StaleToken


class Fence(NamedTuple):
    """The proof that a lease hands to guards and headers. Frozen and picklable, unlike the lease.

    namespace, resource: what was locked.
    token: larger than that of every earlier exclusive holder.
    shared: whether it is that of a reader, beside which others may be valid.
    """

    namespace: str
    resource: str
    token: int
    shared: bool = False


class Seen(NamedTuple):
    """The two numbers that a guard keeps for a resource.

    newest: the largest token that it has let in.
    exclusive: the largest of those that were not shared.
    """

    newest: int = 0
    exclusive: int = 0


def admits(seen: Seen, token: int, shared: bool) -> bool:
    """Return whether a fence lets this token in. Equal tokens pass: one holder may write many times.

    With a single number live readers would refuse each other: their tokens differ, and all are valid.

    seen: what the guard keeps.
    token, shared: those of the fence.
    """
    return token >= (seen.exclusive if shared else seen.newest)


def enter(seen: Seen, fence: Fence) -> Seen:
    """Return the numbers after this fence was let in.

    seen: what the guard keeps.
    fence: who wants to write, or to read.

    Raises: StaleToken if a newer one was there before.
    """
    if not admits(seen, fence.token, fence.shared):
        newer = seen.exclusive if fence.shared else seen.newest
        error = StaleToken(
            f"token {fence.token} for {fence.resource!r} is stale: {newer} was here before; "
            "this holder lost its lease and must not write",
            resource=fence.resource,
            token=fence.token,
        )
        error.newest = newer
        raise error
    return Seen(max(seen.newest, fence.token), seen.exclusive if fence.shared else max(seen.exclusive, fence.token))
