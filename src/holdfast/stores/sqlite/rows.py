"""Rows of the table of claims, and the part of them that SQL never looks at.

That part is packed into one text: a statement's cost grows with its columns, and these are written at every acquire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.claim import Claim
from ...core.queue import Entry

COLUMNS = "seq, counter, holder, token, expires, kept, claim"


def pack(claim: Claim, address: str) -> str:
    """Write down what a row keeps of a claim besides its columns: all but resource and holder.

    Names have no line breaks; `value` may have some, and is last.
    """
    c = claim
    tail = c.owner if c.value is None else f"{c.owner}\n{c.value}"
    return f"{c.weight}\n{c.capacity}\n{c.ttl}\n{c.fair:d}{c.detached:d}\n{address}\n{tail}"


def unpack(resource: str, holder: str, text: str) -> tuple[Claim, str]:
    """Return the claim and the address that `pack` wrote."""
    weight, capacity, ttl, flags, address, owner, *value = text.split("\n", 6)
    claim = Claim(
        resource, holder, int(weight), int(capacity), float(ttl), owner, value[0] if value else None,
        flags[0] == "1", flags[1] == "1",
    )  # fmt: skip
    return claim, address


def read_entry(resource: str, row: Sequence[Any]) -> Entry:
    """Turn a row of COLUMNS into an entry of the queue."""
    seq, _, holder, token, expires, kept, text = row[:7]
    claim, address = unpack(resource, holder, text)
    return Entry(seq, claim, token, expires, kept, address)
