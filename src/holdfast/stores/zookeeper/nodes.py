"""The nodes that holdfast has in ZooKeeper, and what they hold.

Below the chroot:

    /holdfast/offset                            what is added to every czxid to make a token; and the format of the data
    /holdfast/clock                             written to learn the time
    /holdfast/claims/NAMESPACE/RESOURCE/CLAIM   containers down to the claim, which ends with its session
    /holdfast/broken/SESSION/HOLDER             a mark: this claim is renewed no more
    /holdfast/values/NAMESPACE/KEY              a register: its fence and its value
    /holdfast/ends/NAMESPACE/SLOT/ENTRY         when registers are over, so that nobody has to look through all of them
    /holdfast/floors/NAMESPACE                  what the fences of forgotten registers had seen

A claim is called HOLDER-KIND-NUMBER: weight and capacity are in its name, so that a list of names says who may hold.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from ...core.claim import MAX, Claim
from ...core.line import Place, in_order
from ...errors import StoreError
from ..format import other_format, shown
from .refusals import refusal
from .wire import Reply, read_texts

FORMAT = 1
_PLAIN = " !$&'()*+,:;=@~"  # besides letters, digits and _.-~: what ZooKeeper takes as it is


@lru_cache(4096)
def escape(name: str) -> str:
    """Make a name that is one part of a path; a prefix of a name stays a prefix. `-` separates the parts of a claim."""
    escaped = quote(name, safe=_PLAIN)
    # ZooKeeper refuses "." and "..". Every first dot is escaped, else a prefix would be written in another way.
    return "%2E" + escaped[1:] if escaped[:1] == "." else escaped


unescape = unquote


@lru_cache(4096)
def escape_holder(holder: str) -> str:
    """Make a holder the first part of a claim's name. It is asked for several times in the life of a claim."""
    return quote(holder, safe="").replace("-", "%2D")


class Space:
    """The paths of one namespace."""

    def __init__(self, chroot: str, namespace: str) -> None:
        name = escape(namespace)
        self.chroot = chroot
        self.root = f"{chroot}/holdfast"
        self.offset = f"{self.root}/offset"
        self.clock = f"{self.root}/clock"
        self.claims = f"{self.root}/claims/{name}"
        self.broken = f"{self.root}/broken"
        self.values = f"{self.root}/values/{name}"
        self.ends = f"{self.root}/ends/{name}"
        self.floor = f"{self.root}/floors/{name}"

    def queue(self, resource: str) -> str:
        """Return the node whose children are the claims on a resource."""
        return f"{self.claims}/{escape(resource)}"

    def mark(self, session: int, holder: str) -> str:
        """Return the mark that breaks a claim."""
        return f"{self.broken}/{session:x}/{escape_holder(holder)}"

    def value(self, key: str) -> str:
        """Return the node of a register."""
        return f"{self.values}/{escape(key)}"

    def lasting(self, path: str) -> list[str]:
        """Return the nodes above a path that stay for ever, the highest first."""
        parts = path.removeprefix(self.root).split("/")[1:-1]
        below = [f"{self.root}/{parts[0]}"] if parts else []
        chroot = self.chroot.split("/")[1:]
        return [*("/" + "/".join(chroot[: end + 1]) for end in range(len(chroot))), self.root, *below]

    def passing(self, path: str) -> list[str]:
        """Return the nodes above a path that go when they are empty, the highest first."""
        parts = path.removeprefix(self.root).split("/")[1:-1]
        return [f"{self.root}/{'/'.join(parts[: end + 1])}" for end in range(1, len(parts))]


@lru_cache(1024)
def kind(weight: int, capacity: int) -> str:
    """Return how the name of a claim says its weight and capacity."""
    if capacity == MAX and weight in (1, MAX):
        return "x" if weight == MAX else "r"
    return f"s{capacity}" if weight == 1 else f"w{weight}.{capacity}"


@lru_cache(1024)
def place(text: str) -> Place:
    """Undo `kind`.

    Raises: ValueError if this is none.
    """
    if text == "x":
        return Place(MAX, MAX)
    if text == "r":
        return Place(1, MAX)
    if text[:1] == "s":
        found = Place(1, int(text[1:]))
    else:
        weight, _, capacity = text.removeprefix("w").partition(".")
        found = Place(int(weight), int(capacity))
    if kind(*found) != text:  # int() also takes what we would not write: 1_0, or digits of other scripts
        raise ValueError(text)
    return found


class Node(NamedTuple):
    """A claim in the line, as its name says it."""

    name: str
    holder: str  # escaped
    place: Place


class Line(NamedTuple):
    """The claims on a resource, in order."""

    nodes: list[Node]
    places: list[Place]

    def find(self, name: str) -> int:
        """Return where this node stands; -1 if it is not there."""
        return next((at for at, node in enumerate(self.nodes) if node.name == name), -1)

    def of(self, holder: str) -> list[str]:
        """Return the nodes of a holder, the first one first."""
        return [node.name for node in self.nodes if node.holder == holder]


def read_line(names: list[str], where: str) -> Line:
    """Put the names of claims in order.

    Raises: StoreError if one is none.
    """
    found: list[Node] = []
    numbers: list[int] = []
    for name in names:
        try:
            holder, text, number = name.split("-", 2)
            numbers.append(int(number))
            found.append(Node(name, holder, place(text)))
        except ValueError:
            raise StoreError(
                f"the node {where}/{shown(name)} in ZooKeeper is none that holdfast wrote; delete it"
            ) from None
    nodes = [found[at] for at in in_order(numbers)]
    return Line(nodes, [node.place for node in nodes])


def line_of(reply: Reply, queue: str) -> Line:
    """Read the answer to a list of the claims on a resource.

    Raises: StoreError.
    """
    if reply.code:
        raise refusal(reply.code, queue)
    return read_line(read_texts(reply), queue)


class StoredClaim(NamedTuple):
    """What a claim's node holds: for people, and for whoever breaks it."""

    ttl: float
    timeout: float  # of its session
    owner: str
    value: str | None


def stored(claim: Claim, timeout: float) -> bytes:
    """Return what the node of a claim holds."""
    return _stored(claim.ttl, timeout, claim.owner, claim.value)


@lru_cache(256)
def _stored(*facts: Any) -> bytes:  # the same for every acquire of a lock
    return encode([*facts])


def encode(facts: list[Any]) -> bytes:
    """Encode facts."""
    return json.dumps(facts, separators=(",", ":")).encode()


def decode(data: bytes, length: int, path: str) -> list[Any]:
    """Decode facts.

    Raises: StoreError if this is not what we wrote.
    """
    try:
        facts = json.loads(data)
        if isinstance(facts, list) and len(facts) == length:
            return facts
    except (ValueError, RecursionError):
        pass
    raise _foreign(path)


def _foreign(path: str) -> StoreError:
    return StoreError(f"the node {path} in ZooKeeper holds something that holdfast did not write; delete it")


def read_claim(data: bytes, path: str) -> StoredClaim:
    """Read what a claim's node holds.

    Raises: StoreError if this is not what we wrote.
    """
    ttl, timeout, owner, value = facts = decode(data, len(StoredClaim._fields), path)
    numbers = isinstance(ttl, int | float) and isinstance(timeout, int | float)
    if not (numbers and isinstance(owner, str) and isinstance(value, str | None)):
        raise _foreign(path)
    return StoredClaim(*facts)


def read_offset(data: bytes, path: str) -> int:
    """Read the offset of all tokens. A later format must write "fN OFFSET" there before anything else.

    Raises: StoreError if it is not a number, or of another format.
    """
    mark = data.partition(b" ")[0]
    if mark[:1] == b"f" and mark[1:].isdigit():
        raise other_format(f"ZooKeeper, by its node {path},", mark[1:].decode(), FORMAT)
    try:
        offset = int(data)
    except ValueError:
        offset = -1
    if offset < 0:
        raise StoreError(f"the node {path} in ZooKeeper must hold a number of at least 0, not {shown(repr(data))}")
    return offset
