"""Keys, arguments and replies of the scripts: from core types and back."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from ...core.claim import MAX, Blocker, Claim, ClaimState, Granted, ResourceState, Waiting
from ...core.fence import Fence, Seen, enter
from ...core.queue import BROKEN, KEPT, next_token

US = 1_000_000


class Names:
    """The keys of one namespace.

    What stands between the first { and the first } after it decides the slot in a cluster, so a name must not close it.
    """

    __slots__ = ("_queue", "_register")

    def __init__(self, namespace: str, head: str = "holdfast") -> None:
        space = _escape(namespace).replace(":", "%3A")
        self._queue = head + ":{" + space + ":"
        self._register = head + ".register:{" + space + ":"

    def queue(self, resource: str) -> str:
        """Return the key of a resource."""
        return self._queue + (_escape(resource) if "%" in resource or "}" in resource else resource) + "}"

    def register(self, key: str) -> str:
        """Return the key of a register."""
        return self._register + _escape(key) + "}"

    def pattern(self, prefix: str) -> str:
        """Return the pattern by which SCAN finds the resources whose names begin with this."""
        begin = self._queue + _escape(prefix)
        return "".join("\\" + char if char in "*?[]^\\-" else char for char in begin) + "*}"

    def resource(self, key: bytes) -> str:
        """Return the name of the resource that has this key."""
        return _unescape(key.decode()[len(self._queue) : -1])


def _escape(name: str) -> str:
    return name.replace("%", "%25").replace("}", "%7D")


def _unescape(text: str) -> str:
    return text.replace("%7D", "}").replace("%25", "%")


def new_channel(client: str) -> str:
    """Return the channel on which a client is told which of its claims can go."""
    return f"holdfast.wake:{client}"


def pack_claim(claim: Claim, channel: str) -> tuple[bytes, ...]:
    """Return the arguments of the script for all of a claim but resource and holder.

    The last is what a script keeps of it; `value` may have line breaks, and is last there.
    """
    weight, capacity, fair, ttl = f"{claim.weight}", f"{claim.capacity}", f"{claim.fair:d}", f"{int(claim.ttl * US)}"
    tail = claim.owner if claim.value is None else f"{claim.owner}\n{claim.value}"
    packed = f"{weight} {capacity} {fair} {claim.detached:d} {ttl} {channel}\n{tail}"
    return tuple(text.encode() for text in (weight, capacity, fair, ttl, packed))


def read_answer(reply: Sequence[Any]) -> Granted | Waiting:
    """Turn the reply to a claim that was not granted just now into its answer.

    Raises: StoreError if the token would be too large.
    """
    if reply[0] == 1:
        return Granted(reply[1], reply[2] / US)
    if reply[0] == -1:
        next_token(reply[1] - 1, 0)  # raises
    _, ahead, retry, owner, token, left, capacity, newest = reply
    if retry < 0 and not owner:
        return Waiting(0, inf, None, newest)
    return Waiting(ahead, retry / US, Blocker(owner.decode(), token, left / US, capacity), newest)


def read_state(resource: str, reply: Sequence[Any]) -> ResourceState:
    """Turn the reply to an inspection into a state; holders and waiters in the order of their arrival."""
    token, *rows = reply
    claims = [_read_claim(*row) for row in sorted(rows, key=lambda row: row[4])]
    holders, waiters = (tuple(claim for claim in claims if bool(claim.token) is held) for held in (True, False))
    return ResourceState(resource, token, holders, waiters)


def _read_claim(holder: bytes, token: int, left: int, kept: int, seq: int, packed: bytes) -> ClaimState:
    head, owner, *value = packed.decode().split("\n", 2)
    weight, capacity, fair, detached = map(int, head.split(" ")[:4])
    return ClaimState(
        holder.decode(), owner, token, left / US, weight, capacity, value[0] if value else None,
        bool(detached or kept == KEPT), bool(fair), kept == BROKEN,
    )  # fmt: skip


def check_entered(reply: Sequence[Any], fence: Fence | None) -> None:
    """Check that a register let the fence in.

    Raises: StaleToken if not.
    """
    if reply[0] == 0 and fence is not None:
        enter(Seen(*reply[1:]), fence)


assert (MAX, KEPT, BROKEN) == (1 << 30, 1, 2), "the scripts know them as these numbers"
