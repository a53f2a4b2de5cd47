"""What a server's configuration makes of the promises: asked on first use, judged here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..core.promises import KEEPS_ALL, Broken, Capabilities, Fault, Scope
from ..errors import StoreError
from ..observe.stream import logger
from .wire import Command, Endpoint, ReplyError

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
    max_ttl=1e9,  # microseconds that are added to the clock must stay below 2^53
)
# Replication is asynchronous: a replica that is promoted may not have the last writes.
REPLICATED = SINGLE._replace(faults={**SINGLE.faults, Fault.SERVER_FAILOVER: _LAST_WRITES})

QUESTIONS: tuple[Command, ...] = (("INFO",), ("CONFIG", "GET", "appendfsync"))


class Found(NamedTuple):
    """What one server's configuration means."""

    evicts: str = ""
    forgets: str = ""
    replicated: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What is wrong, and what to set."""
        return tuple(filter(None, (self.evicts, self.forgets)))


def judge(endpoint: object, replies: Sequence[Any], trusted: bool) -> Found:
    """Judge the replies to QUESTIONS.

    Raises: StoreError if this server cannot be used, or hides what has to be known.
    """
    info, fsync = replies
    if isinstance(info, ReplyError) or (isinstance(fsync, ReplyError) and not trusted):
        refusal = info if isinstance(info, ReplyError) else fsync
        raise StoreError(
            f"Redis at {endpoint} hides its configuration ({refusal}), so what it promises is unknown; let this user "
            "call INFO and CONFIG GET, or add ?trust_config=true to the URL if you know that it runs with "
            "appendfsync=always and maxmemory-policy=noeviction"
        )
    facts = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    if int(facts["redis_version"].split(".")[0]) < 5:
        raise StoreError(f"Redis at {endpoint} has version {facts['redis_version']}; holdfast needs 5.0 or newer")
    if facts["role"] != "master":
        raise StoreError(
            f"Redis at {endpoint} is a replica, which takes no writes; name its master, or use redis+sentinel://"
        )
    replicated = facts.get("connected_slaves", "0") != "0" or facts.get("cluster_enabled") == "1"
    if trusted:
        return Found(replicated=replicated)
    return Found(_evicts(facts), _forgets(facts, dict(zip(fsync[::2], fsync[1::2], strict=True))), replicated)


def _evicts(facts: dict[str, str]) -> str:
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or facts.get("maxmemory", "0") == "0":
        return ""
    return f"maxmemory-policy is {policy}, so it may throw claims away: set noeviction"


def _forgets(facts: dict[str, str], config: dict[bytes, bytes]) -> str:
    if facts.get("aof_enabled") != "1":
        return "appendonly is no, so a restart forgets claims: set appendonly yes and appendfsync always"
    fsync = config.get(b"appendfsync", b"?").decode()
    if fsync == "always":
        return ""
    return f"appendfsync is {fsync}, so a crash forgets the last claims: set always"


def learn(known: dict[Endpoint, Found], endpoint: Endpoint, found: Found, base: Capabilities) -> Capabilities:
    """Take in what was found at a server; say once what is wrong there, and return what the store can promise now."""
    if known.get(endpoint) != found:
        known[endpoint] = found
        if found.notes:
            logger.warning("Redis at %s cannot keep every promise: %s", endpoint, "; ".join(found.notes))
    return promises(base, list(known.values()))


def promises(base: Capabilities, found: Sequence[Found]) -> Capabilities:
    """Return what a store can promise after what was found at its servers."""
    faults = dict(base.faults)
    if any(server.replicated for server in found):
        faults[Fault.SERVER_FAILOVER] = faults.get(Fault.SERVER_FAILOVER, KEEPS_ALL) | _LAST_WRITES
    if any(server.forgets for server in found):
        faults[Fault.SERVER_RESTART] |= _ANY_WRITE
    if any(server.evicts for server in found):
        faults = {fault: broken | _ANY_WRITE for fault, broken in faults.items()}
    notes = tuple(dict.fromkeys(note for server in found for note in server.notes))
    return base._replace(faults=faults, notes=notes)
