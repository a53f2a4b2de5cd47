"""Leases: what an acquire gives. A hold is the granted claim; leases are handles on it."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn

from ..core.claim import MAX, Lost, Renewed, Unknown, actor_of
from ..core.fence import Fence
from ..core.lease import EXITS, LIVE, LOST, RELEASED, RETURNED, Hold, Raise, State
from ..core.names import check_timeout, check_ttl
from ..errors import LeaseLost, NotHeld, StoreUnavailable, Unsupported
from ..keeper.bodies import open_body
from ..keeper.entries import Entry, Exit, Share, begin
from ..observe.log import logger
from . import runtime

if TYPE_CHECKING:
    from .engine import Engine


class Lease(Share):
    """A hold on a resource: what an acquire returns.

    Enter it (`async with lease`), or release it, in any thread or task. Ask it before every step that must not be done
    without it: `check()`. It cannot be pickled; `fence` can.
    """

    __slots__ = ("__weakref__", "_body", "_ended", "_engine", "_on_lost")

    def __init__(self, engine: Engine, hold: Hold, on_lost: Callable[[Lease], Any] | None = None) -> None:
        # Those of Share, whose constructor would be another call.
        self._hold = hold
        self._counted = 0
        self._settled = False
        self._engine = engine
        self._on_lost = on_lost
        self._body: runtime.Body | None = None
        self._ended = RELEASED  # how it ended for this handle, once it is settled
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
        return Fence(self._engine.namespace, claim.resource, self._hold.token, claim.shared)

    @property
    def state(self) -> State:
        """`held`, `at risk`, `lost` or `released`, as of now."""
        return self._ended if self._settled else self._hold.keeper.look(self._hold)

    @property
    def lost(self) -> bool:
        """Whether the lease ended before it was released; compares the clock at every read."""
        return self.state is LOST

    @property
    def remaining(self) -> float:
        """Seconds until the lease is lost unless it is renewed; 0 if it was lost or released."""
        return max(0.0, self._hold.deadline - self._engine.now()) if self.state in LIVE else 0.0

    def check(self) -> None:
        """Return if the lease is held.

        Raises: LeaseLost if it was lost; NotHeld if it was released or belongs to another process.
        """
        if self._hold.keeper.inherited:
            self._raise_inherited()
        state = self.state
        if state in LIVE:
            return
        if state is LOST:
            self._raise_lost()
        closed = "" if self._counted else " when its client was closed"
        raise NotHeld(f"the lease on {self.resource!r} was released{closed}", **self._facts())

    async def renew(self) -> None:
        """Renew now, without waiting for the keeper.

        Raises: LeaseLost; StoreUnavailable when the outcome is unknown: the lease then ends at its old deadline.
        """
        self.check()
        self._answered(await self._engine.renew(self._hold))

    def _answered(self, answer: Renewed | Lost | Unknown) -> None:
        if isinstance(answer, Renewed | Lost):
            return self.check()
        raise StoreUnavailable(
            f"the renewal of {self.resource!r} went unanswered ({answer.cause}); "
            f"the lease is lost in {self.remaining:.1f} s unless a later one succeeds",
            **self._facts(),
        )

    async def extend(self, ttl: float) -> None:
        """Make the lease longer: renew it now with this ttl, and with it from now on.

        ttl: seconds, at least what it has now. For so long the resource stays taken if this process dies.

        Takes a few seconds more than a renewal if one went unanswered just before: that one must not arrive later and
        cut this one short.

        Raises: LeaseLost; StoreUnavailable when the outcome is unknown: later renewals ask for the longer ttl all the
        same; Unsupported where the store cannot: give the lock a longer ttl instead.
        """
        seconds, can = check_ttl(ttl), self._engine.capabilities
        if seconds < self.ttl:
            raise ValueError(f"extend(ttl={ttl!r}) must not be shorter than the lease, whose ttl is {self.ttl:g} s")
        if not can.extend or seconds > can.max_ttl:
            why = f"keeps leases of {can.max_ttl:g} s at most" if can.extend else "cannot make a lease longer"
            raise Unsupported(f"{can.store} {why}; give lock(..., ttl=) what is needed", **self._facts())
        self.check()
        self._answered(await self._engine.extend(self._hold, seconds))

    async def release(self) -> None:
        """Give the resource back. Releasing twice does nothing; if the first was interrupted, the second finishes it.

        Raises: LeaseLost if the lease was lost before; NotHeld in a forked child.
        """
        if self._hold.keeper.inherited and not self._settled:
            self._raise_inherited()
        if not await self._engine.release(self):
            self._raise_lost()

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost (True); False when it was released, or not lost within the timeout.

        timeout: seconds to wait; None, the default, waits for ever, 0 only looks.
        """
        seconds = check_timeout(timeout)
        clock, hold, look = self._engine.clock, self._hold, self._hold.keeper.look
        if look(hold) not in LIVE:
            return look(hold) is LOST
        signal = hold.keeper.signal_of(hold, runtime.Signal)
        until = float("inf") if seconds is None else clock.now() + seconds
        while look(hold) in LIVE and clock.now() < until:
            await signal.wait(clock, min(until, hold.deadline))
        return look(hold) is LOST

    def __aenter__(self) -> Coroutine[Any, Any, Lease]:
        return self._enter(begin(self))

    __aexit__ = Exit[Coroutine[Any, Any, None]](runtime.leave)

    async def _enter(self, entry: Entry) -> Lease:
        await self._begin(entry)
        return self

    def _leave(self, entry: Entry, error: BaseException | None) -> Coroutine[Any, Any, None]:
        return self._end(entry, error)

    async def _begin(self, entry: Entry) -> None:
        """Begin the body of a `with`."""
        if self._body is not None:
            entry.fail()
            raise NotHeld(f"the lease on {self.resource!r} is entered already; acquire once more", **self._facts())
        if not entry.leases:
            entry.note(self)
        entry.target = self
        hold = self._hold
        if self._settled or hold.keeper.look(hold) not in LIVE:
            self.check()  # the body never starts without a lease
        if not entry.actor:
            entry.actor = actor_of(hold.claim.holder)
        hold.thread = get_ident()  # where it can be given back: not where it was acquired, if it was handed on
        open_body(entry, entry.strand or runtime.strand())
        self._body = runtime.begin_body()
        if self._on_lost is None and runtime.CANCELS:
            hold.tell(self)

    async def _end(self, entry: Entry, error: BaseException | None) -> None:
        """End the body of a `with`, and release."""
        body = self._body
        if body is None:
            entry.disarm()
            raise NotHeld(f"the lease on {self.resource!r} is not entered", **self._facts())
        if self._hold.keeper.inherited:
            self._body = None
            return  # a forked child leaves its parent's `with`: nothing here is its to release
        ending = RETURNED if body.returned(error) else await body.ended(error)
        await self._engine.release(self)
        self._body = None
        entry.disarm()
        lost = self._ended is LOST
        if ending is RETURNED and not lost:
            return
        match EXITS[ending, lost]:
            case Raise.LEASE_LOST:
                self._raise_lost(error)
            case Raise.BODY_WITH_NOTE if error is not None:
                error.add_note(f"holdfast: meanwhile {self._lost_message()}")

    # -- called by the keeper

    def _spare(self) -> None:
        """Do not cancel the body for a loss that it is finding out itself, right now."""
        if self._body is not None and self._body.runs_here():
            self._body.spare()

    def _hear(self) -> None:
        """Learn of the loss, once, where foreign code may run: stop the body and call on_lost."""
        if self._body is not None:
            self._body.cancel(f"the lease on {self.resource!r} (token {self.token}) was lost: {self._hold.cause}")
        if self._on_lost is None:
            return
        try:
            self._engine.home.follow(self._on_lost(self), f"on_lost of {self.resource!r}")
        except KeyboardInterrupt:
            raise
        except BaseException:  # neither sys.exit() nor a cancelled future in a callback may end what tells all others
            logger.exception("on_lost of %r failed", self.resource)

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
