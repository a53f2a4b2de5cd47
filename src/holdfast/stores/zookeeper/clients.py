"""What a client object of kazoo says: its servers, its chroot and its login, as a URL would say them.

Only attributes are read: nothing is imported, no connection is made or taken. Of its options one of three things
becomes:

    carried over   hosts, chroot; auth_data of the scheme digest; use_ssl with ca, certfile and keyfile
    left alone     how that client behaves: timeout, retries, handler, default_acl, read_only, the order of hosts
    refused        what decides who it is, or whom it trusts, in a way that a URL cannot say

The host name in a certificate is checked in any case, also where check_hostname is not set: kazoo's default is not to.
kazoo trusts `ca` besides the authorities of the system, holdfast instead of them.
"""

from __future__ import annotations

from typing import Any

from ...core.urls import StoreURL


def describe(client: Any) -> StoreURL:
    """Return what a client connects to.

    Raises: ValueError if it has what cannot be carried over, or is no client.
    """
    hosts, chroot = getattr(client, "hosts", None), getattr(client, "chroot", None)
    if not hosts or chroot is None:
        kind = type(client)
        raise ValueError(
            f"no address can be read from {kind.__module__}.{kind.__qualname__}; pass a KazooClient, or a URL"
        )
    secure = bool(client.use_ssl)
    url = StoreURL(
        "zookeepers" if secure else "zookeeper",
        hosts=tuple((str(host), int(port)) for host, port in hosts),
        path=str(chroot),
        options=_tls(client) if secure else {},
    )
    return _login(url, client)


def _refusal(name: str, reason: str) -> ValueError:
    return ValueError(f"the {name} of this client cannot be carried over: {reason}; pass a URL instead")


def _tls(client: Any) -> dict[str, str]:
    if not client.verify_certs:
        raise _refusal("verify_certs=False", "holdfast always checks whom it talks to")
    options = {"ca": str(client.ca)} if client.ca else {}
    if client.certfile and client.keyfile:  # kazoo does not use one without the other
        if client.keyfile_password:
            raise _refusal("keyfile_password", "holdfast reads keys that have none")
        options |= {"cert": str(client.certfile), "key": str(client.keyfile)}
    return options


def _login(url: StoreURL, client: Any) -> StoreURL:
    if getattr(getattr(client, "_connection", None), "sasl_options", None) is not None:
        raise _refusal("sasl_options", "holdfast logs in by the scheme digest only")
    logins = list(client.auth_data)
    if not logins:
        return url
    if len(logins) > 1:
        raise _refusal("auth_data", f"it has {len(logins)} logins, and a URL has one")
    ((scheme, secret),) = logins
    if scheme != "digest":
        raise _refusal("auth_data", f"holdfast logs in by the scheme digest only, not by {scheme}")
    # Without the colon ZooKeeper would take it for another user.
    name, colon, password = secret.partition(":")
    if not colon:
        raise _refusal("auth_data", "it is not USER:PASSWORD")
    return url._replace(username=name, password=password)
