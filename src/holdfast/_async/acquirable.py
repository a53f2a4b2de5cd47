"""What every kind of lock has in common: it can be acquired, entered and used as a decorator."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Coroutine
from types import EllipsisType
from typing import Any, Generic, Never, ParamSpec, Protocol, TypeVar

from ..core.cancel import Cancel, check_cancel
from ..core.names import check_timeout, refuse_foreign
from ..errors import AcquireTimeout, NotHeld
from ..keeper.bodies import Strand
from ..keeper.entries import Entry, Exit, Exiting, begin
from . import runtime


class Enterable(Protocol):
    """A lease, or several that stand and fall together."""

    def __aenter__(self) -> Coroutine[Any, Any, Any]:
        """Begin the body of a `with`."""
        ...

    @property
    def __aexit__(self) -> Exiting[Coroutine[Any, Any, bool | None]]:
        """End it and release."""
        ...

    async def _begin(self, entry: Entry) -> None:
        """Begin the body of a `with`."""
        ...

    async def _end(self, entry: Entry, error: BaseException | None) -> bool | None:
        """End it and release."""
        ...


P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound=Enterable)


class Acquirable(Generic[L]):
    """Describes what to acquire. Immutable but for the leases entered through it: share it as you like."""

    def __init__(self, name: str, timeout: object) -> None:
        self._name = name  # as messages call it
        self.timeout = check_timeout(timeout)
        self._by_hand: dict[Strand, list[L]] = {}  # entered by a call of `__aenter__`
        self._unclear: list[weakref.ref[L]] = []  # such that nobody can tell any more whose they are

    def _take(
        self, timeout: float | None, entry: Entry | None = None, cancel: Cancel | None = None
    ) -> Coroutine[Any, Any, L]:
        """Acquire; with an entry, for the `with` statement that it stands for."""
        raise NotImplementedError

    @runtime.acquiring
    async def acquire(
        self, timeout: float | EllipsisType | None = ..., *, cancel: Cancel | None = None, **foreign: Never
    ) -> L:
        """Wait for it and return the lease.

        timeout: seconds to wait; None waits for ever, 0 asks once. Left out: the lock's own.
        cancel: ends the wait when its `cancel()` is called, in any thread, task or signal handler. None by default.
        foreign: nothing; an argument that only other libraries have is refused, with the one to use instead.

        Raises: AcquireTimeout if it stayed busy; StoreUnavailable; AcquireCancelled; Deadlock where this `with` block
        would wait for itself.
        """
        if foreign:
            refuse_foreign("acquire", foreign)
        return await self._take(self.timeout if timeout is ... else check_timeout(timeout), cancel=check_cancel(cancel))

    @runtime.asking
    async def try_acquire(
        self, timeout: float | None = 0, *, cancel: Cancel | None = None, **foreign: Never
    ) -> L | None:
        """Return the lease, or None if it stays busy for the timeout. Every other trouble raises.

        timeout: seconds to wait; 0, the default, asks once. None waits for ever.
        cancel, foreign: as for `acquire`.

        Raises: StoreUnavailable; AcquireCancelled; Deadlock as `acquire` does.
        """
        if foreign:
            refuse_foreign("try_acquire", foreign)
        seconds = check_timeout(timeout)
        try:
            return await self._take(seconds, cancel=check_cancel(cancel))
        except AcquireTimeout:
            return None

    def __aenter__(self) -> Coroutine[Any, Any, L]:
        return self._enter(begin(self))

    __aexit__ = Exit[Coroutine[Any, Any, None]](runtime.leave)

    async def _enter(self, entry: Entry) -> L:
        try:
            lease = await self._take(self.timeout, entry)
        except BaseException:
            entry.fail()
            raise
        await lease._begin(entry)
        if entry.guard is None:
            self._by_hand.setdefault(runtime.strand(), []).append(lease)
        return lease

    def _leave(self, entry: Entry, error: BaseException | None) -> Coroutine[Any, Any, bool | None]:
        if entry.target is None:
            entry.disarm()
        lease: L = entry.target or self._entered_by_hand()
        return lease._end(entry, error)

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Decorate a function: each call takes the lock, runs, and gives it back.

        function: a coroutine function for an asyncio client, a plain function otherwise. If it has a keyword-only
            parameter `lease`, it gets the lease there. Write `*, lease: Lease | None = None` where types are checked:
            callers do not pass it, and without a default a type checker would demand it from them. It is never None in
            the body.

        Raises: TypeError for what would go on after the lock was given back: a generator, or the other flavour; and for
        a function that takes `lease` by position.
        """
        runtime.check_function(function, f"lock({self._name})")
        pass_lease = wants_lease(function)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self as lease:
                if pass_lease:
                    kwargs["lease"] = lease
                return await function(*args, **kwargs)

        return locked

    def _any_unclear(self) -> bool:
        self._unclear = [known for known in self._unclear if known() is not None]
        return bool(self._unclear)

    def _entered_by_hand(self) -> L:
        """Return the lease that an `__aexit__` called by hand is about: the caller's last, else the only one."""
        here = runtime.strand()
        if here not in self._by_hand and sum(map(len, self._by_hand.values())) == 1 and not self._any_unclear():
            # Some frameworks exit in another thread than they entered. With a single lease there is no doubt.
            here = next(iter(self._by_hand))
        stack = self._by_hand.get(here)
        if not stack:
            # Nobody can tell any more whose exit comes when. What callers have kept of their leases stays held; for
            # the rest nobody could ever give it back, and it must not be renewed for ever.
            self._unclear += [weakref.ref(lease) for leases in self._by_hand.values() for lease in leases]
            self._by_hand.clear()
            raise NotHeld(
                f"cannot tell which lease on {self._name} this `with` entered: it was entered in another thread "
                "or task; use `with lock.acquire() as lease`, which may be exited anywhere"
            )
        lease = stack.pop()
        if not stack:
            self._by_hand.pop(here, None)
        return lease


def wants_lease(function: Callable[..., Any]) -> bool:
    """Return whether a function has the keyword-only parameter `lease`.

    Raises: TypeError if it has one that is not keyword-only: nobody would pass it.
    """
    import inspect  # not at the top: it costs a quarter of the import of holdfast

    wanted = inspect.signature(function).parameters.get("lease")
    if wanted is not None and wanted.kind in (wanted.POSITIONAL_ONLY, wanted.POSITIONAL_OR_KEYWORD):
        raise TypeError(
            f"{function!r} takes `lease` by position, and a decorator passes the lease by keyword only; "
            "write `*, lease` at the end of its parameters, or give the parameter another name"
        )
    return wanted is not None and wanted.kind is wanted.KEYWORD_ONLY
