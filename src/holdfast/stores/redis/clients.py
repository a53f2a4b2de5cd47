"""What a client object of redis-py or valkey-py says: its address and its login, as a URL would say them.

Only attributes are read, those that all versions of both libraries have: nothing is imported, no connection is made or
taken. Of its options one of three things becomes; docs/stores/redis.md has the table.

    carried over   where the server is, how to log in, how to trust it
    left alone     how that client behaves: time limits, retries, pools, decoding, caches
    refused        what decides to whom it talks, or whom it trusts, in a way that a URL cannot say
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...core.urls import Login, StoreURL
from ...errors import StoreError

Settings = Mapping[str, Any]  # the arguments that connections of that client are made with

# redis-py's names of what can be said in a URL, and ours.
_TLS = {
    "ssl_ca_certs": "ca",
    "ssl_ca_path": "ca_path",
    "ssl_certfile": "cert",
    "ssl_keyfile": "key",
    "ssl_password": "key_password",
    "ssl_ciphers": "ciphers",
}
_TLS_READ = ("ssl_ca_data", "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version")


def describe(client: Any) -> StoreURL:
    """Return what a client is connected to.

    Raises: ValueError if it has what cannot be carried over, or is no client.
    """
    if (nodes := getattr(client, "nodes_manager", None)) is not None:
        return _cluster(client, nodes)
    if hasattr(client, "master_for"):
        raise ValueError(
            "a Sentinel knows several masters: pass the client of one of them, sentinel.master_for('NAME')"
        )
    if (pool := getattr(client, "connection_pool", None)) is None:
        raise ValueError(
            f"no address can be read from {_name(type(client))}; pass a Redis, RedisCluster or Sentinel.master_for() "
            "client, or a URL"
        )
    if hasattr(pool, "sentinel_manager"):
        return _sentinel(client, pool)
    settings = pool.connection_kwargs
    _check_connections(client, pool.connection_class)
    _check_function(client, settings.get(f"{_library(client)}_connect_func"))
    database = int(settings.get("db") or 0)
    if (path := settings.get("path")) is not None:
        options = {"db": str(database)} if database else {}
        return _login(StoreURL(_library(client), path=str(path), options=options), settings)
    secure = _secure(settings, pool.connection_class)
    return _login(
        StoreURL(
            _library(client) + ("s" if secure else ""),
            hosts=((settings.get("host") or "localhost", int(settings.get("port") or 6379)),),
            path=f"/{database}",
            options=_tls(settings) if secure else {},
        ),
        settings,
    )


def _cluster(client: Any, nodes: Any) -> StoreURL:
    settings = nodes.connection_kwargs
    kind = settings.get("connection_class")
    _check_connections(client, kind)
    _check_function(client, getattr(client, "user_on_connect_func", None))  # it has one of its own besides
    if getattr(nodes, "address_remap", None) is not None:
        raise _refusal("address_remap", "it talks to other addresses than the cluster names")
    hosts = tuple((str(node.host), int(node.port)) for node in list(nodes.startup_nodes.values()))
    options = {"tls": "true", **_tls(settings)} if _secure(settings, kind) else {}
    return _login(StoreURL(f"{_library(client)}+cluster", hosts=hosts, options=options), settings)


def _sentinel(client: Any, pool: Any) -> StoreURL:
    if not pool.is_master:
        raise ValueError("this client reads from replicas, which take no writes: pass sentinel.master_for('NAME')")
    manager, settings = pool.sentinel_manager, pool.connection_kwargs
    _check_connections(client, pool.connection_class)
    _check_function(client, settings.get(f"{_library(client)}_connect_func"))
    if getattr(manager, "_force_master_ip", None):
        raise _refusal("force_master_ip", "it talks to another address than the sentinels name")
    pools = [sentinel.connection_pool for sentinel in manager.sentinels]
    if not pools:
        raise _refusal("list of sentinels", "it is empty")
    first, kind = pools[0].connection_kwargs, pools[0].connection_class
    _check_connections(client, kind)
    if first.get("credential_provider") is not None:
        raise _refusal("credential_provider of the sentinels", "only that of the master can be asked")
    secure, sentinels_secure = _secure(settings, pool.connection_class), _secure(first, kind)
    if secure and sentinels_secure and _tls(settings) != _tls(first):
        raise _refusal("ssl_* of the sentinels", "they differ from those of the master")
    options = _tls(settings) if secure else _tls(first) if sentinels_secure else {}
    if secure or sentinels_secure:
        options |= {"tls": str(secure).lower(), "sentinel_tls": str(sentinels_secure).lower()}
    logins = {"sentinel_username": first.get("username"), "sentinel_password": first.get("password")}
    options |= {name: _text(value) for name, value in logins.items() if value}
    hosts = tuple((str(each.connection_kwargs["host"]), int(each.connection_kwargs["port"])) for each in pools)
    path = f"/{pool.service_name}/{int(settings.get('db') or 0)}"
    return _login(StoreURL(f"{_library(client)}+sentinel", hosts=hosts, path=path, options=options), settings)


def _library(client: Any) -> str:
    modules = (kind.__module__.partition(".")[0] for kind in type(client).__mro__)
    return next(name for name in modules if name in ("redis", "valkey"))


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _refusal(name: str, reason: str) -> ValueError:
    return ValueError(f"the {name} of this client cannot be carried over: {reason}; pass a URL instead")


def _check_connections(client: Any, kind: type | None) -> None:
    """Refuse connections that the library does not make itself: nobody can tell where they lead to."""
    if kind is not None and kind.__module__.partition(".")[0] != _library(client):
        raise _refusal("connection_class", f"{_name(kind)} may connect to anything, in any way")


def _check_function(client: Any, function: object) -> None:
    if function is not None:
        raise _refusal(f"{_library(client)}_connect_func", "it may log in, or set up connections, in a way of its own")


def _secure(settings: Settings, kind: type | None) -> bool:
    return bool(settings.get("ssl")) or any(base.__name__ == "SSLConnection" for base in getattr(kind, "__mro__", ()))


def _tls(settings: Settings) -> dict[str, str]:
    """Return the options of TLS. What is not known may forbid something: it is refused, not dropped."""
    given = {name: value for name, value in settings.items() if name.startswith("ssl_") and value}
    for name in given:
        if name not in _TLS and name not in _TLS_READ:
            raise _refusal(name, "holdfast checks certificates without it")
    options = {ours: _text(given[theirs]) for theirs, ours in _TLS.items() if theirs in given}
    if "ssl_ca_data" in given:
        options["ca_data"] = _certificates(given["ssl_ca_data"])
    required = settings.get("ssl_cert_reqs", "required")
    if required is None or getattr(required, "name", required) in ("none", "CERT_NONE"):
        options["verify"] = "false"
    elif settings.get("ssl_check_hostname", True) is False:
        options["check_hostname"] = "false"
    if (least := given.get("ssl_min_version")) is not None:
        options["min_tls"] = _version(least)
    return options


def _version(least: Any) -> str:
    """Return a version as 1.3. Those before 1.2 are not spoken anyway."""
    from ssl import TLSVersion

    return "1.3" if least == TLSVersion.TLSv1_3 else "1.2"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _certificates(value: Any) -> str:
    if isinstance(value, str):
        return value
    from ssl import DER_cert_to_PEM_cert

    return DER_cert_to_PEM_cert(value)


def _login(url: StoreURL, settings: Settings) -> StoreURL:
    provider = settings.get("credential_provider")
    if provider is not None:
        ask = provider.get_credentials
        if getattr(ask, "__qualname__", "") == "CredentialProvider.get_credentials":
            raise _refusal(
                "credential_provider", "it has get_credentials_async() only, and threads have to ask it, too"
            )
        return url._replace(ask_login=Provided(ask))
    username, password = settings.get("username"), settings.get("password")
    if not (username or password):
        return url
    return url._replace(username=_text(username) if username else None, password=_text(password or ""))


class Provided:
    """The login of a credential_provider. Its repr shows nothing of it."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask

    def __call__(self) -> Login:
        """Ask for user name and password."""
        given = self._ask()
        if isinstance(given, tuple | list) and len(given) in (1, 2) and all(isinstance(part, str) for part in given):
            return (given[0], given[1]) if len(given) == 2 else (None, given[0])
        raise StoreError(
            f"the credential_provider has to return (password,) or (username, password); it returned a "
            f"{type(given).__name__} that is neither"
        )
