"""redlock://: a ballot on a majority of independent Redis servers.

core/ballot.py has the rule of one node and what a client concludes; this is a round. A client proposes a ballot, a
number p, to all nodes at once. A node grants p if the resource is free there and p is above its counter, which then
becomes p. Otherwise it says who holds, until when, and its counter; a claim that waits gets a place in line there. The
round ends when a majority has granted p, when all nodes have answered, or after half of io_timeout. The tally:

    Elected    a majority granted p: p is the token
    Silent     fewer than a majority answered: StoreUnavailable, and p stands: whoever asks again proposes p again
    Higher     a majority could be won: propose at once, above their counters
    Waiting    another has a majority: give back what was granted, and wait
    Contended  the votes are split: give back, pause for a random time, propose again
    Skewed     too many nodes refuse the clock that p was made of: give back, and raise

Orders that would be dangerous, and what makes them safe:

- *Two win a majority.* Two majorities share a node. It grants to one at a time and its counter only rises, so the later
  winner has the larger token. Only votes for this very p count, never those of an earlier round.
- *A proposal arrives twice.* A node that has granted (holder, p) says so again, and the time of that grant runs on.
- *A release arrives before its proposal.* It raises the counter to p, so the proposal is refused when it comes.
- *A release arrives late*, when its holder has a grant of a later round. It frees ballots up to its own only, and the
  ballots of a holder rise: one that was given back is spent, and is never proposed again.
- *A node grants that nobody waited for.* Releases go to all nodes, whatever they have answered. A node that did not
  confirm a release is owed it, and takes part again only after it has run it (nodes.py).
- *Some nodes grant while others still say "taken".* A release is probably on its way, and the node that tells this
  client of releases may have run it before the claim got a place in line. So the claim asks again soon.
- *A renewal reaches a minority.* It has to match (holder, p) and never re-creates a grant. If no majority can renew any
  more, the lease is lost and what is left of it is given back; if silent nodes could decide, nobody can tell.
- *A renewal arrives after a later one with a longer ttl.* Its round ended with a majority, and a slow node runs it now.
  A renewal never brings an end nearer.

Breaking a claim goes to all nodes, too: first a look for its p, then a mark on each grant of (holder, p). A majority
has to answer that. Each of them refuses to renew (holder, p) for ever: it has the mark; or it does not have the grant,
which is never re-created, and its counter is at p, so that a late proposal does not bring it there. So no renewal that
is sent from then on wins. If fewer answer, some nodes have the mark, whoever asked repeats it, and meanwhile a renewal
counts if a majority without the mark grants it. The dangerous orders:

- *A renewal runs while the nodes are marked.* `left` is the longest time that any answer gave. If the renewal counts, a
  majority ran it, and one of those nodes is among those that answered. It ran the renewal before the mark, or it would
  have refused. So its end is not before what the holder believes: that counts from before the renewal was sent.
- *A renewal is refused by marked nodes, and granted by others.* It is lost, but the holder works until it is told so,
  and nothing may be given back before: those nodes, with others that never had the grant, could be a majority. Without
  marks a lost claim is one that has ended on a majority. With them, the answer to a renewal shows at least one: a claim
  that is held has a majority of grants, so those that have none cannot be a majority that refuses.
- *The holder takes p again, or has a higher ballot by now.* Sent twice, p is answered as before, and its time runs on.
  A higher one is another grant: a mark, like a release, says which it means.

Broken at once is a release of (holder, p) by somebody else; a node that is away is owed it, as any other.

The lease counts from before the question, and ends when a majority may have ended it. The line decides who is told of a
release, not who gets the resource.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from time import monotonic

from ...._async import runtime
from ...._clock import Clock
from ....core.ballot import (
    AHEAD,
    BROKEN,
    PROLONGED,
    Contended,
    Elected,
    Higher,
    Silent,
    Skewed,
    Votes,
    backoff,
    propose,
    tally,
    verdict_of,
)
from ....core.claim import (
    LOST,
    Answer,
    Claim,
    Evicted,
    Granted,
    Record,
    Renewal,
    Renewed,
    ResourceState,
    Unknown,
    Waiting,
    changed,
)
from ....core.fence import Fence
from ....core.promises import Capabilities
from ....core.urls import StoreURL
from ....errors import StoreError, StoreUnavailable, Unsupported
from ....keeper.side import Blocking, Side
from ...redis._async.transport_subscriber import Subscriber
from ...redis.address import read_nodes
from ...redis.config import SINGLE, Findings
from ...redis.replies import US, Names, new_channel
from ...redis.script import load
from ...redis.wire import Command, Endpoint, ReplyError
from ..ballots import Row, merge, read_row, read_votes, write_facts
from ..shared import LocalClaim, Shared
from .nodes import Nodes
from .values import Registers

_CLAIM, _RELEASE = load("redlock", "claim"), load("redlock", "release")
_RENEW, _SHOW, _EVICT = load("redlock", "renew"), load("redlock", "show"), load("redlock", "evict")
_ROUNDS = 3  # in one claim: higher ballots, or new tries where votes were split
_PAGE = 500
_POLL_LEAST, _POLL_MOST = 0.005, 0.25


class RedlockStore:
    """Claims on a majority of nodes."""

    asks_login = True  # a password may be a callable
    # A token is dated by the clock of the client that proposed it.
    capabilities: Capabilities = SINGLE._replace(
        store="redlock", fair=False, shared=False, detached=False, evict=True, extend=True, dated=True
    )

    def __init__(
        self,
        url: StoreURL,
        *,
        namespace: str,
        io_timeout: float,
        clock: Clock,
        shared: Shared | None = None,
        findings: Findings | None = None,
    ) -> None:
        nodes, trusted = read_nodes(url)
        self._url = url
        self._namespace = namespace
        self._io_timeout = io_timeout
        self._names = Names(namespace, "holdfast.redlock")
        self._clock = clock
        self._findings = findings or Findings(self.capabilities, self._promise)
        self._shared = shared or Shared(len(nodes))
        self._nodes = Nodes(nodes, trusted, io_timeout, self._findings.add, _RELEASE, self._shared)
        self._registers = Registers(self._nodes, self._names)
        self._channel = new_channel(os.urandom(8).hex())
        self._subscriber = Subscriber(self._channel, clock, self._nodes.timeout)
        self._life = int(self.capabilities.waiting_life * US)
        self._mine = self._shared.claims
        self._stop = runtime.Signal()

    async def ready(self) -> None:
        """See Store."""
        await self._nodes.check_configs()

    async def claim(self, claim: Claim, queue: bool = True) -> Answer:
        """See Store."""
        if claim.weight < claim.capacity or claim.detached:
            raise Unsupported(
                "redlock:// keeps exclusive claims that end with their holder; use redis:// or etcd:// for the others",
                resource=claim.resource,
            )
        if queue and self._subscriber.number:
            self._subscriber.expect(claim.holder)  # before asking: the notice may come before the answer
        mine = self._mine.know(claim.holder, monotonic(), max(claim.ttl, self.capabilities.waiting_life))
        answer = await self._elect(claim, mine, self._life if queue else 0)
        if isinstance(answer, Granted) or not queue:
            self._subscriber.forget(claim.holder)
        return answer

    async def wait(self, claim: Claim, waiting: Waiting, until: float) -> None:
        """See Store."""
        endpoint, access = self._nodes.all[self._nodes.subscription_node]
        if self._stop.is_set():
            return
        if self._subscriber.heard_all(claim.holder, endpoint):
            await self._subscriber.wait(claim.holder, until)
            return
        # Subscribe, and have it ask again: the notice may have been given before.
        try:
            await self._subscriber.open(endpoint, access, monotonic() + self._nodes.timeout)
        except (StoreError, ReplyError):  # it has to do without notices, and asks again now and then
            await self._stop.wait(self._clock, min(until, self._clock.now() + backoff(6, 1.0)))

    async def renew(self, claims: Sequence[Claim], limit: float | None = None) -> list[Renewal]:
        """See Store."""
        known = [(claim, mine) for claim in claims if (mine := self._mine.get(claim.holder)) and not mine.spent]
        answers: dict[str, Renewal] = {}
        if known:
            keys = [self._names.queue(claim.resource) for claim, _ in known]
            facts = [(claim.holder, mine.ballot, int(claim.ttl * US)) for claim, mine in known]
            for claim, mine in known:  # whatever comes of it: nodes that do not answer may have run it
                mine.until = max(mine.until, monotonic() + claim.ttl)
            replies = await self._nodes.run(
                _RENEW, keys, *(fact for three in facts for fact in three),
                enough=lambda replies: self._enough(
                    type(reply) is list and reply.count(PROLONGED) == len(known) for reply in replies
                ),
                limit=limit,
                everyone=True,
            )  # fmt: skip
            for number, (claim, mine) in enumerate(known, 1):
                votes = self._nodes.accepted([reply and reply[number] for reply in replies])
                answers[claim.holder] = await self._renewal(claim, mine, [v for v in votes if v is not None])
        return [answers.get(claim.holder, LOST) for claim in claims]

    async def _renewal(self, claim: Claim, mine: LocalClaim, votes: list[int]) -> Renewal:
        yes = votes.count(PROLONGED)
        renewed = verdict_of(yes, len(votes) - yes, len(self._nodes.all))
        if renewed:
            return Renewed(claim.ttl)
        if renewed is None:
            return Unknown(str(self._nodes.unavailable(len(votes))))
        # What a minority has left would be in the way of others. But a broken claim lasts until its holder knows.
        if yes and BROKEN not in votes:
            await self._give_back(self._names.queue(claim.resource), claim, mine.ballot, 0)
        mine.spent = True
        return LOST

    async def release(self, resource: str, holder: str, keep: float = 0.0) -> bool:
        """See Store. `keep` needs detached claims, which are refused before it gets here."""
        self._subscriber.forget(holder)  # whatever comes of this: it may be the last try
        mine = self._mine.get(holder)
        ballot = mine.ballot if mine is not None else await self._ballot_of(resource, holder)
        if ballot is None:
            return False
        key, needed = self._names.queue(resource), self._nodes.needed
        replies = await self._nodes.run(
            _RELEASE, [key], holder, ballot, 0, self._channel, "",
            enough=lambda replies: self._enough(type(reply) is list and reply[0] == 1 for reply in replies),
        )  # fmt: skip
        if mine is not None:
            mine.spent = True
        answers = [reply[0] for reply in replies if reply is not None]
        if len(answers) < needed:
            raise self._nodes.unavailable(len(answers))
        if mine is not None:
            mine.until = 0.0
        # Where a majority did not have it, it was lost. Fewer who never had it mean nothing: they were not needed.
        return answers.count(0) < needed

    async def evict(self, resource: str, holder: str, at_once: bool = False) -> Evicted | None:
        """See Store. The head of this file says why renewals are lost from then on, and `left` is long enough.

        Raises: StoreUnavailable if too few nodes answer; then some of them may have broken it.
        """
        key, count = self._names.queue(resource), len(self._nodes.all)
        rows = [row[0] for row in await self._read_rows([key])]
        ballot = max((row.ballot for row in rows if row.holder == holder), default=0)
        yes = sum(row.holder == holder and row.ballot == ballot for row in rows)
        held = verdict_of(yes, len(rows) - yes, count)
        if held is None:  # it may hold, or wait and have a few votes: those are not to be touched
            raise _undecided(resource)
        if not held:
            return None
        if at_once:
            replies = await self._nodes.run(_RELEASE, [key], holder, ballot, 0, self._channel, "")
        else:
            replies = await self._nodes.run(_EVICT, [key], holder, ballot)
        found = [reply[0] for reply in replies if reply is not None]
        if len(found) < self._nodes.needed:
            raise self._nodes.unavailable(len(found))
        if verdict_of(len(found) - found.count(0), found.count(0), count) is False:
            return None  # it has ended meanwhile
        return Evicted(0.0 if at_once else max(found) / US)

    async def time(self) -> tuple[float, float]:
        """See Store. The middle of what the nodes say; what they differ by is part of the uncertainty.

        Raises: StoreUnavailable if fewer than a majority answer.
        """
        asked = monotonic()
        replies = await self._nodes.ask([("TIME",)] * len(self._nodes.all))
        took = monotonic() - asked  # each was read somewhere in between
        clocks = [int(reply[0]) + int(reply[1]) / US for reply in replies if reply is not None]
        if len(clocks) < self._nodes.needed:
            raise self._nodes.unavailable(len(clocks))
        first, last = min(clocks), max(clocks) + took
        return (first + last) / 2, (last - first) / 2

    async def state(self, resource: str) -> ResourceState | None:
        """See Store. Without a scan of the keys, which inspect needs.

        Raises: StoreUnavailable if nobody can tell whether somebody holds it: that is not the same as nobody.
        """
        rows, count = [row[0] for row in await self._read_rows([self._names.queue(resource)])], len(self._nodes.all)
        grants = Counter((row.holder, row.ballot) for row in rows if row.ballot)
        if any(verdict_of(yes, len(rows) - yes, count) is None for yes in grants.values()):
            raise _undecided(resource)
        state = merge(resource, rows, count)
        return state if state.holders or state.waiters else None

    async def inspect(self, prefix: str = "") -> list[ResourceState]:
        """See Store."""
        pattern = self._names.pattern(prefix)
        cursors: list[bytes | None] = [b"0"] * len(self._nodes.all)
        keys: set[bytes] = set()
        while any(cursor is not None for cursor in cursors):
            scans: list[Command | None] = [
                None if cursor is None else ("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE) for cursor in cursors
            ]
            for at, reply in enumerate(await self._nodes.ask(scans)):
                keys.update(reply[1] if isinstance(reply, list) else ())
                cursors[at] = reply[0] if isinstance(reply, list) and reply[0] != b"0" else None
        names = sorted((self._names.resource(key), key.decode()) for key in keys)
        states: list[ResourceState] = []
        for start in range(0, len(names) or 1, _PAGE):
            page = names[start : start + _PAGE]
            rows = await self._read_rows([key for _, key in page])
            states += [
                merge(name, [row[number] for row in rows], len(self._nodes.all))
                for number, (name, _) in enumerate(page)
            ]
        return [state for state in states if state.holders or state.waiters]

    async def watch(self, resource: str, seen: ResourceState | None, until: float) -> None:
        """See Store."""
        key, pause = self._names.queue(resource), _POLL_LEAST
        while not self._stop.is_set():
            now = self._clock.now()
            rows = [row[0] for row in await self._read_rows([key])]
            if changed(seen, merge(resource, rows, len(self._nodes.all))) or now >= until:
                return
            await self._stop.wait(self._clock, min(until, now + pause * (0.5 + random.random())))
            pause = min(_POLL_MOST, pause * 2)

    async def read(self, key: str, fence: Fence | None = None) -> Record | None:
        """See Store."""
        return await self._registers.read(key, fence)

    async def write(self, key: str, value: str, fence: Fence, keep: float | None = None) -> None:
        """See Store."""
        await self._registers.write(key, value, fence, keep)

    def blocking(self) -> Blocking:
        """See Store. Connections of its own, and what is known of the claims in common."""
        return runtime.blocking(self, self._twin)

    def _twin(self) -> Blocking:
        from .._sync.store import RedlockStore as Twin

        twin = Twin(
            self._url,
            namespace=self._namespace,
            io_timeout=self._io_timeout,
            clock=self._clock,
            shared=self._shared,
            findings=self._findings,
        )

        def release(resource: str, holder: str, keep: float = 0.0) -> bool:
            self._subscriber.forget(holder)
            return twin.release(resource, holder, keep)

        return Side(twin.renew, release, twin.close, twin.ready)

    def wake(self, holder: str) -> None:
        """See Store."""
        self._subscriber.wake(holder)

    def interrupt(self) -> None:
        """See Store."""
        self._stop.set()
        self._subscriber.interrupt()

    async def close(self) -> None:
        """See Store."""
        self.interrupt()
        await self._subscriber.close()
        await self._nodes.close()

    async def _elect(self, claim: Claim, mine: LocalClaim, life: int) -> Answer:
        """Hold ballots until one is won, or another holds the resource."""
        key, deadline = self._names.queue(claim.resource), monotonic() + self._nodes.timeout / 2
        votes: Votes = ()
        for left in range(_ROUNDS - 1, -1, -1):
            if mine.spent:
                mine.ballot = propose(votes, self._clock.wall_ns() // 1000, mine.ballot)
                mine.spent = False
            votes = await self._vote(key, claim, mine.ballot, life)
            verdict = tally(mine.ballot, votes)
            if isinstance(verdict, Elected):
                mine.splits = 0
                return Granted(verdict.token, verdict.left)
            if isinstance(verdict, Silent):
                raise self._nodes.unavailable(verdict.answered)
            mine.spent = True
            last = not left or monotonic() > deadline
            if isinstance(verdict, Higher) and not last:
                continue
            if any(vote is None or vote.ballot == mine.ballot for vote in votes):
                await self._give_back(key, claim, mine.ballot, life)
            if isinstance(verdict, Skewed):
                raise _skewed(claim, verdict.ahead)
            # A release may be on its way: do not wait to be called.
            mixed = any(vote is not None and vote.ballot == mine.ballot for vote in votes)
            if isinstance(verdict, Waiting) and (last or not mixed):
                mine.splits = 0
                # Those who wait for the same expiry must not ask at the same moment.
                return verdict._replace(retry_after=verdict.retry_after + backoff(verdict.ahead, random.random()))
            mine.splits += isinstance(verdict, Contended)
            pause = backoff(mine.splits, random.random())
            if last:
                break
            await self._stop.wait(self._clock, self._clock.now() + pause)
        waiting = verdict.waiting if isinstance(verdict, Contended) else Waiting(1, 0.0)
        return waiting._replace(retry_after=pause)

    async def _vote(self, key: str, claim: Claim, ballot: int, life: int) -> Votes:
        won = [1, ballot]
        replies = await self._nodes.run(
            _CLAIM, [key], claim.holder, ballot, int(claim.ttl * US), write_facts(claim), life, self._channel,
            enough=lambda replies: self._enough(type(reply) is list and reply[:3:2] == won for reply in replies),
        )  # fmt: skip
        votes = read_votes(replies)
        for at, vote in enumerate(votes):
            if vote is not None and vote.kind >= AHEAD:
                self._nodes.doubt(at, _off(self._nodes.all[at][0], (ballot - vote.clock) / US))
        return votes

    def _enough(self, yes: Iterable[bool]) -> bool:
        return sum(yes) >= self._nodes.needed

    async def _give_back(self, key: str, claim: Claim, ballot: int, life: int) -> None:
        """Release what a round that was not won has got, on all nodes, and stay in line if this one waits."""
        await self._nodes.run(_RELEASE, [key], claim.holder, ballot, life, self._channel, write_facts(claim))

    async def _read_rows(self, keys: Sequence[str]) -> list[list[Row]]:
        """Return what each node that answers shows of these resources.

        Raises: StoreUnavailable if those are no majority.
        """
        shown = [[read_row(one) for one in reply] for reply in await self._nodes.run(_SHOW, keys) if reply is not None]
        if len(shown) < self._nodes.needed:
            raise self._nodes.unavailable(len(shown))
        return shown

    async def _ballot_of(self, resource: str, holder: str) -> int | None:
        """Find what another client has, for whoever ends that on its behalf: nothing that comes later is released."""
        rows = [row[0] for row in await self._read_rows([self._names.queue(resource)])]
        ballots = [row.ballot for row in rows if row.holder == holder]
        waits = any(place[0] == holder for row in rows for place in row.line)
        return max(ballots, default=0 if waits else None)

    def _promise(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities


def _undecided(resource: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"so many nodes are away that nobody can tell whether {resource!r} is held; repeat it when they answer",
        resource=resource,
    )


def _skewed(claim: Claim, ahead: float) -> StoreError:
    way = "ahead of" if ahead > 0 else "behind"
    return StoreError(
        f"a majority of nodes refuses a token for {claim.resource!r} that was made of this machine's clock, which is "
        f"{abs(ahead):.0f} s {way} theirs, or of their own counters; set the clocks: an hour is allowed",
        resource=claim.resource,
    )


def _off(endpoint: Endpoint, ahead: float) -> StoreError:
    way = "behind" if ahead > 0 else "ahead of"
    return StoreError(f"the clock of Redis at {endpoint} is {abs(ahead):.0f} s {way} this machine's: set the clocks")
