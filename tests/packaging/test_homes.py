"""The public homes: what each holds, what each class shows of itself, and that none makes the import heavier."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import holdfast
from holdfast import events, stores
from holdfast._async.once import Once as AsyncOnce
from holdfast._sync.once import Once
from holdfast.core import events as core_events
from tests.packaging.test_layers import modules_loaded_by

# What users see of an object, methods and attributes. Adding one is a decision: it has to be kept. What the engine, the
# keeper or a store needs of it begins with an underscore.
OPTIONS = "detect_deadlocks fair max_hold min_hold on_lost owner reentrant renew resource timeout ttl"
LOCK = f"acquire capacity detached kind locked {OPTIONS} try_acquire value weight"
PUBLIC = {
    "Client": "break_lock capabilities close closed drain election holders inspect lock lock_all namespace once "
    "rate_limit ready register rwlock semaphore time tree url",
    "Lock": LOCK,
    "Semaphore": f"{LOCK} permits",
    "RWLock": "read resource write",
    "MultiLock": "acquire resources timeout try_acquire",
    "Tree": "acquire resources timeout try_acquire",
    "Election": "lead leader observe resource terms value",
    "Once": "forget",
    "RateLimit": "available hit limit per resource try_hit",
    "Register": "name read write",
    "Lease": "check extend fence lost owner release remaining renew resource state token ttl wait_lost",
    "Leases": "check get items keys lost release remaining values",
    "TreeLease": "check fence fences get items keys leaf lost release remaining resource token values",
    "Term": "check fence lost remaining resign resource token wait_lost",
    "Cancel": "cancel cancelled",
}


def made(client: Any) -> dict[str, Any]:
    """Make one of everything that needs no I/O."""
    objects = [
        client,
        client.lock("x"),
        client.semaphore("x", permits=2),
        client.rwlock("x"),
        client.lock_all("x"),
        client.tree("x"),
        client.election("x"),
        client.once("x"),
        client.rate_limit("x", 1, per=1),
        client.register("x"),
        holdfast.Cancel(),
    ]
    return {type(made).__name__: made for made in objects}


@pytest.mark.parametrize("flavour", [holdfast, holdfast.aio], ids=["sync", "async"])
@pytest.mark.parametrize("name", PUBLIC)
def test_what_users_see_of_an_object(name: str, flavour: Any) -> None:
    once = Once if flavour is holdfast else AsyncOnce
    kind = once if name == "Once" else getattr(flavour, name, None) or getattr(holdfast, name)
    shown = made(flavour.connect("memory://")).get(name, kind)
    assert [found for found in dir(shown) if not found.startswith("_")] == sorted(PUBLIC[name].split())


def test_every_class_that_users_get_is_pinned() -> None:
    views = (tuple, BaseException)
    kinds = {
        name for name in holdfast.__all__ if inspect.isclass(kind := getattr(holdfast, name)) and kind not in views
    }
    assert {name for name in kinds if not issubclass(getattr(holdfast, name), views)} | {"Once"} == set(PUBLIC)


def test_events_has_every_event() -> None:
    of_core = {
        name for name, kind in vars(core_events).items() if inspect.isclass(kind) and issubclass(kind, events.Event)
    }
    assert set(events.__all__) == of_core | {"Observer"}
    assert events.__all__ == sorted(events.__all__)
    assert all(getattr(events, name) is getattr(core_events, name) for name in events.__all__)


def test_stores_has_what_a_store_is_made_of() -> None:
    assert set(stores.__all__) <= set(dir(stores))
    assert inspect.iscoroutinefunction(stores.AsyncStore.claim)
    assert not inspect.iscoroutinefunction(stores.Store.claim)
    for name in stores.__all__:
        assert getattr(stores, name) is not None
    assert stores.Capabilities is holdfast.Capabilities
    with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
        stores.nosuch  # noqa: B018


def test_a_store_of_ones_own_is_typed_by_them() -> None:
    from holdfast.stores.memory._async.store import MemoryStore as AsyncMemoryStore
    from holdfast.stores.memory._sync.store import MemoryStore

    blocking: stores.StoreFactory = MemoryStore  # mypy compares
    asynchronous: stores.AsyncStoreFactory = AsyncMemoryStore
    for factory, interface in ((blocking, stores.Store), (asynchronous, stores.AsyncStore)):
        verbs = {name for name in vars(interface) if not name.startswith("_")}
        assert verbs <= set(dir(factory))


def test_names_of_stores_load_neither_asyncio_nor_a_store() -> None:
    names = "import holdfast.stores as stores; [getattr(stores, name) for name in stores.__all__]"
    assert modules_loaded_by(names) & {"asyncio", "sqlite3", "socket", "concurrent", "redis", "grpc"} == set()


def test_the_plain_import_does_not_load_the_interface_of_the_other_flavour() -> None:
    program = "import holdfast, holdfast.events, holdfast.stores; assert 'holdfast._async' not in sys.modules"
    assert "asyncio" not in modules_loaded_by(program)
