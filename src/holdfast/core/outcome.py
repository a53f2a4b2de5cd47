"""What `once` records of a call."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


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


def read_outcome(value: str) -> Outcome:
    """Return what `packed` wrote."""
    return Outcome(*json.loads(value))


def outcome_of(result: object) -> Outcome:
    """Serialise a result."""
    try:
        return Outcome(json.dumps(result, allow_nan=False))
    except Exception as error:  # of any kind: the work is done, and not to record that means to do it again
        return Outcome("", str(error))
