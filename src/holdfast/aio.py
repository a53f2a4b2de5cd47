"""The asyncio flavour: the same names and the same behaviour, awaited."""

from __future__ import annotations

from ._async.client import Client, connect
from ._async.election import Election, Leader, Term
from ._async.lease import Lease
from ._async.lock import Lock, Semaphore
from ._async.multi import Leases, MultiLock, Tree, TreeLease
from ._async.ratelimit import RateLimit
from ._async.register import Register
from ._async.rwlock import RWLock

__all__ = [
    "Client",
    "Election",
    "Leader",
    "Lease",
    "Leases",
    "Lock",
    "MultiLock",
    "RWLock",
    "RateLimit",
    "Register",
    "Semaphore",
    "Term",
    "Tree",
    "TreeLease",
    "connect",
]
