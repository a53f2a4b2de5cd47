"""Which store a URL stands for, and all living clients of this process: for fork and for the end."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ._clock import SystemClock
from .core.promises import FENCING_LAW, LAWS, Capabilities
from .core.urls import StoreURL, parse_url
from .errors import StoreError
from .observe.stream import logger

if TYPE_CHECKING:
    from ._async.client import Client as AsyncClient
    from ._async.keeper import Keeper as AsyncKeeper
    from ._sync.client import Client
    from ._sync.keeper import Keeper

ENTRY_POINTS = "holdfast.stores"
_EXIT_SECONDS = 2.0


class Builtin(NamedTuple):
    """A store that comes with holdfast: module and class within a flavour, and the extra that it needs."""

    module: str
    name: str
    extra: str | None = None


STORES: dict[str, Builtin] = {
    "memory": Builtin("stores.memory", "MemoryStore"),
    "sqlite": Builtin("stores.sqlite", "SQLiteStore"),
    "redis": Builtin("stores.redis", "RedisStore", "redis"),
    "rediss": Builtin("stores.redis", "RedisStore", "redis"),
    "redis+sentinel": Builtin("stores.redis", "SentinelStore", "redis"),
    "redis+cluster": Builtin("stores.redis", "ClusterStore", "redis"),
    "redlock": Builtin("stores.redlock", "RedlockStore", "redis"),
    "etcd": Builtin("stores.etcd", "EtcdStore", "etcd"),
    "etcds": Builtin("stores.etcd", "EtcdStore", "etcd"),
}


def find_store(scheme: str, flavour: str) -> Any:
    """Return the class of the store that keeps this scheme, in the flavour "sync" or "async".

    Third parties add a scheme by an entry point of the group `holdfast.stores` that names a module with the classes
    `Store` (blocking) and `AsyncStore`.

    Raises: ValueError for an unknown scheme; StoreError that says what to install.
    """
    builtin = STORES.get(scheme)
    if builtin is not None:
        try:
            return getattr(import_module(f"holdfast._{flavour}.{builtin.module}"), builtin.name)
        except ModuleNotFoundError as error:
            if builtin.extra is None:
                raise StoreError(f"{scheme}:// needs the Python module {error.name!r}, which is missing") from error
            raise StoreError(
                f"{scheme}:// needs {error.name!r}, which is not installed: pip install 'holdfast[{builtin.extra}]'"
            ) from error
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS, name=scheme):
        try:
            module = entry.load()
        except ModuleNotFoundError as error:
            package = entry.dist.name if entry.dist is not None else entry.value
            raise StoreError(
                f"the store {scheme}:// of {package} needs {error.name!r}, which is not installed: pip install it"
            ) from error
        return module.Store if flavour == "sync" else module.AsyncStore
    known = ", ".join(f"{name}://" for name in STORES)
    raise ValueError(
        f"no store keeps the scheme {scheme}://; holdfast has {known}. A store of a third party registers its scheme "
        f"as an entry point of the group {ENTRY_POINTS!r}: is its package installed?"
    )


def find_url(url: str | None, require: str | None) -> StoreURL:
    """Return where to connect: the URL, else $HOLDFAST_URL, else the embedded file of this user.

    Raises: StoreError if something is required and nothing says where: a lock that only this user on this host can see
    is hardly what was meant.
    """
    if url is not None:
        return parse_url(url)
    if env := os.environ.get("HOLDFAST_URL"):
        return parse_url(env)
    path = _state_file()
    if require is not None:
        raise StoreError(
            f"require={require!r} needs a store that was chosen: pass a URL or set HOLDFAST_URL; without one the locks "
            f"are those of this user on this host, in {path}"
        )
    logger.warning(
        "no URL and no HOLDFAST_URL: using %s, which excludes processes of this user on this host only", path
    )
    return StoreURL("sqlite", path=path, embedded=True)


def _state_file() -> str:
    if sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Application Support")
    else:
        base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "holdfast", "locks.db")


def check_require(require: object) -> str | None:
    """Return the requirement if it is one that we know."""
    if require not in (None, "efficiency", "correctness"):
        raise ValueError(f"require must be 'efficiency', 'correctness' or None, not {require!r}")
    return None if require is None else str(require)


def check_promises(capabilities: Capabilities, require: str | None) -> None:
    """Refuse a store that cannot keep what is required.

    Raises: StoreError naming the faults that break the fencing law.
    """
    if require == "correctness" and not capabilities.keeps(FENCING_LAW):
        faults = ", ".join(fault.value for fault in capabilities.breaking(FENCING_LAW))
        found = "".join(f"; {note}" for note in capabilities.notes)
        raise StoreError(
            f"require='correctness' needs a store that keeps law {FENCING_LAW} ({LAWS[FENCING_LAW]}); "
            f"{capabilities.store} breaks it on: {faults}{found}"
        )


_clients: weakref.WeakSet[Client | AsyncClient] = weakref.WeakSet()


def remember(client: Client | AsyncClient) -> None:
    """Note a client, so that it survives a fork and, if it is a blocking one, is closed at exit."""
    _clients.add(client)


_keepers: weakref.WeakSet[Keeper | AsyncKeeper] = weakref.WeakSet()


def remember_keeper(keeper: Keeper | AsyncKeeper) -> None:
    """Note a keeper: leases may outlive their client, and a fork must reach them, too."""
    _keepers.add(keeper)


def _after_fork() -> None:
    for keeper in list(_keepers):
        keeper.inherited = True
    for client in list(_clients):
        client._begin()


def _at_exit() -> None:
    for client in list(_clients):
        if type(client).__module__.startswith("holdfast._sync.") and not client.closed:
            client._stop()  # daemon threads that wait must not take what is released now
    # Keepers, not clients: a lease may be held whose client nobody refers to any more.
    keepers: list[Any] = [
        keeper
        for keeper in list(_keepers)
        if type(keeper).__module__.startswith("holdfast._sync.") and not keeper.closed and not keeper.inherited
    ]
    clock = SystemClock()
    until = clock.now() + _EXIT_SECONDS
    for left in [keeper.leave(_EXIT_SECONDS) for keeper in keepers]:  # all at once: one that hangs costs no other
        if left is not None:
            left.wait(clock, until)
    for keeper in keepers:
        try:
            keeper.store.close()
        except Exception:
            logger.exception("the store of %r could not be closed", keeper.namespace)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
