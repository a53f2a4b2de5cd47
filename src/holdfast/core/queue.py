"""The one rule: a resource is a FIFO queue of weighted claims.

A claim is granted when *granted weight anywhere + waiting weight ahead of it (0 if unfair) + its own weight* does not
exceed *its own capacity*. Locks, readers, writers and permits differ in weight and capacity only.

Claims are granted when they ask, never behind their back: a release merely says whom to wake. So a grant always has
somebody listening, and its ttl starts when its holder asked. (A store that knows that the first of them listens may
grant to it at once, as Redis does: docs/decisions/0012.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ..errors import StoreError
from .claim import LOST, Blocker, Claim, ClaimState, Evicted, Granted, Lost, Renewed, ResourceState, Waiting

TOKEN_LIMIT = 1 << 53

# Why a granted claim is renewed no more, and stays taken until it expires. A store that has no room for the difference
# may know one of them only.
KEPT = 1  # its holder has released it, with a time to keep
BROKEN = 2  # somebody has evicted it; its holder may not know yet


def next_token(counter: int, clock_us: int) -> int:
    """Return a token above `counter`; the clock keeps tokens rising where the counter was lost with its store.

    Raises: StoreError when the token would not fit a double, which is where Lua and JavaScript lose integers.
    """
    token = max(counter + 1, clock_us)
    if token >= TOKEN_LIMIT:
        raise StoreError(
            f"the next fencing token would be {token}, past the limit of 2^53; "
            "the store's counter or the clock of its machine is wrong"
        )
    return token


class Entry:
    """A claim in the queue. `address` is the store's own note of how to reach the claimant."""

    __slots__ = ("address", "claim", "expires", "kept", "seq", "token")

    def __init__(self, seq: int, claim: Claim, token: int, expires: float, kept: int = 0, address: str = "") -> None:
        self.seq = seq
        self.claim = claim
        self.token = token  # 0 while it waits
        self.expires = expires  # by the store's clock
        self.kept = kept  # KEPT, BROKEN or 0
        self.address = address

    @property
    def outlives(self) -> bool:
        """Return whether it stays until it expires, whatever becomes of the process that made it."""
        return bool(self.token) and (self.claim.detached or self.kept == KEPT)

    def state(self, now: float) -> ClaimState:
        """Show this entry to people."""
        c = self.claim
        left = max(0.0, self.expires - now)
        detached, broken = c.detached or self.kept == KEPT, self.kept == BROKEN
        return ClaimState(c.holder, c.owner, self.token, left, c.weight, c.capacity, c.value, detached, c.fair, broken)


class Step(NamedTuple):
    """What one operation decided: the answer, which entries to store or delete, and whom to wake."""

    answer: Granted | Waiting | Renewed | Lost | Evicted | bool | None
    put: tuple[Entry, ...] = ()
    drop: tuple[Entry, ...] = ()
    wake: tuple[Entry, ...] = ()


class Queue:
    """The queue of one resource. Every operation first forgets what has expired by `now`."""

    __slots__ = ("counter", "entries")

    def __init__(self, entries: Iterable[Entry] = (), counter: int = 0) -> None:
        self.entries = list(entries)
        self.counter = counter

    def claim(
        self, claim: Claim, now: float, clock_us: int, waiting_life: float, *, queue: bool = True, address: str = ""
    ) -> Step:
        """Grant the claim, or let it wait (`queue=False`: turn it away). Asking twice is one claim."""
        gone = self.sweep(now)
        mine = self.find(claim.holder)
        if mine is not None and mine.token:
            return Step(Granted(mine.token, mine.expires - now), (), gone, self.grantable() if gone else ())
        seq = mine.seq if mine is not None else self.next_seq()
        if self._admits(claim, seq):
            token = self.counter = next_token(self.counter, clock_us)
            if mine is None:
                mine = Entry(seq, claim, token, now + claim.ttl, address=address)
                self.entries.append(mine)
            mine.token, mine.expires = token, now + claim.ttl
            return Step(Granted(token, claim.ttl), (mine,), gone, self.grantable() if gone else ())
        answer = self._waiting(seq, now)
        if not queue:
            if mine is not None:
                self.entries.remove(mine)
                gone += (mine,)
            return Step(answer, (), gone, self.grantable() if gone else ())
        if mine is None:
            mine = Entry(seq, claim, 0, 0.0, address=address)
            self.entries.append(mine)
        mine.expires = now + waiting_life
        return Step(answer, (mine,), gone, self.grantable() if gone else ())

    def renew(self, holder: str, now: float, ttl: float) -> Step:
        """Prolong a granted claim: it ends a ttl from now. What has ended stays ended: nothing is re-created."""
        gone = self.sweep(now)
        mine = self.find(holder)
        wake = self.grantable() if gone else ()
        if mine is None or not mine.token or mine.kept:
            return Step(LOST, (), gone, wake)
        mine.expires = now + ttl
        return Step(Renewed(ttl), (mine,), gone, wake)

    def release(self, holder: str, now: float, keep: float = 0.0) -> Step:
        """End a granted claim or withdraw a waiting one. With `keep` a granted one stays taken for that long."""
        gone = self.sweep(now)
        mine = self.find(holder)
        if mine is None:
            return Step(False, (), gone, self.grantable() if gone else ())
        if mine.kept == KEPT:  # its first answer was lost
            return Step(True, (), gone, self.grantable() if gone else ())
        if keep > 0 and mine.token and not mine.kept:  # one that was broken is wanted by somebody else
            mine.kept, mine.expires = KEPT, now + keep
            return Step(True, (mine,), gone, self.grantable() if gone else ())
        self.entries.remove(mine)
        return Step(True, (), (*gone, mine), self.grantable())

    def sweep(self, now: float) -> tuple[Entry, ...]:
        """Forget what has expired, and return it."""
        for entry in self.entries:  # most queues have one claim, or none
            if entry.expires <= now:
                break
        else:
            return ()
        gone = tuple(e for e in self.entries if e.expires <= now)
        self.entries = [e for e in self.entries if e.expires > now]
        return gone

    def evict(self, holder: str, now: float, at_once: bool = False) -> Step:
        """Break a granted claim: it is renewed no more, and its end stays where the last renewal has put it.

        So its holder learns of it before anybody else is granted. `at_once` does not wait for that. What is only kept
        taken after its release ends in any case, for nobody works under it.
        """
        gone = self.sweep(now)
        mine = self.find(holder)
        if mine is None or not mine.token:
            return Step(None, (), gone, self.grantable() if gone else ())
        if at_once or mine.kept == KEPT:
            self.entries.remove(mine)
            return Step(Evicted(0.0), (), (*gone, mine), self.grantable())
        mine.kept = BROKEN
        return Step(Evicted(mine.expires - now), (mine,), gone, self.grantable() if gone else ())

    def bury(self, holders: Collection[str]) -> Step:
        """Drop the claims of claimants that are known to be dead; detached claims outlive them."""
        dead = tuple(e for e in self.entries if e.claim.holder in holders and not e.outlives)
        for entry in dead:
            self.entries.remove(entry)
        return Step(None, (), dead, self.grantable() if dead else ())

    def find(self, holder: str) -> Entry | None:
        """Return the entry of this holder."""
        for entry in self.entries:
            if entry.claim.holder == holder:
                return entry
        return None

    def next_seq(self) -> int:
        """Return the place in line of a claim that comes now."""
        return self.entries[-1].seq + 1 if self.entries else 0

    def grantable(self) -> tuple[Entry, ...]:
        """Return the waiting entries that would be granted if they asked now: whom a change has to wake."""
        granted = sum(e.claim.weight for e in self.entries if e.token)
        ahead = woken = 0
        wake = []
        for entry in self.entries:
            if entry.token:
                continue
            # An unfair waiter passes those who cannot go, not those who were just told to.
            before = ahead if entry.claim.fair else woken
            if granted + before + entry.claim.weight <= entry.claim.capacity:
                wake.append(entry)
                woken += entry.claim.weight
            ahead += entry.claim.weight
        return tuple(wake)

    def ahead_of(self, seq: int) -> list[Entry]:
        """Return what stands between the entry at `seq` and its grant: every holder, and the waiters before it."""
        return [e for e in self.entries if (e.token or e.seq < seq) and e.seq != seq]

    def state(self, resource: str, now: float) -> ResourceState:
        """Show the queue to people."""
        live = [e for e in self.entries if e.expires > now]
        return ResourceState(
            resource,
            self.counter,
            tuple(e.state(now) for e in live if e.token),
            tuple(e.state(now) for e in live if not e.token),
        )

    def _admits(self, claim: Claim, seq: int) -> bool:
        total = claim.weight
        for e in self.entries:
            if e.token or (claim.fair and e.seq < seq):
                total += e.claim.weight
        return total <= claim.capacity

    def _waiting(self, seq: int, now: float) -> Waiting:
        ahead = self.ahead_of(seq)
        if not ahead:  # its own weight exceeds its own capacity: refused before it gets here, but never a crash
            return Waiting(0, float("inf"), None, self.counter)
        first = next((e for e in ahead if e.token), ahead[0])
        blocker = Blocker(first.claim.owner, first.token, first.expires - now, first.claim.capacity)
        return Waiting(len(ahead), min(e.expires for e in ahead) - now, blocker, self.counter)
