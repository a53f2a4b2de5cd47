"""What a URL of a Redis store says."""

from __future__ import annotations

from typing import NamedTuple

from ...core.urls import StoreURL
from ..logins import LoginSource
from .wire import TLS, Access, Endpoint

_TLS = ("ca", "ca_path", "ca_data", "cert", "key", "key_password", "verify", "check_hostname", "min_tls", "ciphers")
_SENTINEL = ("sentinel_username", "sentinel_password", "sentinel_tls")
_MIN_TLS = ("", "1.2", "1.3")


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
    kind = url.scheme.partition("+")[2]
    socket = url.path if _is_socket(url) and not kind else ""
    if "db" in url.options and not socket:
        raise ValueError(_misplaced_database(url, kind))
    known = (*(("tls",) if kind else ()), *(_SENTINEL if kind == "sentinel" else ()), *(("db",) if socket else ()))
    url.allow("trust_config", *_TLS, *known)
    wanted = url.scheme in ("rediss", "valkeys") or _flag(url, "tls", False)
    tls = _tls(url, wanted, _flag(url, "sentinel_tls", False))
    trusted = _flag(url, "trust_config", False)
    source = None if url.ask_login is None else LoginSource(url.ask_login)
    if kind == "sentinel":
        return _sentinel(url, tls, trusted, source)
    if kind == "cluster":
        if not url.hosts or url.path.strip("/"):
            raise ValueError(f"write {url.scheme}://host:port,host:port (a cluster has one database), not {url}")
        return Address(_endpoints(url, 6379), Access(url.username, url.password, 0, tls, source), trusted)
    if len(url.hosts) > 1 or (tls is not None and not url.hosts):
        raise ValueError(f"write {url.scheme}://host:port/database, one host, not {url}")
    database = _database(url, url.options.get("db", "") if socket else url.path.strip("/"))
    endpoint = Endpoint("", 0, socket) if socket else (_endpoints(url, 6379) or (Endpoint("127.0.0.1"),))[0]
    return Address((endpoint,), Access(url.username, url.password, database, tls, source), trusted)


def read_nodes(url: StoreURL) -> tuple[tuple[tuple[Endpoint, Access], ...], bool]:
    """Take the URL of a Redlock apart: its nodes, each with its login, and whether their configuration is trusted.

    Raises: ValueError with the rule.
    """
    if "db" in url.options:
        raise ValueError(_misplaced_database(url))
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
    logins = url.logins or ((url.username, url.password),) * len(nodes)
    source = None if url.ask_login is None else LoginSource(url.ask_login)
    accesses = [Access(username, password, database, tls, source) for username, password in logins]
    return tuple(zip(nodes, accesses, strict=True)), _flag(url, "trust_config", False)


def _sentinel(url: StoreURL, tls: TLS | None, trusted: bool, source: LoginSource | None) -> Address:
    master, _, database = url.path.strip("/").partition("/")
    if not url.hosts or not master:
        raise ValueError(f"write {url.scheme}://sentinel:port,sentinel:port/NAME-OF-THE-MASTER/database, not {url}")
    options, masters_tls = url.options, _flag(url, "tls", False)
    access = Access(url.username, url.password, _database(url, database), tls if masters_tls else None, source)
    sentinels_tls = tls if _flag(url, "sentinel_tls", masters_tls) else None
    sentinel = Access(options.get("sentinel_username"), options.get("sentinel_password"), 0, sentinels_tls)
    return Address(_endpoints(url, 26379), access, trusted, master, sentinel)


def _is_socket(url: StoreURL) -> bool:
    path = url.path.strip("/")
    return not url.hosts and bool(path) and not path.isdecimal()


def _misplaced_database(url: StoreURL, kind: str = "") -> str:
    said = f"{url} has the option 'db'"
    if kind == "cluster":
        return f"{said}, and a cluster has one database: leave it out"
    number = url.options["db"] if url.options["db"].isdecimal() else "2"
    before = "sentinel:port/NAME-OF-THE-MASTER" if kind else "host:port"
    return f"{said}; the database is the end of the path: write {url.scheme}://{before}/{number}"


def _endpoints(url: StoreURL, port: int) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(host, number or port) for host, number in url.hosts)


def _database(url: StoreURL, text: str) -> int:
    if text and not (text.isascii() and text.isdecimal()):
        raise ValueError(f"the database of a Redis URL is a number, like /0; {url} has {text!r}")
    return int(text or 0)


def _tls(url: StoreURL, wanted: bool, sentinels: bool = False) -> TLS | None:
    options = url.options
    named = [name for name in _TLS if name in options]
    if not (wanted or sentinels):
        if named:
            rule = "use ?tls=true" if "+" in url.scheme or url.scheme == "redlock" else f"use {url.scheme}s://"
            raise ValueError(f"{url} has the option {named[0]!r}, which is about TLS: {rule}")
        return None
    if options.get("min_tls", "") not in _MIN_TLS:
        raise ValueError(f"the option 'min_tls' of {url} is 1.2 or 1.3, not {options['min_tls']!r}")
    if "key" in options and "cert" not in options:
        raise ValueError(f"{url} has the option 'key' without 'cert'; name the certificate, too")
    return TLS(
        ca=options.get("ca", ""),
        certificate=options.get("cert", ""),
        key=options.get("key", ""),
        verify=_flag(url, "verify", True),
        check_hostname=_flag(url, "check_hostname", True),
        ca_path=options.get("ca_path", ""),
        ca_data=options.get("ca_data", ""),
        key_password=options.get("key_password", ""),
        min_version=options.get("min_tls", ""),
        ciphers=options.get("ciphers", ""),
    )


def _flag(url: StoreURL, name: str, default: bool) -> bool:
    text = url.options.get(name)
    if text not in (None, "true", "false"):
        raise ValueError(f"the option {name!r} of {url} is true or false, not {text!r}")
    return default if text is None else text == "true"
