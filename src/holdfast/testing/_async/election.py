"""Elections: one leads at a time, everybody sees who, and the office passes on."""

from __future__ import annotations

from contextlib import aclosing

from ..._async.election import Election, Term
from ..law import law
from .case import Case
from .runtime import eventually
from .tap import unanswered


class _Candidate:
    """Campaigns until it has had so many terms; ends a term when it is told to."""

    def __init__(self, case: Case, election: Election, most: int) -> None:
        self.terms: list[Term] = []
        self._ended = 0
        self.call = case.spawn(self._campaign, election, most)

    async def _campaign(self, election: Election, most: int) -> None:
        async with aclosing(election.terms()) as terms:
            async for term in terms:
                self.terms.append(term)
                await eventually(lambda: self._ended >= len(self.terms))
                if len(self.terms) == most:
                    return

    async def leads(self) -> Term:
        """Wait for its next term."""
        await eventually(lambda: len(self.terms) > self._ended)
        return self.terms[-1]

    def resign(self) -> None:
        """End the term: go back for the next one, or home."""
        self._ended = len(self.terms)


@law(1)
async def one_leads_at_a_time_and_all_see_who(case: Case) -> None:
    """Each has its term, one after the other; who looks on sees the leader's value and token."""
    onlooker = (await case.client()).election("r", ttl=60)
    assert await onlooker.leader() is None
    candidates = {
        value: _Candidate(case, (await case.client()).election("r", value=value, ttl=60), most=1)
        for value in ("http://one\n✓", "two", "three")
    }
    tokens: list[int] = []
    for led in range(1, 4):
        await eventually(lambda led=led: sum(len(c.terms) for c in candidates.values()) == led)  # type: ignore[misc]
        leader = await onlooker.leader()
        assert leader is not None
        term = await candidates[leader.value].leads()
        assert term.token == leader.token
        term.check()
        tokens.append(term.token)
        assert await (await case.client()).election("r", ttl=60).lead().try_acquire() is None
        assert sum(len(candidate.terms) for candidate in candidates.values()) == led
        candidates[leader.value].resign()
    for candidate in candidates.values():
        await candidate.call.join()
    assert tokens == sorted(set(tokens))
    assert await onlooker.leader() is None


@law(8)
async def office_passes_on_when_its_leader_resigns(case: Case) -> None:
    """Nobody waits for the ttl."""
    first = _Candidate(case, (await case.client()).election("r", ttl=600), most=1)
    before = await first.leads()
    rival = await case.client()
    second = _Candidate(case, rival.election("r", ttl=600), most=1)
    await eventually(lambda: rival.tap.count("wait") > 0)
    assert second.terms == []
    first.resign()
    assert (await second.leads()).token > before.token
    second.resign()
    for candidate in (first, second):
        await candidate.call.join()
    await case.nothing_left()


@law(6)
async def loss_ends_a_term_and_not_the_campaign(case: Case) -> None:
    """A leader that cannot renew is followed by another; when it can it campaigns on, for a term of its own."""
    client, rival = await case.client(), await case.client()
    first = _Candidate(case, client.election("r", value="first", ttl=case.ttl), most=2)
    lost = await first.leads()
    client.tap.before["renew"] = unanswered
    second = _Candidate(case, rival.election("r", value="second", ttl=60), most=1)
    await eventually(lambda: rival.tap.count("wait") > 0)
    await case.advance(case.ttl + case.past)
    newer = await second.leads()
    assert lost.lost
    assert newer.token > lost.token
    client.tap.heal()
    first.resign()
    newer.check()
    second.resign()
    await second.call.join()
    assert (await first.leads()).token > newer.token
    first.resign()
    await first.call.join()


@law(8)
async def observer_sees_every_change_of_the_leader(case: Case) -> None:
    """Who leads now, then every change: nobody, the one, nobody, the other."""
    client, onlooker = await case.client(), await case.client()
    seen: list[str | None] = []

    async def observe() -> None:
        async with aclosing(onlooker.election("r", ttl=60).observe()) as leaders:
            async for leader in leaders:
                seen.append(leader.value if leader is not None else None)
                if len(seen) == 5:
                    return

    call = case.spawn(observe)
    await case.until(lambda: seen == [None])
    for value in ("one", "two"):
        lease = await client.election("r", value=value, ttl=600).lead().acquire()
        await case.until(lambda value=value: seen[-1] == value)  # type: ignore[misc]
        await lease.release()
        await case.until(lambda: seen[-1] is None)
    await call.join()
    assert seen == [None, "one", None, "two", None]


@law(6, "host")
async def killed_leader_is_followed_by_the_next(case: Case) -> None:
    """kill -9 of a leader: whoever campaigns leads within ttl + waiting life + 1 s."""
    child = case.child("lead", ttl=case.real_ttl)
    await eventually(child.heard)
    client = await case.client(real=True)
    candidate = _Candidate(case, client.election("r", ttl=60), most=1)
    await eventually(lambda: client.tap.count("wait") > 0)
    assert candidate.terms == []
    child.kill()
    await eventually(lambda: bool(candidate.terms), limit=case.real_ttl + case.capabilities.waiting_life + 1.0)
    assert candidate.terms[0].token > child.said[0][1]
    candidate.resign()
    await candidate.call.join()
