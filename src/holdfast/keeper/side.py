"""The side of a store that the keeper calls, and how it is opened, shared and closed.

Several activities call it at the same time, and any of them may be in the middle of a call when the client ends. It is
closed once, by whoever is the last to leave it: a call notes itself before it looks whether it may go on, so either it
is refused, or it is waited for.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ..core.claim import Claim, Renewal
from ..core.promises import Capabilities
from ..errors import StoreError, StoreUnavailable


class Blocking(Protocol):
    """The side of a store that the keeper calls, from any of its threads. It never touches an event loop."""

    def renew(self, claims: Sequence[Claim], limit: float, /) -> list[Renewal]:
        """Prolong granted claims; see `Store`.

        claims: those that are due.
        limit: seconds that the whole may take, if that is less than io_timeout.
        """
        ...

    def release(self, resource: str, holder: str, keep: float, /) -> bool:
        """End a granted claim or withdraw a waiting one; see `Store`.

        resource, holder: which claim.
        keep: seconds that a granted one stays taken; 0 ends it at once.
        """
        ...

    def ready(self) -> object:
        """Open what can be opened before it is needed."""
        ...

    def close(self) -> None:
        """Give up connections, threads and sockets of this side."""
        ...


# Resource, holder, and how many seconds it stays taken.
Release = tuple[str, str, float]
MOST_AT_ONCE = 500


class BlockingMany(Blocking, Protocol):
    """What a side may have besides: without it claims are released one by one when a client is closed."""

    def release_many(self, claims: Sequence[Release], /) -> list[bool | StoreError]:
        """Release claims, as few round trips as possible; an answer or an error for each, in order.

        claims: those to end; at most `MOST_AT_ONCE`.
        """
        ...


class Side(NamedTuple):
    """A blocking side that is made of functions.

    renew, release, close: as `Blocking` has them.
    ready: opens what can be opened before it is needed; by default there is nothing to open.
    release_many: as `BlockingMany` has it, for a store that has it.
    """

    renew: Callable[[Sequence[Claim], float], list[Renewal]]
    release: Callable[[str, str, float], bool]
    close: Callable[[], None]
    ready: Callable[[], object] = bool
    release_many: Callable[[Sequence[Release]], list[bool | StoreError]] | None = None


class Store(Protocol):
    """What the keeper knows of a store, in either flavour."""

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do and promises."""
        ...

    def blocking(self) -> Blocking:
        """Return what the keeper's threads may call."""
        ...


class StoreSide:
    """The blocking side of one client's store."""

    __slots__ = ("_calling", "_leaving", "_namespace", "_opening", "_store", "made")

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._opening = allocate_lock()
        self._calling: dict[int, None] = {}  # the threads that are in a call of it
        self._leaving = False  # nobody may call it any more
        self.made: Blocking | None = None

    @property
    def most_at_once(self) -> int:
        """How many claims it releases in one call."""
        try:
            return MOST_AT_ONCE if getattr(self.make(), "release_many", None) is not None else 1
        except StoreError:  # it could not be made, and says so again when it is called
            return 1

    def make(self) -> Blocking:
        """Return it; it is made by the first who asks."""
        with self._opening:
            if self.made is None:
                self.made = self._store.blocking()
            return self.made

    def call(self, verb: str, arguments: tuple[Any, ...]) -> Any:
        """Call one of its verbs; `close` waits for nobody.

        Raises: StoreError.
        """
        if verb == "close":
            self._leaving = True
            return self._close()
        self._calling[get_ident()] = None  # before the look
        try:
            if self._leaving:
                raise StoreUnavailable(f"the client of namespace {self._namespace!r} is closed")
            return getattr(self.make(), verb)(*arguments)
        finally:
            self._calling.pop(get_ident(), None)
            if self._leaving:
                self._close()

    def _close(self) -> None:
        if self._calling:
            return  # it is in use: whoever uses it comes here then
        with self._opening:
            side, self.made = self.made, None
        if side is not None:
            side.close()
