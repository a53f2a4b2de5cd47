"""Leases: what an acquire gives. A hold is the granted claim; leases are handles on it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from ..core.claim import MAX, Claim, Lost, Renewed, Unknown
from ..core.fence import Fence
from ..core.lease import EXITS, HELD, LIVE, LOST, RELEASED, Ending, Fact, Raise, State
from ..core.names import check_timeout
from ..core.timing import RENEW_AT
from ..errors import LeaseLost, NotHeld, StoreError, StoreUnavailable, Unsupported
from . import runtime

if TYPE_CHECKING:
    from .keeper import Keeper


# Which holds each actor (by number) has on which resource, so that it cannot wait for itself.
HeldKey = tuple[int, str]
Held = dict[HeldKey, "weakref.ref[Hold]"]


class Hold:
    """A granted claim as this process sees it. The keeper knows it weakly, its leases keep it alive."""

    __slots__ = (
        "__weakref__", "cause", "claim", "deadline", "due", "granted", "keeper", "key", "leases", "min_hold", "queued",
        "ref", "renew_until", "renewing", "shares", "signal", "state", "token",
    )  # fmt: skip

    def __init__(
        self,
        keeper: Keeper,
        claim: Claim,
        token: int,
        since: float,
        deadline: float,
        key: HeldKey,
        min_hold: float,
        renew_until: float,
    ) -> None:
        self.keeper = keeper
        self.claim = claim
        self.token = token
        self.granted = since
        self.deadline = deadline
        self.key = key
        self.min_hold = min_hold
        self.renew_until = renew_until  # -inf: never renewed
        # From what is left, which may be less than the ttl: a session that others share was renewed before.
        self.due = since + (deadline - since) * RENEW_AT if renew_until > since else deadline
        self.queued = inf  # when the keeper's heap has it
        self.renewing = False
        self.state = HELD
        self.cause = ""
        self.ref = weakref.ref(self)
        self.shares = 1  # leases that have not been released
        self.leases: Sequence[weakref.ref[Lease]] = ()  # those that have to be told of a loss
        self.signal: runtime.Signal | None = None

    def look(self) -> State:
        """Return the state as of now. The clock decides, not the keeper: after a pause the body may run first."""
        if self.keeper.inherited:
            return LOST
        if self.state in LIVE and self.keeper.clock.now() >= self.deadline:
            self.keeper.learn(self, Fact.LATE)
        return self.state

    def keep(self) -> float:
        """Return how long the claim has to stay taken when it is released now."""
        return max(0.0, self.granted + self.min_hold - self.keeper.clock.now())

    def tell(self, lease: Lease) -> None:
        """Note that this lease has to be told of a loss."""
        self.leases = [*(ref for ref in self.leases if ref() is not None), weakref.ref(lease)]

    def listeners(self) -> list[Lease]:
        """Return the leases that have to be told of a loss."""
        return [lease for ref in self.leases if (lease := ref()) is not None]

    def __del__(self) -> None:
        # Runs anywhere, even in a thread that holds one of our locks: take none here.
        if self.state in LIVE and not self.keeper.inherited:
            self.keeper.dropped(self)


class Lease:
    """A hold on a resource. Enter it, or release it; ask it before every step that must not be done without it."""

    __slots__ = ("__weakref__", "_body", "_ended", "_hold", "_on_lost")

    def __init__(self, hold: Hold, on_lost: Callable[[Lease], Any] | None = None) -> None:
        self._hold = hold
        self._on_lost = on_lost
        self._body: runtime.Body | None = None
        self._ended: State | None = None  # how it ended for this handle, once it was released
        if on_lost is not None:
            hold.tell(self)

    @property
    def resource(self) -> str:
        """The name that is locked."""
        return self._hold.claim.resource

    @property
    def token(self) -> int:
        """The fencing token: larger than that of every earlier holder."""
        return self._hold.token

    @property
    def owner(self) -> str:
        """The label that others see."""
        return self._hold.claim.owner

    @property
    def ttl(self) -> float:
        """The length of the lease in seconds."""
        return self._hold.claim.ttl

    @property
    def fence(self) -> Fence:
        """The proof for guards and headers; it can be pickled and sent.

        Raises: Unsupported for permits, several of which are valid at once.
        """
        claim = self._hold.claim
        if claim.capacity < MAX:
            raise Unsupported(
                f"{self.resource!r} is held with {claim.capacity} permits, so no fence can tell a stale holder from a "
                "live one; guard the resource with a lock",
                **self._facts(),
            )
        return Fence(self._hold.keeper.namespace, claim.resource, self._hold.token, claim.shared)

    @property
    def state(self) -> State:
        """`held`, `at risk`, `lost` or `released`, as of now."""
        return self._ended or self._hold.look()

    @property
    def lost(self) -> bool:
        """Tell whether the lease ended before it was released; compares the clock at every read."""
        return (self._ended or self._hold.look()) is LOST

    @property
    def remaining(self) -> float:
        """Seconds until the lease is lost unless it is renewed."""
        hold = self._hold
        return max(0.0, hold.deadline - hold.keeper.clock.now()) if self.state in LIVE else 0.0

    def check(self) -> None:
        """Return if the lease is held.

        Raises: LeaseLost if it was lost; NotHeld if it was released or belongs to another process.
        """
        hold = self._hold
        if hold.keeper.inherited:
            self._raise_inherited()
        state = self._ended or hold.look()
        if state in LIVE:
            return
        if state is LOST:
            self._raise_lost()
        if self._ended:
            raise NotHeld(f"the lease on {self.resource!r} was released", **self._facts())
        raise NotHeld(f"the lease on {self.resource!r} was released when its client was closed", **self._facts())

    async def renew(self) -> None:
        """Renew now, without waiting for the keeper.

        Raises: LeaseLost; StoreUnavailable when the outcome is unknown: the lease then ends at its old deadline.
        """
        self.check()
        hold = self._hold
        asked = hold.keeper.clock.now()
        try:
            (answer,) = await hold.keeper.store.renew([hold.claim])
        except StoreError as error:
            hold.keeper.renewed(hold, Unknown(str(error)), asked)
            raise
        hold.keeper.renewed(hold, answer, asked)
        if isinstance(answer, Renewed | Lost):
            return self.check()
        raise StoreUnavailable(
            f"the renewal of {self.resource!r} went unanswered ({answer.cause}); "
            f"the lease is lost in {self.remaining:.1f} s unless a later one succeeds",
            **self._facts(),
        )

    async def release(self) -> None:
        """Give the resource back. Releasing twice does nothing.

        Raises: LeaseLost if the lease was lost before; NotHeld in a forked child.
        """
        if self._ended is not None:
            return
        hold = self._hold
        if hold.keeper.inherited:
            self._raise_inherited()
        self._ended = RELEASED
        hold.shares -= 1
        if not hold.shares:
            held = await hold.keeper.release(hold)
        else:  # the hold stays with the other leases of a re-entrant lock
            hold.leases = [ref for ref in hold.leases if ref() is not self]
            held = hold.look() is not LOST
        if not held:
            self._ended = LOST
            self._raise_lost()

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost (True); False when it was released, or not lost within the timeout."""
        seconds = check_timeout(timeout)
        keeper, hold = self._hold.keeper, self._hold
        if hold.signal is None:
            hold.signal = runtime.Signal()
        until = float("inf") if seconds is None else keeper.clock.now() + seconds
        while hold.look() in LIVE and keeper.clock.now() < until:
            await hold.signal.wait(keeper.clock, min(until, hold.deadline))
        return hold.look() is LOST

    async def __aenter__(self) -> Lease:
        self.check()  # the body never starts without a lease
        if self._body is not None:
            raise NotHeld(f"the lease on {self.resource!r} is entered already; acquire once more", **self._facts())
        self._body = runtime.Body()
        if self._on_lost is None:
            self._hold.tell(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        if body is None:
            raise NotHeld(f"the lease on {self.resource!r} is not entered", **self._facts())
        if self._hold.keeper.inherited:
            return  # a forked child leaves its parent's `with`: nothing here is its to release
        lost = self.lost
        ending = await body.ended(error)
        try:
            await self.release()
        except LeaseLost:
            lost = True
        self._leave(ending, lost, error)

    def _leave(self, ending: Ending, lost: bool, error: BaseException | None) -> None:
        match EXITS[ending, lost]:
            case Raise.LEASE_LOST:
                self._raise_lost(error)
            case Raise.BODY_WITH_NOTE if error is not None:
                error.add_note(f"holdfast: meanwhile {self._lost_message()}")

    def told(self, message: str) -> None:
        """Learn of the loss: stop the body and call on_lost. Called by the keeper, once."""
        if self._body is not None and not self._body.runs_here():  # close() tells in the body's own task
            self._body.cancel(message)
        if self._on_lost is not None:
            self._on_lost(self)

    def spare(self) -> None:
        """Do not cancel the body for a loss that it is finding out itself, right now."""
        if self._body is not None and self._body.runs_here():
            self._body.spare()

    def _raise_inherited(self) -> NoReturn:
        raise NotHeld(
            f"the lease on {self.resource!r} belongs to process {self._hold.keeper.pid}, which forked this one; "
            "acquire in this process",
            **self._facts(),
        )

    def _facts(self) -> dict[str, Any]:
        return {"resource": self.resource, "owner": self.owner, "token": self.token}

    def _lost_message(self) -> str:
        return (
            f"the lease on {self.resource!r} (token {self.token}) was lost: {self._hold.cause}; "
            "another may hold it now, so what was done since needs a guard"
        )

    def _raise_lost(self, cause: BaseException | None = None) -> NoReturn:
        raise LeaseLost(self._lost_message(), **self._facts()) from cause

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lease belongs to this process and cannot be pickled; send lease.fence instead")

    def __repr__(self) -> str:
        return f"<Lease {self.resource!r} token={self.token} {self.state}>"
