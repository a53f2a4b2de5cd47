"""A client's dealings with an etcd cluster below the claims: calls that fail over, tokens of the login, leases."""

from __future__ import annotations

from collections.abc import Iterator

from ..._clock import Clock
from ..._etcd import messages
from ..._etcd.leases import Lease, Place, lapsed
from ..._etcd.link import REQUIRE_LEADER, LeaseGoneError, Link, NoTokenError, Stream
from ..._etcd.watcher import Watcher
from ...core.urls import StoreURL
from ...errors import StoreError, StoreUnavailable, Unsupported
from .. import runtime
from . import transport_etcd as transport


class Exchange:
    """One verb of the store: when it has to be over, and whether some of it may have happened without an answer."""

    __slots__ = ("doubtful", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.doubtful = False


class Cluster:
    """Calls etcd, and knows the leases that this client has there."""

    def __init__(self, url: StoreURL, io_timeout: float, clock: Clock, places: dict[str, Place]) -> None:
        self._link = Link(url)
        self._login = (url.username, url.password or "") if url.username is not None else None
        self._token: str | None = None
        self._io_timeout = io_timeout
        self._now = clock.now
        self._clock = clock
        self._places = places
        self._shared: dict[int, Lease] = {}  # by ttl
        self._opening: dict[int, runtime.Signal] = {}
        self.watcher = Watcher(self._open_stream)

    def exchange(self) -> Exchange:
        """Begin a verb of the store."""
        return Exchange(self._now() + self._io_timeout)

    async def call(self, exchange: Exchange, method: str, request: bytes) -> bytes:
        """Send a request, to the next endpoint if one cannot be reached.

        Raises: StoreUnavailable; StoreError; LeaseGoneError if etcd does not have a lease in it.
        """
        tries = len(self._link.addresses)
        renewed = self._token is None
        while True:
            try:
                if self._login is not None and self._token is None:
                    await self._authenticate(exchange)
                return await self._send(exchange, method, request)
            except NoTokenError as error:
                if self._login is None or renewed:
                    raise StoreError(f"etcd refuses this client: {error}") from None
                self._token, renewed = None, True
            except StoreUnavailable:
                tries -= 1
                if not tries or self._now() >= exchange.until:
                    raise

    async def _send(self, exchange: Exchange, method: str, request: bytes) -> bytes:
        seconds = exchange.until - self._now()
        if seconds <= 0:
            raise StoreUnavailable(f"etcd gave no answer within {self._io_timeout:g} s")
        peer = self._link.peer()
        try:
            return await transport.call(peer, method, request, seconds, self._metadata())
        except StoreUnavailable:
            exchange.doubtful = True
            if self._link.leave(peer):
                self.watcher.reset(f"etcd at {peer.address} does not answer")
            raise

    def _metadata(self) -> transport.Metadata:
        return (REQUIRE_LEADER,) if self._token is None else (REQUIRE_LEADER, ("token", self._token))

    async def _authenticate(self, exchange: Exchange) -> None:
        assert self._login is not None
        request = messages.authenticate(*self._login)
        try:
            self._token = messages.auth_token(await self._send(exchange, messages.AUTHENTICATE, request))
        except NoTokenError as error:
            raise StoreError(f"etcd refuses the login of this client: {error}") from None

    def _open_stream(self, requests: Iterator[bytes]) -> Stream:
        return self._link.peer().stream(messages.WATCH, requests, self._metadata())

    # -- leases

    async def shared(self, exchange: Exchange, ttl: int) -> Lease:
        """Return the lease of this client for all claims of this ttl, with enough of it left."""
        while True:
            lease = self._shared.get(ttl)
            if lease is not None and lease.fresh(self._now()):
                return lease
            mine = runtime.Signal()
            other = self._opening.setdefault(ttl, mine)
            if other is not mine:  # one opens it for all
                await other.wait(self._clock, exchange.until)
                if self._now() >= exchange.until:
                    raise StoreUnavailable(f"etcd gave no lease within {self._io_timeout:g} s")
                continue
            try:
                if lease is None or not await self.keep(exchange, lease):
                    self._shared[ttl] = await self._open(exchange, ttl)
            finally:
                self._opening.pop(ttl, None)
                mine.set()

    async def _open(self, exchange: Exchange, ttl: int) -> Lease:
        lease = await self.grant(exchange, ttl)
        reply = await self.call(exchange, messages.PUT, messages.put(lease.guard_key, b"", lease.id))
        lease.guard = messages.header(reply).revision
        return lease

    async def grant(self, exchange: Exchange, ttl: float, *, exact: bool = True) -> Lease:
        """Get a new lease.

        Raises: Unsupported if etcd rounds it up: a crash would then keep others out for longer than was asked for.
        """
        lease = Lease(ttl)
        sent = self._now()
        request = messages.lease_grant(lease.ttl, lease.id)
        granted = messages.granted(await self.call(exchange, messages.LEASE_GRANT, request))
        if granted.ttl > lease.ttl and exact:
            raise Unsupported(
                f"this etcd keeps leases of at least {granted.ttl} s, which follows from its election timeout, "
                f"not of ttl={lease.ttl}; ask for a longer ttl"
            )
        lease.confirm(sent)
        return lease

    async def keep(self, exchange: Exchange, lease: Lease) -> bool:
        """Keep a lease alive; False if it is over, and then all that was under it is gone.

        A leader that was paused or cut off does not know yet that it is none any more, and would still renew in
        memory what its successor is about to expire. So its term is compared with that of a read that a majority has
        confirmed, sent after the keep-alive.
        """
        while lease.left(self._now()) > 0:
            sent = self._now()
            reply = messages.granted(await self.call(exchange, messages.LEASE_KEEP_ALIVE, messages.lease_id(lease.id)))
            if reply.ttl <= 0:
                break
            read = await self.call(exchange, messages.RANGE, messages.range_(lease.guard_key))
            if lease.guard and not messages.ranged(read).kvs:
                break  # somebody has deleted its guard, without which nothing can be claimed under it
            if messages.header(read).term == reply.header.term and lease.confirm(sent):
                await self._sweep(exchange, lease)
                return True
        await self.bury(exchange, lease)
        return False

    async def bury(self, exchange: Exchange, lease: Lease) -> None:
        """End a lease, and all that is under it: nobody here holds it any more."""
        lease.end()
        if self._shared.get(lease.ttl) is lease:
            del self._shared[lease.ttl]
        for holder, place in list(self._places.items()):
            if place.under is lease and (place.granted or place.until <= self._now()):
                del self._places[holder]
        await self.revoke(exchange, lease)

    async def _sweep(self, exchange: Exchange, lease: Lease) -> None:
        """Delete the claims that nobody keeps any more: their lease, which others use, would keep them for ever."""
        for place in lapsed(self._places, lease, self._now()):
            try:
                await self.withdraw(exchange, place.key, place)
            except StoreUnavailable:
                return  # the next keep-alive finds them again

    async def withdraw(self, exchange: Exchange, key: bytes, place: Place | None) -> bool:
        """Delete a claim, also one that is still on its way; False if etcd did not have it."""
        for lease in place.doubts if place is not None else ():
            await self.raise_guard(exchange, lease)
        exchange.doubtful = False
        deleted = messages.deleted(await self.call(exchange, messages.DELETE, messages.delete(key)))
        had = deleted.keys > 0 or exchange.doubtful  # a try that was not answered may have deleted it
        if place is not None:
            await self.forget(exchange, place)
        return had

    async def forget(self, exchange: Exchange, place: Place) -> None:
        """Have done with a claim, and with the lease of its own that a detached one has."""
        if place.lease is not None:
            try:
                await self.revoke(exchange, place.lease)
            except StoreUnavailable:
                if place.doubts:
                    raise  # what is on its way could still come under it
        self._places.pop(place.claim.holder, None)

    async def revoke(self, exchange: Exchange, lease: Lease) -> None:
        """Let etcd delete a lease and its keys; it may have done so before."""
        try:
            await self.call(exchange, messages.LEASE_REVOKE, messages.lease_id(lease.id))
        except LeaseGoneError:
            pass

    async def raise_guard(self, exchange: Exchange, lease: Lease) -> None:
        """Make every claim under this lease that is still on its way fail."""
        try:
            reply = await self.call(exchange, messages.PUT, messages.put(lease.guard_key, b"", lease.id))
            lease.guard = max(lease.guard, messages.header(reply).revision)
        except LeaseGoneError:  # it takes its guard with it, and a claim demands the guard
            lease.end()

    async def close(self) -> None:
        """Revoke the leases that no claim is under, and close everything."""
        exchange = self.exchange()
        used = {lease for place in self._places.values() for lease in (place.under, *place.doubts)}
        try:
            for lease in list(self._shared.values()):
                if lease not in used and lease.left(self._now()) > 0:
                    await self.revoke(exchange, lease)
        except StoreError:
            pass  # they end by themselves
        finally:
            self._shared.clear()
            self.watcher.close()
            self._link.close()

    @property
    def leases(self) -> list[Lease]:
        """The leases that claims share."""
        return list(self._shared.values())
