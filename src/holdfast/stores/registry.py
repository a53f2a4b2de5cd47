"""Which store a URL stands for, or a client object of another library."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from ..core.urls import StoreURL
from ..errors import StoreError

ENTRY_POINTS = "holdfast.stores"


class Builtin(NamedTuple):
    """A store that comes with holdfast: its package and class, the extra that it needs, and whether one logs in."""

    package: str
    name: str
    extra: str | None = None
    login: bool = True


STORES: dict[str, Builtin] = {
    "memory": Builtin("memory", "MemoryStore", login=False),
    "sqlite": Builtin("sqlite", "SQLiteStore", login=False),
    "redis": Builtin("redis", "RedisStore", "redis"),
    "rediss": Builtin("redis", "RedisStore", "redis"),
    "redis+sentinel": Builtin("redis", "SentinelStore", "redis"),
    "redis+cluster": Builtin("redis", "ClusterStore", "redis"),
    "valkey": Builtin("redis", "RedisStore", "redis"),
    "valkeys": Builtin("redis", "RedisStore", "redis"),
    "valkey+sentinel": Builtin("redis", "SentinelStore", "redis"),
    "valkey+cluster": Builtin("redis", "ClusterStore", "redis"),
    "redlock": Builtin("redlock", "RedlockStore", "redis"),
    "etcd": Builtin("etcd", "EtcdStore", "etcd"),
    "etcds": Builtin("etcd", "EtcdStore", "etcd"),
    "zookeeper": Builtin("zookeeper", "ZooKeeperStore", "zookeeper"),
    "zookeepers": Builtin("zookeeper", "ZooKeeperStore", "zookeeper"),
}

# Libraries whose client objects connect() takes, by the name of their top-level module: the store whose module
# `clients` describes them. None of them is imported: who has such an object has done that.
LIBRARIES: dict[str, str] = {"redis": "redis", "valkey": "redis", "kazoo": "zookeeper"}


def describe(client: object) -> StoreURL:
    """Return the address and the login of a client object. Its connections are not touched, and it is not kept.

    Raises: ValueError if nothing is known of such objects, or if one has what cannot be carried over.
    """
    for kind in type(client).__mro__:
        package = LIBRARIES.get(kind.__module__.partition(".")[0])
        if package is not None:
            url: StoreURL = import_module(f"holdfast.stores.{package}.clients").describe(client)
            return url
    kind = type(client)
    raise ValueError(
        "connect() takes a store URL like 'redis://host:6379', or a client object of the libraries "
        f"{', '.join(LIBRARIES)}; {kind.__module__}.{kind.__qualname__} is neither"
    )


def find_store(scheme: str, flavour: str) -> Any:
    """Return the class of the store of this scheme, in the flavour "sync" or "async".

    Third parties add a scheme by an entry point of the group `holdfast.stores` that names a module with the classes
    `Store` (blocking) and `AsyncStore`.

    Raises: ValueError for an unknown scheme; StoreError that says what to install.
    """
    builtin = STORES.get(scheme)
    if builtin is not None:
        try:
            return getattr(import_module(f"holdfast.stores.{builtin.package}._{flavour}.store"), builtin.name)
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
        f"no store is known for the scheme {scheme}://; holdfast has {known}. A store of a third party registers its "
        f"scheme as an entry point of the group {ENTRY_POINTS!r}: is its package installed?"
    )


def check_login(url: StoreURL, store: Any) -> None:
    """Refuse a password that the store would not use.

    Raises: ValueError.
    """
    builtin = STORES.get(url.scheme)
    if builtin is not None and not builtin.login and (url.password is not None or url.ask_login is not None):
        raise ValueError(f"{url.scheme}: has no login, so it takes no password")
    # Said by the store itself: one that does not know of `ask_login` would log in without a password.
    if url.ask_login is not None and not getattr(store, "asks_login", False):
        raise ValueError(f"{url.scheme}:// takes a password that is a str, not a callable")
