"""What was seen, and whether it is what should be."""

from __future__ import annotations

from dataclasses import dataclass

from .ledger import Books
from .plan import Plan


@dataclass
class Seen:
    """What the director saw. Tokens are 0 for what did not happen."""

    frozen: str = ""  # worker
    frozen_token: int = 0
    successor: str = ""  # the worker that took the frozen batch over
    successor_token: int = 0
    resumed: bool = False
    frozen_refused: bool = False  # the write of the frozen worker
    lease_knew: bool = False  # its lease said that it was lost
    refused: int = 0  # stale writes, of whomever
    skipped: int = 0  # batches that a second worker found settled
    renewals: int = 0
    longest_wait: float = 0.0


def faults(plan: Plan, seen: Seen, books: Books) -> list[str]:
    """Return what happened otherwise than it should, each as a fact; nothing if all is well."""
    frozen_twice = plan.freezes_at in books.twice
    wrong = {
        f"{books.settled} of {plan.batches} batches are settled": books.settled != plan.batches,
        "no worker was frozen and resumed": not seen.resumed,
        f"the tokens do not rise: {seen.frozen_token}, then {seen.successor_token}": (
            not 0 < seen.frozen_token < seen.successor_token
        ),
        "the lease of the frozen worker did not know that it was lost": not seen.lease_knew,
    }
    if plan.fenced:
        wrong |= {
            f"settled twice: {', '.join(map(str, books.twice))}": bool(books.twice),
            "the stale write was not refused": not seen.frozen_refused,
            f"the books do not balance: {books.missing} cents are missing": books.missing != 0,
        }
    else:
        wrong |= {
            "without the fence the batch should have been settled twice, and was not": not frozen_twice,
            "without the fence money should be missing, and is not": books.missing <= 0,
        }
    return [fact for fact, is_wrong in wrong.items() if is_wrong]
