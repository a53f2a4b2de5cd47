"""What every kind of lock has in common: it can be acquired, entered and used as a decorator."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from types import EllipsisType, TracebackType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from ..core.names import check_timeout
from ..errors import AcquireTimeout, NotHeld
from . import runtime


class Enterable(Protocol):
    """A lease, or several that stand and fall together."""

    async def __aenter__(self) -> Any:
        """Begin a body."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it and release."""
        ...


P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound=Enterable)


class Wish(Generic[L]):
    """Describes what to acquire. Immutable but for the leases entered through it: share it as you like."""

    def __init__(self, name: str, timeout: object) -> None:
        self._name = name  # as messages call it
        self.timeout = check_timeout(timeout)
        self._entered: dict[int, list[L]] = {}

    async def _take(self, timeout: float | None) -> L:
        raise NotImplementedError

    @runtime.acquiring
    async def acquire(self, timeout: float | EllipsisType | None = ...) -> L:
        """Wait for it and return the lease. `timeout` overrides the lock's: None for ever, 0 asks once.

        Raises: AcquireTimeout; StoreUnavailable; Deadlock if this actor holds it already.
        """
        return await self._take(self.timeout if timeout is ... else check_timeout(timeout))

    async def try_acquire(self, timeout: float | None = 0) -> L | None:
        """Return the lease, or None if it stays busy for the timeout. Every other trouble raises."""
        seconds = check_timeout(timeout)
        try:
            return await self._take(seconds)
        except AcquireTimeout:
            return None

    async def __aenter__(self) -> L:
        lease = await self._take(self.timeout)
        await lease.__aenter__()
        self._entered.setdefault(runtime.actor()[0], []).append(lease)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave().__aexit__(kind, error, trace)

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Decorate a function: it runs under the lock and gets the lease as `lease`, if it has that parameter."""
        runtime.check_function(function, f"lock({self._name})")
        pass_lease = wants_lease(function)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self.acquire() as lease:
                if pass_lease:
                    kwargs["lease"] = lease
                return await function(*args, **kwargs)

        return locked

    def _leave(self) -> L:
        """Take the lease that this `with` entered off its stack."""
        here = runtime.actor()[0]
        if here not in self._entered and len(self._entered) == 1:
            # Some frameworks exit in another thread than they entered. With a single lease there is no doubt.
            here = next(iter(self._entered))
            if len(self._entered[here]) > 1:
                here = -1
        stack = self._entered.get(here)
        if not stack:
            raise NotHeld(
                f"cannot tell which lease on {self._name} this `with` entered: it was entered in another thread "
                "or task; use `with lock.acquire() as lease`, which may be exited anywhere"
            )
        lease = stack.pop()
        if not stack:
            del self._entered[here]
        return lease


def wants_lease(function: Callable[..., Any]) -> bool:
    """Tell whether a function has the keyword-only parameter `lease`."""
    import inspect  # not at the top: it costs a quarter of the import of holdfast

    wanted = inspect.signature(function).parameters.get("lease")
    return wanted is not None and wanted.kind is inspect.Parameter.KEYWORD_ONLY
