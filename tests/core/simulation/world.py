"""The client's half in virtual time: acquisition, agenda, lease and the keeper's activities, on the pure queue.

Everything that decides is the real thing. What is simulated is what acts: a clock that jumps from event to event, a
network that delays, loses and repeats messages, processes that pause, block their loop, close or crash, and the loop
around `Acquisition`, which here is a generator. All chance comes from one `Random`: a seed is a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from typing import Any, NamedTuple

from holdfast.core.acquisition import (
    Acquisition,
    Action,
    Ask,
    AskAnew,
    Fail,
    Failure,
    GiveBack,
    Held,
    Limits,
    Look,
    Pause,
    Wait,
)
from holdfast.core.agenda import Orphan
from holdfast.core.claim import LOST, Claim, Granted, Renewed, Waiting
from holdfast.core.events import Event
from holdfast.core.lease import LIVE, Hold
from holdfast.core.promises import Capabilities, Scope
from holdfast.core.queue import Queue
from holdfast.errors import StoreUnavailable
from holdfast.keeper.entries import Share
from holdfast.keeper.keeper import Keeper, Leaving
from holdfast.keeper.threads import Steps, Until
from holdfast.observe.stream import Stream

WAITING_LIFE = 2.0
RESOURCE = "r"


class Weather(NamedTuple):
    """What the network and the processes do; chances are per message or per step."""

    lost: float = 0.0  # a message, on either way
    late: float = 0.0  # a message that takes long, longer than anybody waits for it
    twice: float = 0.0  # a release that is executed again, later
    handed: float = 0.0  # a release that grants to the first in line, and tells it
    cancelled: float = 0.0  # an acquire, or a release, at any of its steps
    paused: float = 0.0  # a whole process
    blocked: float = 0.0  # an event loop; its keeper goes on
    closed: float = 0.0  # a client
    renewals: bool = True  # whether renewals are lost and late, too
    longest: float = 2.9  # seconds that a late message takes


class Asking(NamedTuple):
    """An actor waits for the answer to a request."""

    verb: str
    arguments: tuple[Any, ...]


class Sleeping(NamedTuple):
    """An actor sleeps until then, or until it is woken."""

    until: float


Script = Generator[Asking | Sleeping, Any, None]


class Cancelled(BaseException):
    """Somebody has cancelled what an actor was doing."""


class SimClock:
    """The time of the world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> float:
        return self._world.now

    def wall_ns(self) -> int:
        return int(self._world.now * 1e9)

    def patience(self, left: float) -> float:
        return left


class World:
    """Time, the network and the store."""

    def __init__(self, random: Random, weather: Weather, *, io_timeout: float = 1.0) -> None:
        self.random = random
        self.weather = weather
        self.io_timeout = io_timeout
        self.now = 1000.0
        self.clock = SimClock(self)
        self.queue = Queue()
        self.clients: list[Client] = []
        self.tokens: list[int] = []  # of holds, in the order in which they began
        self.watchers: list[Callable[[], None]] = []  # called after every event: what must always be true
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def later(self, seconds: float, event: Callable[[], None]) -> None:
        heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def run(self, seconds: float) -> None:
        """Let this much time pass."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, event = heappop(self._events)
            event()
            for client in self.clients:
                client.run_activities()
            for watch in self.watchers:
                watch()
        self.now = end

    # -- the store

    def execute(self, verb: str, arguments: tuple[Any, ...]) -> Any:
        now, us = self.now, int(self.now * 1e6)
        if verb == "claim":
            step = self.queue.claim(arguments[0], now, us, WAITING_LIFE, queue=arguments[1])
            self._wake(step.wake)
            return step.answer
        if verb == "renew":
            steps = [self.queue.renew(claim.holder, now, claim.ttl) for claim in arguments[0]]
            for step in steps:
                self._wake(step.wake)
            return [Renewed(step.answer.left) if isinstance(step.answer, Renewed) else LOST for step in steps]
        _, holder, keep = (*arguments, 0.0)[:3]
        step = self.queue.release(holder, now, keep)
        wake = step.wake
        if wake and self._chance(self.weather.handed) and wake[0].claim.weight == wake[0].claim.capacity:
            given = self.queue.claim(wake[0].claim, now, us, WAITING_LIFE).answer
            if isinstance(given, Granted):
                self._tell(wake[0].claim, given)
                wake = wake[1:]
        self._wake(wake)
        return step.answer is True

    def _wake(self, entries: Any) -> None:
        for entry in entries:
            self._tell(entry.claim, None)

    def _tell(self, claim: Claim, grant: Granted | None) -> None:
        if not self._chance(self.weather.lost):
            for client in self.clients:
                self.later(self._delay("wake"), lambda client=client: client.told(claim.holder, grant))  # type: ignore[misc]

    # -- the network

    def exchange(self, verb: str, arguments: tuple[Any, ...], limit: float, done: Callable[[Any], None]) -> None:
        """Send a request; `done` gets the answer, or StoreUnavailable when the limit has come."""
        answered: list[bool] = []

        def answer(result: Any) -> None:
            if not answered:
                answered.append(True)
                done(result)

        def arrive(reply: bool = True) -> None:
            result = self.execute(verb, arguments)
            if reply and not self._fails(verb, self.weather.lost):
                self.later(self._delay(verb), lambda: answer(result))

        self.later(limit, lambda: answer(StoreUnavailable("silent")))
        if not self._fails(verb, self.weather.lost):
            self.later(self._delay(verb), arrive)
            if verb == "release" and self._chance(self.weather.twice):
                self.later(self.random.uniform(0, self.weather.longest), lambda: arrive(False))

    def _delay(self, verb: str) -> float:
        if self._fails(verb, self.weather.late):
            return self.random.uniform(0, self.weather.longest)
        return self.random.uniform(0.0005, 0.01)

    def _fails(self, verb: str, chance: float) -> bool:
        return (verb != "renew" or self.weather.renewals) and self._chance(chance)

    def _chance(self, chance: float) -> bool:
        return chance > 0 and self.random.random() < chance


class Silence(Stream):
    """Nobody listens."""

    def emit(self, event: Event) -> None:
        pass


class SimStore:
    """What the keeper wants to know of a store; it is called through the network."""

    capabilities = Capabilities("simulated", Scope.CLUSTER, {}, waiting_life=WAITING_LIFE)

    def blocking(self) -> Any:
        return self


class Activity:
    """An activity of a keeper: a generator that the world drives."""

    def __init__(self, client: Client, steps: Callable[[], Steps], name: str) -> None:
        self.client = client
        self.over = False
        self.name = name
        self._make = steps
        self._steps: Steps | None = None
        self._waits: Until | None = None

    def start(self) -> None:
        if self._steps is None:
            self._steps = self._make()
            self._advance(lambda: next(self._steps))  # type: ignore[arg-type]

    def run_here(self) -> None:
        self.start()

    def join(self, seconds: float) -> bool:
        return self.over

    def look(self) -> bool:
        """Go on if what it waits for has come."""
        waits, world = self._waits, self.client.world
        if waits is None or self.over or self.client.stopped():
            return False
        woken = waits.latch.wait(world.clock, -inf)
        if not woken and world.now < waits.when:
            return False
        self._waits = None
        self._advance(lambda: self._steps.send(woken))  # type: ignore[union-attr]
        return True

    def _advance(self, step: Callable[[], Any]) -> None:
        try:
            request = step()
        except StopIteration:
            self.over = True
            return
        if isinstance(request, Until):
            self._waits = request
            wait = request.when - self.client.world.now
            if wait < inf:
                self.client.world.later(max(0.0, wait), lambda: None)
            return
        if request.verb == "close":
            return self._advance(lambda: self._steps.send(None))  # type: ignore[union-attr]
        limit = request.arguments[1] if request.verb == "renew" else self.client.world.io_timeout
        self.client.world.exchange(request.verb, request.arguments, limit, self._answered)

    def _answered(self, result: Any) -> None:
        if self.client.crashed:
            return
        if self.client.stopped():
            return self.client.world.later(self.client.wakes - self.client.world.now, lambda: self._answered(result))
        steps = self._steps
        assert steps is not None
        failed = isinstance(result, Exception)
        self._advance((lambda: steps.throw(result)) if failed else (lambda: steps.send(result)))


class Client:
    """A process with a client: its keeper, and actors that acquire, look and release."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.wakes = -inf  # until when the whole process is paused
        self.unblocks = -inf  # until when its loop is blocked
        self.closing = False
        self.crashed = False
        self.losses: list[str] = []
        self.holds: dict[str, Hold] = {}  # of bodies that are open
        self.finished: dict[str, float] = {}  # holders that nobody here wants any more, and since when
        self.durations: list[tuple[float, float | None]] = []  # of acquires, with their timeouts
        self.acquired = 0
        self._activities: list[Activity] = []
        self._ids = count()
        self._actors: dict[str, Actor] = {}
        self.keeper = Keeper(SimStore(), None, world.clock, world.clock, Silence(), "n", world.io_timeout, self._launch)
        world.clients.append(self)

    def _launch(self, steps: Callable[[], Steps], name: str, clock: Any, call: Any) -> Activity:
        activity = Activity(self, steps, name)
        self._activities.append(activity)
        return activity

    def stopped(self) -> bool:
        return self.crashed or self.world.now < self.wakes

    def run_activities(self) -> None:
        while any([activity.look() for activity in list(self._activities)]):  # noqa: C419 (all of them)
            pass
        self._activities = [activity for activity in self._activities if not activity.over]

    def told(self, holder: str, grant: Granted | None) -> None:
        if (actor := self._actors.get(holder)) is not None:
            actor.told(grant)

    def new_holder(self) -> str:
        return f"{self.name}.1.{next(self._ids)}"

    def expect(self, holder: str, actor: Actor) -> None:
        """Wake the actor for this holder, and for no other of its holders any more."""
        self._actors = {other: known for other, known in self._actors.items() if known is not actor}
        self._actors[holder] = actor
        actor.news()

    def close(self) -> None:
        """Begin to close, as Client.close does: acquires end, then the keeper gives everything back."""
        self.closing = True
        for actor in dict.fromkeys(self._actors.values()):
            actor.told(None)

    def pause(self, seconds: float) -> None:
        self.wakes = max(self.wakes, self.world.now + seconds)
        self.world.later(seconds, lambda: None)

    def crash(self) -> None:
        """End without a chance to clean up."""
        self.crashed = True
        self.holds.clear()

    def block(self, seconds: float) -> None:
        self.unblocks = max(self.unblocks, self.world.now + seconds)


class Actor:
    """Somebody who takes the lock again and again: drives a script, which yields what it waits for."""

    def __init__(self, client: Client, script: Callable[[Actor], Script]) -> None:
        self.client = client
        self.over = False
        self._script = script(self)
        self._turn = 0
        self._news: tuple[Granted | None] | None = None
        self._sleeps = False
        client.world.later(0.0, lambda: self._go(0, None))

    def told(self, grant: Granted | None) -> None:
        """Wake it up, if it sleeps; keep the news if not."""
        self._news = (grant or (self._news[0] if self._news else None),)
        if self._sleeps:
            self._go(self._turn, None)

    def news(self) -> tuple[Granted | None] | None:
        news, self._news = self._news, None
        return news

    def _go(self, turn: int, result: Any) -> None:
        world, client = self.client.world, self.client
        if turn != self._turn or self.over or client.crashed:
            return
        held_up = max(client.wakes, client.unblocks)
        if world.now < held_up:
            return world.later(held_up - world.now, lambda: self._go(turn, result))
        self._turn += 1
        self._sleeps = False
        try:
            if turn and world._chance(world.weather.cancelled):
                request = self._script.throw(Cancelled())
            elif isinstance(result, Exception):
                request = self._script.throw(result)
            elif turn == 0:
                request = next(self._script)
            else:
                request = self._script.send(result)
        except StopIteration:
            self.over = True
            return
        turn = self._turn
        if isinstance(request, Sleeping):
            self._sleeps = True
            if request.until < inf:
                world.later(max(0.0, request.until - world.now), lambda: self._go(turn, None))
            if self._news is not None:
                world.later(0.0, lambda: self._go(turn, None))
        else:
            world.exchange(request.verb, request.arguments, world.io_timeout, lambda result: self._go(turn, result))


def worker(actor: Actor, ttl: float, timeout: float | None, rounds: int, stay: float = 0.0) -> Script:
    """Take the lock, look at the lease now and then, give it back: what Engine.acquire and Lease do, step by step."""
    client, world, keeper = actor.client, actor.client.world, actor.client.keeper
    for _ in range(rounds):
        claim = Claim(RESOURCE, client.new_holder(), ttl=ttl, owner=client.name)
        client.expect(claim.holder, actor)
        hold: Hold | None = None
        started = world.now
        acquisition = Acquisition(claim, timeout, world.now, Limits(world.io_timeout, WAITING_LIFE))
        try:
            if client.closing:
                return
            held = yield from acquire(actor, acquisition)
            claim = acquisition.claim
            client.durations.append((world.now - started, timeout))
            if held is None:
                raise Cancelled
            hold = Hold(
                keeper,
                claim,
                held.token,
                held.since,
                held.deadline,
                1,
                0.0,
                inf,
                acquisition.strays_until,
            )
            keeper.add(hold)
            share = Share(hold)
            client.acquired += 1
            world.tokens.append(hold.token)
            client.holds[claim.holder] = hold
            assert world.now < hold.deadline, "law 10: a body starts without a lease"
            for _ in range(world.random.randint(0, 6)):
                yield Sleeping(world.now + world.random.uniform(0, stay or ttl * 0.7))
                if keeper.look(hold) not in LIVE:
                    client.losses.append(hold.cause)
                    break
            client.holds.pop(claim.holder, None)
            yield from release(client, share)
        except Cancelled:
            claim = acquisition.claim
            client.holds.pop(claim.holder, None)
            if hold is not None:
                keeper.abandon(share)
            elif (leftover := acquisition.leftover(world.now)) is not None:
                keeper.adopt(Orphan(RESOURCE, claim.holder, 0.0, leftover.until, leftover.strays_until))
        client.finished[claim.holder] = world.now
        try:
            yield Sleeping(world.now + world.random.uniform(0, 0.5))
        except Cancelled:
            pass


def acquire(actor: Actor, acquisition: Acquisition) -> Generator[Any, Any, Held | None]:
    """Do what the acquisition says; None if it failed."""
    world, client, claim = actor.client.world, actor.client, acquisition.claim
    action: Action = Ask()
    while True:
        if client.closing:
            acquisition.stop(Failure.CLOSED)
        try:
            match action:
                case Held():
                    return action
                case Fail():
                    return None
                case Ask():
                    actor.news()
                    answer = yield Asking("claim", (claim, acquisition.timeout != 0))
                    action = acquisition.answered(answer, world.now)
                case Wait(waiting, until):
                    yield Sleeping(until)
                    news = actor.news()
                    grant = news[0] if news else None
                    if grant is not None and grant.token <= waiting.newest:
                        grant = None  # an old notice
                    action = acquisition.woken(grant, world.now)
                case Pause(until):
                    yield Sleeping(until)
                    actor.news()  # it asks anyway when it has rested
                    action = acquisition.rested(world.now) if world.now >= until else Pause(until)
                case AskAnew():
                    if (leftover := acquisition.leftover(world.now)) is not None:
                        client.keeper.adopt(Orphan(RESOURCE, claim.holder, 0.0, *leftover))
                    client.finished[claim.holder] = world.now
                    claim = claim._replace(holder=client.new_holder())
                    client.expect(claim.holder, actor)
                    action = acquisition.renamed(claim, world.now)
                case GiveBack():
                    try:
                        yield Asking("release", (RESOURCE, claim.holder))
                        action = acquisition.given_back(True, world.now)
                    except StoreUnavailable:
                        action = acquisition.given_back(False, world.now)
                case Look():
                    action = acquisition.looked(False, world.now)
        except StoreUnavailable:
            action = acquisition.silent(world.now)


def release(client: Client, share: Share) -> Generator[Any, Any, None]:
    """Give a lease back, as Engine.release does."""
    keeper, hold = client.keeper, share._hold
    leaving = keeper.let_go(share)
    if leaving not in (Leaving.RELEASE, Leaving.AGAIN):
        return
    client.finished[hold.claim.holder] = client.world.now
    try:
        had = yield Asking("release", (RESOURCE, hold.claim.holder))
        keeper.released(hold, had)
    except StoreUnavailable as error:
        keeper.unreleased(hold, str(error))
    share._settled = True


def grantee(world: World) -> Any:
    """Return who holds the resource by the store's clock."""
    live = [entry for entry in world.queue.entries if entry.token and entry.expires > world.now]
    return live[0] if live else None


__all__ = ["Actor", "Client", "Waiting", "Weather", "World", "grantee", "worker"]
