"""Where claims live: one package for each store. From here, what a store of your own is made of.

A package of yours registers a module for its scheme, in its `pyproject.toml`:

    [project.entry-points."holdfast.stores"]
    mystore = "mystore.holdfast_store"

That module has two classes: `Store`, which keeps the interface `holdfast.stores.Store`, and `AsyncStore`, which keeps
`holdfast.stores.AsyncStore`. Then `holdfast.connect("mystore://host")` finds them. `holdfast.testing.contract` tests
them against the laws.

Nothing here is loaded before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._async.store import FullStore as AsyncFullStore
    from .._async.store import Store as AsyncStore
    from .._async.store import StoreFactory as AsyncStoreFactory
    from .._clock import Clock
    from .._sync.store import FullStore, Store, StoreFactory
    from ..core.claim import (
        MAX,
        Answer,
        Blocker,
        Claim,
        ClaimState,
        Evicted,
        Granted,
        Lost,
        Record,
        Renewal,
        Renewed,
        ResourceState,
        Unknown,
        Waiting,
    )
    from ..core.fence import Fence, Seen, admits, enter
    from ..core.promises import KEEPS_ALL, LAWS, Capabilities, Fault, Scope
    from ..core.urls import Login, StoreURL
    from ..keeper.side import Blocking, Side

__all__ = [
    "KEEPS_ALL",
    "LAWS",
    "MAX",
    "Answer",
    "AsyncFullStore",
    "AsyncStore",
    "AsyncStoreFactory",
    "Blocker",
    "Blocking",
    "Capabilities",
    "Claim",
    "ClaimState",
    "Clock",
    "Evicted",
    "Fault",
    "Fence",
    "FullStore",
    "Granted",
    "Login",
    "Lost",
    "Record",
    "Renewal",
    "Renewed",
    "ResourceState",
    "Scope",
    "Seen",
    "Side",
    "Store",
    "StoreFactory",
    "StoreURL",
    "Unknown",
    "Waiting",
    "admits",
    "enter",
]

# Where each name is, unless that is `core.claim`. What is `Async…` here is called `…` there.
_HOMES: dict[str, str] = {
    **dict.fromkeys(("AsyncFullStore", "AsyncStore", "AsyncStoreFactory"), "_async.store"),
    **dict.fromkeys(("FullStore", "Store", "StoreFactory"), "_sync.store"),
    "Clock": "_clock",
    **dict.fromkeys(("Fence", "Seen", "admits", "enter"), "core.fence"),
    **dict.fromkeys(("KEEPS_ALL", "LAWS", "Capabilities", "Fault", "Scope"), "core.promises"),
    **dict.fromkeys(("Login", "StoreURL"), "core.urls"),
    **dict.fromkeys(("Blocking", "Side"), "keeper.side"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'holdfast.stores' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"holdfast.{_HOMES.get(name, 'core.claim')}")
    return getattr(module, name.removeprefix("Async"))


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
