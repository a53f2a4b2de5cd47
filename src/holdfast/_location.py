"""Where to connect: what the caller passes, else $HOLDFAST_URL, else the embedded file of this user."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from .core.urls import StoreURL, parse_url
from .errors import StoreError
from .observe.log import logger
from .stores.registry import describe


class _Pooled(Protocol):
    """redis.Redis, valkey.Valkey, what Sentinel.master_for() returns, and their asyncio twins."""

    @property
    def connection_pool(self) -> Any: ...


class _Clustered(Protocol):
    """redis.RedisCluster, valkey.ValkeyCluster, and their asyncio twins."""

    @property
    def nodes_manager(self) -> Any: ...


class _Ensemble(Protocol):
    """kazoo.client.KazooClient."""

    @property
    def hosts(self) -> Any: ...

    @property
    def chroot(self) -> Any: ...


# What connect() takes instead of a URL.
ClientObject = _Pooled | _Clustered | _Ensemble


def find_address(
    source: object,
    require: str | None,
    password: object = None,
    options: Mapping[str, str | bool] | None = None,
) -> StoreURL:
    """Return where to connect, with this password and these options, if any.

    Raises: ValueError; StoreError as `_find` does.
    """
    url = _find(source, require)
    if options:
        url = url.with_options(options)
    return url if password is None else url.with_password(password)


def _find(source: object, require: str | None) -> StoreURL:
    """Return the address of a URL or of a client object, else $HOLDFAST_URL, else the embedded file of this user.

    Raises: StoreError if something is required and nothing says where: a lock that only this user on this host can see
    is hardly what was meant.
    """
    if isinstance(source, str):
        return parse_url(source)
    if source is not None:
        return describe(source)
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
