"""The election: a lock that shows who has it, and that is taken again and again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ..core.cancel import Cancel, check_cancel
from ..core.claim import ResourceState, find
from ..core.fence import Fence
from ..core.names import check_value
from ..core.timing import backoff
from ..errors import AcquireCancelled, LeaseLost, StoreUnavailable
from ..keeper.entries import Entry, Exit, begin
from ..observe.log import logger
from . import runtime
from .lease import Lease
from .lock import Lock

if TYPE_CHECKING:
    from .engine import Engine

_LONGEST_PAUSE = 5.0  # between two tries of a candidate while the store does not answer
_LOOK_EVERY = 0.2  # during such a pause, whether the campaign was cancelled


class Leader(NamedTuple):
    """Who leads, as others see it: a view, out of date as soon as it is read.

    value: what the leader shows, its owner if it shows nothing.
    owner: the label of the leader.
    token: the fencing token of its term.
    """

    value: str
    owner: str
    token: int


class Term:
    """The time in which this candidate leads; yielded by `Election.terms`.

    Enter it (`async with term`): it ends with the body, and quietly if it is lost.
    """

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def resource(self) -> str:
        """The name of the election."""
        return self._lease.resource

    @property
    def token(self) -> int:
        """The fencing token: larger than that of every earlier leader."""
        return self._lease.token

    @property
    def fence(self) -> Fence:
        """The proof for guards and headers."""
        return self._lease.fence

    @property
    def lost(self) -> bool:
        """Whether the term ended before it was resigned; compares the clock at every read."""
        return self._lease.lost

    @property
    def remaining(self) -> float:
        """Seconds until the term is lost unless it is renewed."""
        return self._lease.remaining

    def check(self) -> None:
        """Return if this candidate leads.

        Raises: LeaseLost if the term was lost; NotHeld if it was resigned or belongs to another process.
        """
        self._lease.check()

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the term is lost (True); False when it was resigned, or not lost within the timeout.

        timeout: seconds to wait; None, the default, waits for ever, 0 only looks.
        """
        return await self._lease.wait_lost(timeout)

    async def resign(self) -> None:
        """End the term now, so that the next candidate leads at once. Resigning twice does nothing."""
        try:
            await self._lease.release()
        except LeaseLost:
            pass  # it is over: that was wanted

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._enter(begin(self))

    __aexit__ = Exit[Coroutine[Any, Any, bool]](runtime.leave)

    async def _enter(self, entry: Entry) -> Self:
        await self._lease._begin(entry)
        return self

    async def _leave(self, entry: Entry, error: BaseException | None) -> bool:
        try:
            await self._lease._end(entry, error)
        except LeaseLost:
            return True  # the body returned, or was cancelled for it
        return isinstance(error, LeaseLost) and (error.resource, error.token) == (self.resource, self.token)

    def __repr__(self) -> str:
        return f"<Term of {self.resource!r} token={self.token} {self._lease.state}>"


class Election:
    """Describes one candidate for an office, made by `Client.election`: whoever holds the lock of its name leads."""

    def __init__(
        self,
        engine: Engine,
        resource: str,
        *,
        value: str | None = None,
        ttl: float = 30.0,
        owner: str | None = None,
        on_lost: Callable[[Lease], Any] | None = None,
    ) -> None:
        self._engine = engine
        self.value = None if value is None else check_value(value, "value")
        self._options: dict[str, Any] = {"ttl": ttl, "owner": owner, "on_lost": on_lost}
        self.resource = Lock(engine, resource, **self._options).resource  # checks everything now

    def lead(self, timeout: float | None = None) -> Lock:
        """Describe one term as a lock: `async with election.lead(timeout=5) as lease`. Its loss raises LeaseLost.

        timeout: seconds to wait for the office; None, the default, waits for ever, 0 asks once.
        """
        return Lock(self._engine, self.resource, timeout=timeout, value=self.value, kind="election", **self._options)

    async def terms(self, *, cancel: Cancel | None = None) -> AsyncGenerator[Term, None]:
        """Campaign for ever: yield a term whenever this candidate leads.

        A term ends when it is lost, when it is resigned, or when the loop comes back for the next. A store that does
        not answer only delays the next term. What ends the loop is you (`break`, or `cancel`, from anywhere), or an
        error that waiting does not cure.

        cancel: ends the campaign, quietly, when its `cancel()` is called; a term that has begun goes on to its end.
            None by default.

        Raises: StoreError; LockError when the client is closed or drained.
        """
        lock = self.lead()
        check_cancel(cancel)
        failures = 0
        while True:
            try:
                lease = await lock._take(None, cancel=cancel)
            except AcquireCancelled:
                return
            except StoreUnavailable as error:
                logger.warning("the campaign for %r goes on, the store does not answer: %s", self.resource, error)
                await self._rest(backoff(failures, most=_LONGEST_PAUSE), cancel)
                failures += 1
                continue
            failures = 0
            term = Term(lease)
            try:
                yield term
            finally:
                await term.resign()

    async def _rest(self, seconds: float, cancel: Cancel | None) -> None:
        clock = self._engine.clock
        until = clock.now() + seconds
        while clock.now() < until and not (cancel is not None and cancel.cancelled):
            await runtime.sleep(clock, min(until, clock.now() + _LOOK_EVERY))

    async def leader(self) -> Leader | None:
        """Return who leads, or None. A view for people: to act on it, lead yourself and use the fence.

        Raises: StoreUnavailable; StoreError.
        """
        state = find(await self._engine.inspect(self.resource), self.resource)
        return self._shown(state)

    async def observe(self) -> AsyncGenerator[Leader | None, None]:
        """Yield who leads, now and after every change; None while nobody does. Quick changes may be skipped.

        Raises: StoreUnavailable when the store does not answer; observe again when it may.
        """
        first, last = True, None
        while True:
            self._engine.check_open()
            state = find(await self._engine.inspect(self.resource), self.resource)
            leader = self._shown(state)
            if first or leader != last:
                first, last = False, leader
                yield leader
            await self._engine.store.watch(self.resource, state, inf)

    def _shown(self, state: ResourceState | None) -> Leader | None:
        for claim in state.holders if state is not None else ():
            return Leader(claim.owner if claim.value is None else claim.value, claim.owner, claim.token)
        return None

    def __repr__(self) -> str:
        return f"<Election {self.resource!r}>"
