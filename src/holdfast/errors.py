"""Errors: each message says the fact, the cause and the next move; all can be pickled."""

from __future__ import annotations


class LockError(Exception):
    """The root of everything that holdfast raises on purpose, bad arguments (ValueError, TypeError) aside.

    message: the fact, the cause and the next move, for people.
    resource: the name that it is about, None if it is about none.
    owner: the label of whoever held or asked; None where it is not known.
    token: the fencing token of the lease; None where there is none.
    """

    def __init__(
        self,
        message: str = "",
        *,
        resource: str | None = None,
        owner: str | None = None,
        token: int | None = None,
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.owner = owner
        self.token = token


class AcquireTimeout(LockError, TimeoutError):
    """The resource stayed busy for the whole timeout. Also a TimeoutError. A store that is silent is another error."""


class AcquireCancelled(LockError):
    """Somebody cancelled this acquire through its `Cancel`."""


class LeaseLost(LockError):
    """The lease ended before its holder let it go: another may hold the resource now."""


class NotHeld(LockError):
    """This lease is not (or no longer) held here: released, closed, or inherited through a fork."""


class StaleToken(LockError):
    """A fence has seen a newer token, `newest`: the writer has lost its lease and must not write."""

    newest: int = 0


class RateLimited(LockError):
    """The rate is used up; `retry_after` says in how many seconds it is worth asking again."""

    retry_after: float = 0.0


class Deadlock(LockError):
    """Waiting would never end: this actor waits, directly or through others, for itself.

    `cycle` has (resource, who waits for it, who holds it) for each wait that was found, beginning with this one.
    """

    cycle: tuple[tuple[str, str, str], ...] = ()


class Unsupported(LockError):
    """The store cannot do what was asked; the message names one that can."""


class StoreError(LockError):
    """The store refuses, or cannot keep its promises: damaged, foreign, full, misconfigured. Do not ask again."""


class StoreUnavailable(StoreError):
    """The store did not answer in time; whether it acted is unknown. Asking again may help."""
