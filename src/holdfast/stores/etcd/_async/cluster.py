"""What a client needs of an etcd cluster below the claims: calls that fail over, login tokens, leases."""

from __future__ import annotations

from collections.abc import Sequence

from ...._async import runtime
from ...._clock import Clock
from ....core.urls import StoreURL
from ....errors import StoreError, StoreUnavailable, Unsupported
from .. import messages
from ..claim_txn import READ_OFFSET, unmoved
from ..keys import OFFSET, read_offset
from ..leases import Lease, LocalClaim, has_ended, lapsed
from ..link import LeaseGoneError, NoTokenError
from ..messages import KeyValue, Txned, op_range, range_
from ..shared import Shared, metadata
from . import transport

_MOST_REFUSALS = 3  # of a token in one call: the stale one, and one that was just renewed and is stale again


class Exchange:
    """One verb of the store: when it has to be over, and whether some of it may have happened without an answer."""

    __slots__ = ("doubtful", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.doubtful = False


class Cluster:
    """Calls etcd, and knows the leases that this client has there."""

    def __init__(self, url: StoreURL, io_timeout: float, clock: Clock, shared: Shared) -> None:
        self._shared = shared
        self._link = shared.link
        self._login = (url.username, url.password or "") if url.username is not None else None
        self._io_timeout = io_timeout
        self.now = clock.now
        self._clock = clock
        self._claims = shared.claims
        self._leases = shared.leases
        self._opening: dict[int, runtime.Signal] = {}
        self._logging_in: dict[bool, runtime.Signal] = {}  # at most one
        self.watcher = shared.watcher

    def exchange(self, limit: float | None = None) -> Exchange:
        """Begin a verb of the store."""
        return Exchange(self.now() + (self._io_timeout if limit is None else min(limit, self._io_timeout)))

    async def call(self, exchange: Exchange, method: str, request: bytes) -> bytes:
        """Send a request, to the next endpoint if one cannot be reached.

        Raises: StoreUnavailable; StoreError; LeaseGoneError if etcd does not have a lease in it.
        """
        tries, refusals = len(self._link.addresses), 0
        while True:
            token = self._shared.token
            try:
                if self._login is not None and token is None:
                    token = await self._log_in(exchange)
                return await self._send(exchange, method, request, token)
            except NoTokenError as error:
                refusals += 1
                if self._login is None or refusals == _MOST_REFUSALS:
                    raise StoreError(f"etcd refuses this client: {error}") from None
                if self._shared.token == token:  # else another call has renewed it
                    self._shared.token = None
            except StoreUnavailable:
                tries -= 1
                if not tries or self.now() >= exchange.until:
                    raise

    async def transact(self, exchange: Exchange, steps: Sequence[bytes], when: Sequence[bytes] = ()) -> Txned:
        """Take steps in one transaction, if `when` holds and the data has the format that this client knows.

        Raises: StoreError if it has another one, and what `call` raises.
        """
        while True:
            known = self._shared.offset
            request = messages.txn((*when, unmoved(OFFSET, known.mod)), steps, (READ_OFFSET,))
            response = messages.txned(await self.call(exchange, messages.TXN, request))
            if response.succeeded:
                return response
            kvs = response.ranged(0).kvs
            found = read_offset(kvs[0] if kvs else None)
            if found == known:
                return response
            self._shared.offset = found  # raised, or seen for the first time

    async def get(self, exchange: Exchange, key: bytes) -> KeyValue | None:
        """Read a key, if the data has the format that this client knows."""
        kvs = (await self.transact(exchange, (op_range(range_(key)),))).ranged(0).kvs
        return kvs[0] if kvs else None

    async def _send(self, exchange: Exchange, method: str, request: bytes, token: str | None) -> bytes:
        asked = self.now()
        seconds = exchange.until - asked
        if seconds <= 0:
            raise StoreUnavailable(f"etcd gave no answer within {self._io_timeout:g} s")
        peer = self._link.peer()
        try:
            reply = await transport.call(peer, method, request, seconds, metadata(token))
        except StoreUnavailable:
            exchange.doubtful = True
            if self._link.leave(peer, asked):
                self.watcher.reset(f"etcd at {peer.address} does not answer")
            raise
        peer.heard = self.now()
        return reply

    async def _log_in(self, exchange: Exchange) -> str:
        """Return a token, a new one if there is none. One call logs in for all: etcd takes long to check a password."""
        while (token := self._shared.token) is None:
            mine = runtime.Signal()
            other = self._logging_in.setdefault(True, mine)
            if other is not mine:
                await other.wait(self._clock, exchange.until)
                if self.now() >= exchange.until:
                    raise StoreUnavailable(f"etcd gave no token within {self._io_timeout:g} s")
                continue
            try:
                return await self._authenticate(exchange)
            finally:
                self._logging_in.pop(True, None)
                mine.set()
        return token

    async def _authenticate(self, exchange: Exchange) -> str:
        assert self._login is not None
        request = messages.authenticate(*self._login)
        try:
            token = messages.auth_token(await self._send(exchange, messages.AUTHENTICATE, request, None))
        except NoTokenError as error:
            raise StoreError(f"etcd refuses the login of this client: {error}") from None
        self._shared.token = token
        return token

    # -- leases

    async def shared(self, exchange: Exchange, ttl: int) -> Lease:
        """Return the lease of this client for all claims of this ttl, with enough of it left."""
        while True:
            lease = self._leases.get(ttl)
            if lease is not None and lease.fresh(self.now()):
                return lease
            mine = runtime.Signal()
            other = self._opening.setdefault(ttl, mine)
            if other is not mine:  # one opens it for all
                await other.wait(self._clock, exchange.until)
                if self.now() >= exchange.until:
                    raise StoreUnavailable(f"etcd gave no lease within {self._io_timeout:g} s")
                continue
            try:
                if lease is None or not await self.keep(exchange, lease):
                    self._leases[ttl] = await self._open(exchange, ttl)
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
        sent = self.now()
        request = messages.lease_grant(lease.ttl, lease.id)
        granted = messages.granted(await self.call(exchange, messages.LEASE_GRANT, request))
        if granted.ttl > lease.ttl and exact:
            raise Unsupported(
                f"this etcd keeps leases of at least {granted.ttl} s, which follows from its election timeout, "
                f"not of ttl={lease.ttl}; ask for a longer ttl"
            )
        lease.ttl = max(lease.ttl, granted.ttl)
        lease.confirm(sent)
        return lease

    async def keep(self, exchange: Exchange, lease: Lease) -> bool:
        """Keep a lease alive; False if it is over, and then all that was under it is gone.

        A leader that was paused or cut off may not know yet that it has a successor, and would still renew in memory
        what that one is about to expire. So its term is compared with that of a read that is sent after the keep-alive
        and that a majority has confirmed.
        """
        while lease.left(self.now()) > 0:
            sent = self.now()
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
        if self._leases.get(lease.ttl) is lease:
            self._leases.pop(lease.ttl, None)
        now = self.now()
        for holder, local in list(self._claims.items()):
            if has_ended(local, lease, now):
                # A transaction that went unanswered under another lease may still put a key there: to be withdrawn.
                doubts = frozenset(doubt for doubt in local.doubts if not doubt.over)
                if doubts:
                    self._claims[holder] = ended = LocalClaim(local.claim, local.key)
                    ended.doubts, ended.until = doubts, now
                else:
                    self._claims.pop(holder, None)
        await self.revoke(exchange, lease)

    async def _sweep(self, exchange: Exchange, lease: Lease) -> None:
        """Delete the claims that nobody keeps any more: their lease, which others use, would keep them for ever."""
        for local in lapsed(self._claims, lease, self.now()):
            try:
                await self.withdraw(exchange, local.key, local)
            except StoreUnavailable:
                return  # the next keep-alive finds them again

    async def withdraw(self, exchange: Exchange, key: bytes, local: LocalClaim | None) -> bool:
        """Delete a claim, also one that is still on its way; False if etcd did not have it."""
        await self.shut_out(exchange, local)
        exchange.doubtful = False
        deleted = messages.deleted(await self.call(exchange, messages.DELETE, messages.delete(key)))
        had = deleted.keys > 0 or exchange.doubtful  # a try that was not answered may have deleted it
        if not had:
            # Not compared before: that would need a transaction, which takes a tenth longer than a delete, and a claim
            # that is there under this name is one that this client wrote.
            await self.transact(exchange, ())
        if local is not None:
            await self.forget(exchange, local)
        return had

    async def shut_out(self, exchange: Exchange, local: LocalClaim | None) -> None:
        """Make the transactions of a claim fail that went unanswered and may still be on their way."""
        for lease in local.doubts if local is not None else ():
            await self.raise_guard(exchange, lease)

    async def forget(self, exchange: Exchange, local: LocalClaim) -> None:
        """Drop a claim, and the lease of its own that a detached one has."""
        if local.lease is not None:
            try:
                await self.revoke(exchange, local.lease)
            except StoreUnavailable:
                if local.doubts:
                    raise  # a transaction on its way could still put a key under it
        self._claims.pop(local.claim.holder, None)

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
        used = {lease for local in list(self._claims.values()) for lease in (local.under, *local.doubts)}
        try:
            for lease in list(self._leases.values()):
                if lease not in used and lease.left(self.now()) > 0:
                    await self.revoke(exchange, lease)
        except StoreError:
            pass  # they end by themselves
        finally:
            self._leases.clear()
            self.watcher.close()
            self._link.close()

    @property
    def leases(self) -> list[Lease]:
        """The leases that claims share."""
        return list(self._leases.values())
