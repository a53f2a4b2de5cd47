"""What `once` records of a call."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ..errors import StoreError
from .claim import Record
from .register import MOST_BYTES

# What a result is overwritten with to forget it: a register can be written by a fence, and not be emptied by one.
FORGOTTEN = ""


class Outcome(NamedTuple):
    """What is recorded: the result as JSON, or why it has none."""

    text: str
    unserialisable: str | None = None

    def result(self, resource: str) -> Any:
        """Return the decoded result.

        Raises: TypeError if the work was completed and its result could not be written down.
        """
        if self.unserialisable is not None:
            raise TypeError(
                f"{resource!r} was completed, and its result cannot be recorded: {self.unserialisable}; "
                "return what JSON can hold, or None"
            )
        return json.loads(self.text)

    def packed(self) -> str:
        """Write it down."""
        return json.dumps(self)


def read_outcome(record: Record | None, resource: str) -> Outcome | None:
    """Return what `packed` wrote; None if nothing is recorded, or not any more.

    Raises: StoreError if the record is something else.
    """
    if record is None or record.value == FORGOTTEN:
        return None
    try:
        found = json.loads(record.value)
    except ValueError:
        found = None
    match found:
        case [str(), str() | None]:
            return Outcome(*found)
    raise StoreError(
        f"the register {resource!r} has a value that `once` did not write (token {record.token}); "
        "give the register or the work another name",
        resource=resource,
    )


def outcome_of(result: object) -> Outcome:
    """Serialise a result."""
    try:
        outcome = Outcome(json.dumps(result, allow_nan=False))
    except Exception as error:  # of any kind: the work is done, and not to record that means to do it again
        return Outcome("", str(error)[:1000])
    size = len(outcome.packed())  # in ASCII
    return outcome if size <= MOST_BYTES else Outcome("", f"it takes {size} bytes, and at most {MOST_BYTES} are kept")
