"""Distributed locks that say exactly what they promise, keep it under faults, and refuse the stale writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import events, observe, stores
from ._process import release_on_sigterm
from ._sync.client import Client, connect
from ._sync.election import Election, Leader, Term
from ._sync.lease import Lease
from ._sync.lock import Lock, Semaphore
from ._sync.multi import Leases, MultiLock, Tree, TreeLease
from ._sync.ratelimit import RateLimit
from ._sync.register import Register
from ._sync.rwlock import RWLock
from .core.cancel import Cancel
from .core.claim import ClaimState, Holder, Record, ResourceState
from .core.fence import Fence
from .core.promises import Capabilities
from .errors import (
    AcquireCancelled,
    AcquireTimeout,
    Deadlock,
    LeaseLost,
    LockError,
    NotHeld,
    RateLimited,
    StaleToken,
    StoreError,
    StoreUnavailable,
    Unsupported,
)

if TYPE_CHECKING:
    from types import ModuleType

    from . import aio as aio

__version__ = "0.1.0"

__all__ = [
    "AcquireCancelled",
    "AcquireTimeout",
    "Cancel",
    "Capabilities",
    "ClaimState",
    "Client",
    "Deadlock",
    "Election",
    "Fence",
    "Holder",
    "Leader",
    "Lease",
    "LeaseLost",
    "Leases",
    "Lock",
    "LockError",
    "MultiLock",
    "NotHeld",
    "RWLock",
    "RateLimit",
    "RateLimited",
    "Record",
    "Register",
    "ResourceState",
    "Semaphore",
    "StaleToken",
    "StoreError",
    "StoreUnavailable",
    "Term",
    "Tree",
    "TreeLease",
    "Unsupported",
    "aio",
    "connect",
    "events",
    "observe",
    "release_on_sigterm",
    "stores",
]


def __getattr__(name: str) -> ModuleType:
    if name == "aio":  # loaded when it is asked for: asyncio costs more than all of holdfast
        from importlib import import_module

        return import_module("holdfast.aio")
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
