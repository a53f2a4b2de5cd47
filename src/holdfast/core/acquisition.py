"""One acquire, without clock or I/O: told what happened, it says what to do next.

What can happen to a claim, and in which order:

- It is *asked* for. The answer is Granted (held), Waiting (it stands in line), or nothing comes (`silent`): then it may
  be there, in line or even granted; or it may come later, for a message that was given up can still arrive.
- While it stands in line it *waits* to be woken. It asks again when it is woken, when the claim ahead can have expired,
  and often enough to keep its place in line. A store may hand the grant over with the wake-up.
- A store that is silent is asked again after a *pause*, until the timeout has passed (without one: until a few
  io_timeouts have). A claim that is sent twice is one claim, so asking again is always safe.
- Somebody may cancel or interrupt the caller, or close the client, between any two steps.

What makes each order safe:

- `asked` is read before the question is sent, and the deadline of a grant counts from there. A grant that has run out
  on its way here, or nearly, starts no body: it is given back, and the resource asked for anew if there is time.
- What the store may have of the claim is one value, `fate`. It is set to ASKED *before* a question leaves and to what
  the answer says after; whoever leaves for whatever reason finds in `leftover` what has to be withdrawn, or that
  nothing has.
- A copy that went unanswered may arrive after the claim was withdrawn, and even after it was granted, held and
  released: it would then hold the resource for a whole ttl, and nobody would release it. So the time until which such
  strays are to be expected (`strays_until`) goes with the leftover, or with the hold, and the release is repeated when
  it has come.
- A copy of a release may arrive late, too, and would end what is granted next under the same name. So a name is never
  asked for again after it was given back: the claim gets a new one.
- The caller gets its answer within timeout + io_timeout. One exchange takes io_timeout at most: one that has to follow
  after the timeout (a withdrawal) is done in the background.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import NamedTuple

from .claim import Answer, Claim, Granted, Waiting
from .lease import Hold
from .timing import LATENESS, backoff, local_deadline

OUTAGE = 3  # io_timeouts for which an outage is tolerated where no timeout says how long
SHORTEST_PAUSE = 0.01
HALF = 0.5  # of the ttl that must be left of a grant that was handed over
LEAST_LEFT = 1 / 6  # of the ttl that must be left of a grant, so that the keeper can renew it
SLACK = 0.05  # of io_timeout by which a wait may end late and its withdrawal still be done in the foreground


class Fate(Enum):
    """What the store may have of the claim."""

    NOTHING = "nothing"
    ASKED = "anything: a question is under way, or went unanswered"
    IN_LINE = "a place in line"
    GRANTED = "a grant"


class Failure(Enum):
    """Why an acquire fails."""

    BUSY = "the resource stayed busy"
    TOO_SLOW = "the grant had run out when it arrived"
    UNAVAILABLE = "the store does not answer"
    DEADLOCK = "it would wait for itself"
    CLOSED = "the client was closed"
    DRAINING = "the client takes nothing new"
    CANCELLED = "somebody cancelled it"


class Ask(NamedTuple):
    """Ask for the claim now; then call `answered` or `silent`."""


class AskAnew(NamedTuple):
    """Give the claim a new name, then call `renamed`. What is left of the old one is in `leftover`."""


class Look(NamedTuple):
    """Look whether waiting would never end; then call `looked` or `silent`."""


class Wait(NamedTuple):
    """Wait to be woken, until then at the latest; then call `woken` or `silent`."""

    waiting: Waiting
    until: float


class Pause(NamedTuple):
    """Leave the store in peace until then; then call `rested`."""

    until: float


class GiveBack(NamedTuple):
    """Release the claim now; then call `given_back`."""


class Held(NamedTuple):
    """It is held: since when, and until which local deadline."""

    token: int
    since: float
    deadline: float


class Fail(NamedTuple):
    """It failed; what the store may still have of it is in `leftover`."""

    failure: Failure


class Leftover(NamedTuple):
    """What has to be released in the background: until when it can last, and until when strays may arrive."""

    until: float
    strays_until: float


Action = Ask | AskAnew | Look | Wait | Pause | GiveBack | Held | Fail


class Limits(NamedTuple):
    """What an acquire knows of its store."""

    io_timeout: float  # seconds within which a question is answered, or not at all
    waiting_life: float  # seconds that a claim stays in line without asking again


class Acquisition:
    """One acquire: a state machine whose methods are told what happened and return what to do."""

    # What most acquires, which are one question and one answer, leave as it is.
    fate = Fate.ASKED  # the first question is as good as sent
    strays_until = -inf  # until when a copy of the claim that went unanswered may still arrive; -inf if there is none
    waiting: Waiting | None = None  # the last such answer
    _outage_until = -inf
    _failures = 0
    _ending: Failure | None = None  # why it is being given back
    nested = False  # it is made inside of a body
    hold: Hold | None = None  # what came of it
    _stopped: Failure | None = None  # why the next step is the last

    def __init__(
        self,
        claim: Claim,
        timeout: float | None,
        now: float,
        limits: Limits,
        detects: bool = False,
        kind: str = "lock",
    ) -> None:
        self.claim = claim
        self.timeout = timeout
        self.started = self._asked = now
        self._limits = limits
        self.kind = kind  # what asks, for events
        self.detects = self.looks = detects  # whether deadlocks are looked for; whether to look before a wait

    @property
    def until(self) -> float:
        """When the caller has waited long enough."""
        return inf if self.timeout is None else self.started + self.timeout

    # -- what happened

    def answered(self, answer: Answer, now: float) -> Action:
        """The store has answered a question."""
        self._failures = 0
        if isinstance(answer, Granted):
            return self._granted(answer, self._asked, now)
        self.waiting = answer
        if self.timeout == 0:
            self.fate = Fate.NOTHING
            return Fail(Failure.BUSY)
        self.fate = Fate.IN_LINE
        if self._stopped is not None:
            return Fail(self._stopped)
        return Look() if self.looks else self._wait()

    def looked(self, deadlock: bool, now: float) -> Action:
        """Somebody has looked whether waiting would never end."""
        self._failures = 0
        if self._stopped is not None:
            return Fail(self._stopped)
        return self._give_back(Failure.DEADLOCK, now) if deadlock else self._wait()

    def woken(self, grant: Granted | None, now: float) -> Action:
        """The wait is over: woken, handed a grant, or the time has come."""
        self._failures = 0
        # A grant that was handed over is as old as the last question, for all that is known here. If little is left of
        # it then, or if it cannot be renewed, ask the store, which knows better.
        if grant is not None and now < self._asked + self.claim.ttl * HALF and not self.claim.detached:
            return self._granted(grant, now, now)
        if self._stopped is not None:
            return Fail(self._stopped)
        if grant is None and now >= self.until:
            return self._give_back(Failure.BUSY, now)
        return self._ask(now)

    def silent(self, now: float) -> Action:
        """No answer came to what was last done. If that was a question, a copy of it may still arrive."""
        if self.fate is Fate.ASKED:
            self.strays_until = self._stray_until()
        if self._stopped is not None:
            return Fail(self._stopped)
        if not self._failures:
            self._outage_until = (
                self.until if self.timeout is not None else self._asked + OUTAGE * self._limits.io_timeout
            )
        # Half of what is left at most: a store that comes back shortly before the end is still found.
        pause = min(backoff(self._failures), (self._outage_until - now) / 2)
        self._failures += 1
        return Pause(now + pause) if pause >= SHORTEST_PAUSE else Fail(Failure.UNAVAILABLE)

    def rested(self, now: float) -> Action:
        """The pause is over."""
        return Fail(self._stopped) if self._stopped is not None else self._ask(now)

    def given_back(self, answered: bool, now: float) -> Action:
        """The claim was released, or nobody knows whether it was."""
        assert self._ending is not None
        if answered:
            self.fate = Fate.NOTHING
        if self._stopped is not None:
            return Fail(self._stopped)
        if answered and self._ending is Failure.TOO_SLOW and now < self.until:
            return AskAnew()
        return Fail(self._ending)

    def renamed(self, claim: Claim, now: float) -> Ask:
        """The claim has a new name."""
        self.claim = claim
        self.strays_until = -inf
        self._ending = None
        return self._ask(now)

    def stop(self, why: Failure) -> None:
        """The client is being closed, or somebody has cancelled it: the next step is the last."""
        self._stopped = self._stopped or why

    # -- what is left

    def usable(self, deadline: float, now: float) -> bool:
        """Return whether enough is left of a grant."""
        return deadline - now > self.claim.ttl * LEAST_LEFT

    def _stray_until(self) -> float:
        return self._asked + self._limits.io_timeout + LATENESS

    def leftover(self, now: float) -> Leftover | None:
        """Return what has to be released in the background if the acquire ends here; None if there is nothing."""
        strays = self.strays_until
        if self.fate is Fate.ASKED:  # whatever ended it, its last question may be on its way
            strays = max(strays, self._stray_until())
        if self.fate is Fate.NOTHING and strays <= now:
            return None
        lasts = max(self.claim.ttl, self._limits.waiting_life)
        return Leftover(max(now, strays) + lasts, strays)

    # -- what to do

    def _ask(self, now: float) -> Ask:
        self._asked = now  # before asking: a slow reply must shorten the lease, never extend it
        self.fate = Fate.ASKED
        return Ask()

    def _wait(self) -> Wait:
        assert self.waiting is not None
        refresh = min(self._limits.waiting_life / 3, self.waiting.retry_after)
        return Wait(self.waiting, min(self.until, self._asked + refresh))

    def _granted(self, grant: Granted, since: float, now: float) -> Action:
        self.fate = Fate.GRANTED
        deadline = local_deadline(self._asked, self.claim.ttl, grant.left)
        if self.usable(deadline, now) and self._stopped is None:
            return Held(grant.token, since, deadline)
        return self._give_back(self._stopped or Failure.TOO_SLOW, now)

    def _give_back(self, why: Failure, now: float) -> Action:
        self._ending = why
        if now > self.until + SLACK * self._limits.io_timeout:  # the caller has been kept long enough
            return Fail(why)
        return GiveBack()
