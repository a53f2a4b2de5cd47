"""The version of a store's data: what a client says that meets another one than its own.

Every store has a number of its own for the form of its data, and compares it inside every verb: a client that was
connected before an upgrade is refused as well. docs/compatibility.md says what is promised, and what a later format
has to do so that clients of earlier ones cannot grant beside it.
"""

from __future__ import annotations

from ..errors import StoreError

_MOST_SHOWN = 40  # characters: what another wrote there may be of any size


def shown(found: object) -> str:
    """Return what was found as a message can show it: short, and on one line."""
    text = str(found)[: _MOST_SHOWN + 1]
    if not text.isprintable() or not text.strip() or text != text.strip():
        text = repr(text)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


def other_format(where: object, found: object, known: object) -> StoreError:
    """Return what to raise where the data has another format than this version reads."""
    return StoreError(
        f"{where} has format {shown(found)}, and this version of holdfast reads format {known}: another version wrote "
        "it, and nothing was changed. Use that version here, too, or another place for these locks"
    )
