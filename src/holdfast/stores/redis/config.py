"""What a server's configuration makes of the promises: asked on first use, assessed here."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...core.promises import KEEPS_ALL, Broken, Capabilities, Fault, Scope
from ...errors import StoreError
from ...observe.log import logger
from .wire import PASSING, Command, Endpoint, ReplyError, explain

# What is lost with the last writes: claims (1), places in line (7), and so loss is not told in time (9). Tokens still
# rise then, by the clock.
_LAST_WRITES: Broken = frozenset({1, 7, 9})
# And where any write may be lost, the counter may be gone while the clock is behind it: nothing holds tokens up (2).
_ANY_WRITE: Broken = frozenset({1, 2, 7, 9})

SINGLE = Capabilities(
    store="redis",
    scope=Scope.CLUSTER,
    faults={
        Fault.CLIENT_PAUSE: KEEPS_ALL,
        Fault.CLIENT_CRASH: KEEPS_ALL,
        Fault.SERVER_RESTART: KEEPS_ALL,
        Fault.CLOCK_STEP: frozenset({1, 9}),  # the server judges expiry by its wall clock
    },
    evict=True,
    extend=True,
    dated=True,
    max_ttl=1e9,  # microseconds that are added to the clock must stay below 2^53
)
# Replication is asynchronous: a replica that is promoted may not have the last writes.
REPLICATED = SINGLE._replace(faults={**SINGLE.faults, Fault.SERVER_FAILOVER: _LAST_WRITES})

_INFO: Command = ("INFO",)
_FSYNC: Command = ("CONFIG", "GET", "appendfsync")
# The server cannot answer now, or wants a login.
_NO_ANSWER = PASSING | {"NOAUTH", "WRONGPASS"}
_MOVE = (
    "let its user call INFO and CONFIG GET, or set trust_config=true if you know that it runs with appendfsync=always "
    "and maxmemory-policy=noeviction"
)


class Found(NamedTuple):
    """What one server's configuration means: why it may evict and why it may forget claims, if it may."""

    evicts: str = ""
    forgets: str = ""
    replicated: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What is wrong, and what to set."""
        return tuple(filter(None, (self.evicts, self.forgets)))


def questions(trusted: bool) -> tuple[Command, ...]:
    """Return what to ask a server: where the configuration is trusted, only what it is."""
    return (_INFO,) if trusted else (_INFO, _FSYNC)


def unanswered(endpoint: object, replies: Sequence[Any]) -> StoreError | None:
    """Return why the replies say nothing of a configuration, not even that it is hidden."""
    for reply in replies:
        if isinstance(reply, ReplyError) and reply.code in _NO_ANSWER:
            return explain(reply, endpoint)
    return None


def assess(endpoint: object, replies: Sequence[Any], trusted: bool) -> Found:
    """Assess the replies to the questions. What is hidden is taken for the worst, unless it is trusted.

    Raises: StoreError if this server cannot be used.
    """
    info = replies[0]
    if isinstance(info, ReplyError):  # a server that hides this is somebody's service, and such a service fails over
        hidden = f"it hides INFO ({info}), so nobody can tell whether it evicts or forgets claims: {_MOVE}"
        return Found("" if trusted else hidden, replicated=True)
    facts = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    version = facts.get("redis_version", "5")
    if int(version.split(".")[0]) < 5:
        raise StoreError(f"Redis at {endpoint} has version {version}; holdfast needs 5.0 or newer")
    if facts.get("role", "master") != "master":
        raise StoreError(
            f"Redis at {endpoint} is a replica, which takes no writes; name its master, or use redis+sentinel://"
        )
    replicated = facts.get("connected_slaves", "0") != "0" or facts.get("cluster_enabled") == "1"
    if trusted:
        return Found(replicated=replicated)
    return Found(_evicts(facts), _forgets(facts, replies[1]), replicated)


def _evicts(facts: dict[str, str]) -> str:
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or facts.get("maxmemory", "0") == "0":
        return ""
    return f"maxmemory-policy is {policy}, so it may throw claims away: set noeviction"


def _forgets(facts: dict[str, str], config: list[bytes] | ReplyError) -> str:
    if facts.get("aof_enabled") != "1":
        return "appendonly is no, so a restart forgets claims: set appendonly yes and appendfsync always"
    if isinstance(config, ReplyError):
        return f"it hides CONFIG GET ({config}), so nobody can tell whether a crash forgets the last claims: {_MOVE}"
    fsync = dict(zip(config[::2], config[1::2], strict=True)).get(b"appendfsync", b"?").decode()
    if fsync == "always":
        return ""
    return f"appendfsync is {fsync}, so a crash forgets the last claims: set always"


class Findings:
    """What was found at the servers of a client. Both sides of an asyncio client share it, in any thread."""

    def __init__(self, base: Capabilities, promise: Callable[[Capabilities], None]) -> None:
        self._base = base
        self._promise = promise  # takes what the store can promise by all that is known
        self._known: dict[Endpoint, Found] = {}
        self._mutex = allocate_lock()

    def add(self, endpoint: Endpoint, found: Found) -> None:
        """Note what was found at a server, and warn once of what is wrong there."""
        if self._known.get(endpoint) != found:
            self._known[endpoint] = found
            if found.notes:  # not under the mutex: a handler of the log may do anything
                logger.warning("Redis at %s cannot keep every promise: %s", endpoint, "; ".join(found.notes))
        with self._mutex:  # so that the last to promise knows what all have found
            self._promise(promises(self._base, list(self._known.values())))


def promises(base: Capabilities, found: Sequence[Found]) -> Capabilities:
    """Return what a store can promise, given what was found at its servers."""
    faults = dict(base.faults)
    if any(server.replicated for server in found):
        faults[Fault.SERVER_FAILOVER] = faults.get(Fault.SERVER_FAILOVER, KEEPS_ALL) | _LAST_WRITES
    if any(server.forgets for server in found):
        faults[Fault.SERVER_RESTART] |= _ANY_WRITE
    if any(server.evicts for server in found):
        faults = {fault: broken | _ANY_WRITE for fault, broken in faults.items()}
    notes = tuple(dict.fromkeys(note for server in found for note in server.notes))
    return base._replace(faults=faults, notes=notes)
