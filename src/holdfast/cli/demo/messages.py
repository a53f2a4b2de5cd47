"""What the director and the workers say to each other: one JSON array a line, through pipes."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import NamedTuple


class Order(NamedTuple):
    """The director to a worker: settle this batch, and freeze in the middle of it or not."""

    batch: int
    freeze: bool = False


class Kind(StrEnum):
    """What a worker tells. All but the first three end its order."""

    READY = "ready"
    TAKEN = "taken"  # holds the lock of the batch
    FREEZING = "freezing"  # its check is done, its write is not; it stops right after this
    SETTLED = "settled"
    SKIPPED = "skipped"  # another had settled the batch before
    REFUSED = "refused"  # the fence refused the write
    LOST = "lost"  # noticed that the lease was lost before it wrote anything
    FAILED = "failed"


class Report(NamedTuple):
    """A worker to the director."""

    kind: Kind
    batch: int = 0
    token: int = 0
    waited: float = 0.0
    renewals: int = 0  # by the keeper, of this lease, so far
    lease_lost: bool = False  # what the lease said when it was asked, after the write
    text: str = ""


def encode(message: Order | Report) -> bytes:
    """Return a message as a line."""
    return json.dumps(message).encode() + b"\n"


def read_order(line: str | bytes) -> Order:
    """Return the order in a line."""
    return Order(*json.loads(line))


def read_report(line: str | bytes) -> Report:
    """Return the report in a line."""
    kind, *facts = json.loads(line)
    return Report(Kind(kind), *facts)
