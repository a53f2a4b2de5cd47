"""Law 2: tokens are unique and rise, whatever is restarted."""

from __future__ import annotations

from itertools import pairwise

from ...core.claim import Granted
from ...core.queue import TOKEN_LIMIT
from ..law import law
from .case import Case, CaseClient
from .runtime import eventually


async def _token(client: CaseClient, ttl: float) -> int:
    async with client.lock("r", ttl=ttl, timeout=60) as lease:
        return lease.token


@law(2)
async def tokens_rise_from_grant_to_grant(case: Case) -> None:
    """Each lease's token is larger than that of the one before, whichever client takes it."""
    clients = [await case.client() for _ in range(3)]
    tokens = [await _token(client, case.ttl) for _ in range(4) for client in clients]
    assert tokens == sorted(set(tokens))
    assert tokens[0] > 0
    assert tokens[-1] < TOKEN_LIMIT


@law(2)
async def tokens_are_unique_among_contenders(case: Case) -> None:
    """Tokens of contending workers are unique and rise in the order of the grants."""
    tokens: list[int] = []

    async def work(client: CaseClient) -> None:
        for _ in range(15):
            async with client.lock("r", ttl=60, timeout=60) as lease:
                tokens.append(lease.token)

    calls = [case.spawn(work, await case.client()) for _ in range(4)]
    for call in calls:
        await call.join(60)
    assert len(tokens) == 60
    assert tokens == sorted(set(tokens))


@law(2)
async def tokens_rise_across_client_restarts(case: Case) -> None:
    """A client that comes after the last one has closed gets a larger token: the counter is the store's."""
    tokens = []
    for _ in range(3):
        client = await case.client()
        tokens.append(await _token(client, case.ttl))
        await client.close()
    assert tokens == sorted(set(tokens))


@law(2)
async def tokens_rise_after_an_expiry(case: Case) -> None:
    """Whoever takes over from a holder that ran out has the larger token."""
    store = await case.store()
    first = await store.claim(case.claim())
    await case.advance(case.ttl + case.past)
    second = await store.claim(case.claim())
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.token > first.token


@law(2, "shared")
async def shared_tokens_rise_around_exclusive_ones(case: Case) -> None:
    """A writer's token exceeds every earlier reader's, a later reader's exceeds the writer's, and none occurs twice."""
    store = await case.store()
    tokens: list[list[int]] = []
    for _ in range(3):
        for weights in ([1, 1, 1], [None]):
            claims = [case.claim() if weight is None else case.claim(weight=weight) for weight in weights]
            answers = [await store.claim(claim) for claim in claims]
            tokens.append([answer.token for answer in answers if isinstance(answer, Granted)])
            assert len(tokens[-1]) == len(weights)
            for claim in claims:
                await store.release("r", claim.holder)
    every = [token for group in tokens for token in group]
    assert len(set(every)) == len(every)
    for earlier, later in pairwise(tokens):
        assert max(earlier) < min(later)


@law(2, "driven")
async def tokens_rise_although_the_wall_clock_is_set_back(case: Case) -> None:
    """A wall clock that was set back does not take tokens back with it."""
    client = await case.client()
    before = await _token(client, case.ttl)
    case.step_wall(-7 * 86400)
    after = await _token(client, case.ttl)
    await client.close()
    restarted = await _token(await case.client(), case.ttl)
    assert before < after < restarted


@law(2, "restart")
async def tokens_rise_across_server_restarts(case: Case) -> None:
    """What the server has promised before its restart, it knows after it."""
    assert case.target.restart is not None
    client = await case.client()
    before = await _token(client, case.ttl)
    case.target.restart(case.url)
    await case.advance(0.01)  # no server is back at once
    after = await _token(client, case.ttl)
    other = await _token(await case.client(), case.ttl)
    assert before < after < other


@law(2, "host")
async def tokens_rise_across_processes(case: Case) -> None:
    """Processes that come one after another get rising tokens."""
    client = await case.client(real=True)
    tokens = [await _token(client, case.real_ttl)]
    for _ in range(2):
        child = case.child("lock_once", ttl=case.real_ttl)
        await eventually(lambda child=child: child.ended)  # type: ignore[misc]
        tokens.append(child.said[0][0])
        tokens.append(await _token(client, case.real_ttl))
    assert tokens == sorted(set(tokens))
