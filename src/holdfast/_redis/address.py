"""What a URL of a Redis store says."""

from __future__ import annotations

from typing import NamedTuple

from ..core.urls import StoreURL
from .wire import TLS, Access, Endpoint

_TLS = ("ca", "cert", "key", "verify")


class Address(NamedTuple):
    """Where the servers are, and how to log in there. `master` is the name that sentinels know it by."""

    endpoints: tuple[Endpoint, ...]
    access: Access
    trusted: bool
    master: str = ""
    sentinel_access: Access = Access()


def read_address(url: StoreURL) -> Address:
    """Take the URL of one server, of sentinels or of a cluster apart.

    Raises: ValueError with the rule.
    """
    kind = url.scheme.removeprefix("redis").removeprefix("s").removeprefix("+")
    url.allow(
        "trust_config", *_TLS, *(("tls",) if kind else ()),
        *(("sentinel_username", "sentinel_password") if kind == "sentinel" else ()),
    )  # fmt: skip
    tls = _tls(url, url.scheme == "rediss" or _flag(url, "tls", False))
    trusted = _flag(url, "trust_config", False)
    if kind == "sentinel":
        return _sentinel(url, tls, trusted)
    if kind == "cluster":
        if not url.hosts or url.path.strip("/"):
            raise ValueError(f"write redis+cluster://host:port,host:port (a cluster has one database), not {url}")
        return Address(_endpoints(url, 6379), Access(url.username, url.password, 0, tls), trusted)
    socket = url.path if not url.hosts and url.path.strip("/") and not url.path.strip("/").isdecimal() else ""
    if len(url.hosts) > 1 or (tls is not None and not url.hosts):
        raise ValueError(f"write {url.scheme}://host:port/database, one host, not {url}")
    database = 0 if socket else _database(url, url.path.strip("/"))
    endpoint = Endpoint("", 0, socket) if socket else (_endpoints(url, 6379) or (Endpoint("127.0.0.1"),))[0]
    return Address((endpoint,), Access(url.username, url.password, database, tls), trusted)


def read_nodes(url: StoreURL) -> tuple[tuple[tuple[Endpoint, Access], ...], bool]:
    """Take the URL of a Redlock apart: its nodes, each with its login, and whether their configuration is trusted.

    Raises: ValueError with the rule.
    """
    url.allow("trust_config", "tls", *_TLS)
    tls = _tls(url, _flag(url, "tls", False))
    nodes = _endpoints(url, 6379)
    if len(nodes) < 3 or len(nodes) % 2 == 0:
        raise ValueError(
            f"{url} names {len(nodes)} nodes; a Redlock needs an odd number, 3 or more: a majority has to outvote the "
            "rest, and one more that makes the number even tolerates no more failures"
        )
    if len(set(nodes)) < len(nodes):
        twice = next(node for node in nodes if nodes.count(node) > 1)
        raise ValueError(f"{url} names {twice} twice; its vote would count twice, so a minority could grant")
    database = _database(url, url.path.strip("/"))
    logins = url.logins or ((None, None),) * len(nodes)
    accesses = [Access(username, password, database, tls) for username, password in logins]
    return tuple(zip(nodes, accesses, strict=True)), _flag(url, "trust_config", False)


def _sentinel(url: StoreURL, tls: TLS | None, trusted: bool) -> Address:
    master, _, database = url.path.strip("/").partition("/")
    if not url.hosts or not master:
        raise ValueError(f"write redis+sentinel://sentinel:port,sentinel:port/NAME-OF-THE-MASTER/database, not {url}")
    access = Access(url.username, url.password, _database(url, database), tls)
    options = url.options
    sentinel = Access(options.get("sentinel_username"), options.get("sentinel_password"), 0, tls)
    return Address(_endpoints(url, 26379), access, trusted, master, sentinel)


def _endpoints(url: StoreURL, port: int) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(host, number or port) for host, number in url.hosts)


def _database(url: StoreURL, text: str) -> int:
    if text and not (text.isascii() and text.isdecimal()):
        raise ValueError(f"the database of a Redis URL is a number, like /0; {url} has {text!r}")
    return int(text or 0)


def _tls(url: StoreURL, wanted: bool) -> TLS | None:
    named = [name for name in _TLS if name in url.options]
    if not wanted:
        if named:
            raise ValueError(f"{url} has the option {named[0]!r}, which is about TLS: use rediss:// or ?tls=true")
        return None
    ca, certificate, key = (url.options.get(name, "") for name in _TLS[:3])
    return TLS(ca, certificate, key, _flag(url, "verify", True))


def _flag(url: StoreURL, name: str, default: bool) -> bool:
    text = url.options.get(name)
    if text not in (None, "true", "false"):
        raise ValueError(f"the option {name!r} of {url} is true or false, not {text!r}")
    return default if text is None else text == "true"
