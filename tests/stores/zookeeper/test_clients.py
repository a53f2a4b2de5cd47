"""Client objects of kazoo: what is read of them, and what is refused; and locks on a real server through one."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl

import holdfast
import holdfast.aio
from holdfast.core.urls import StoreURL
from holdfast.stores.registry import describe
from holdfast.stores.zookeeper.link import Link
from holdfast.testing.servers.certificates import AUTHORITY
from holdfast.testing.servers.zookeeper import ZooKeeperServer
from tests.servers import needed
from tests.shell.script import run

SECRET = "hunter2"
flavours = pytest.mark.parametrize("flavour", [holdfast, holdfast.aio], ids=lambda module: module.__name__)


def same(url: StoreURL, expected: str, **options: str) -> bool:
    """Return whether the address is shown like this, has these options, and is one that the store takes."""
    Link(url)
    return (str(url), url.options) == (expected, options)


# -- what is read


@pytest.mark.parametrize(
    ("hosts", "shown"),
    [
        ("h", "zookeeper://h:2181"),
        ("h:7", "zookeeper://h:7"),
        ("a:1,b:2,c:3", "zookeeper://a:1,b:2,c:3"),
        ("[::1]:5,h", "zookeeper://[::1]:5,h:2181"),
        ("h:7/app", "zookeeper://h:7/app"),
        ("a,b/app/locks/", "zookeeper://a:2181,b:2181/app/locks"),
        ("h/", "zookeeper://h:2181"),
        (["a:1", "b:2", "/app"], "zookeeper://a:1,b:2/app"),
    ],
    ids=str,
)
def test_servers_and_chroot(hosts: Any, shown: str):
    assert same(describe(KazooClient(hosts)), shown)


def test_the_servers_that_it_was_given_later():
    client = KazooClient("a:1/app")
    client.set_hosts("b:2,c:3/app")
    assert same(describe(client), "zookeeper://b:2,c:3/app")


@pytest.mark.parametrize("password", [SECRET, "", f"{SECRET}:with:colons", "pä/ss@w#rd"])
def test_a_login(password: str):
    url = describe(KazooClient("h", auth_data=[("digest", f"u:{password}")]))
    assert (url.username, url.password) == ("u", password)
    assert Link(url).login == f"u:{password}".encode()
    assert same(url, "zookeeper://u:***@h:2181")
    assert SECRET not in str(url) + repr(url)


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        ({}, {}),
        ({"ca": "/ca"}, {"ca": "/ca"}),
        ({"certfile": "/cert", "keyfile": "/key"}, {"cert": "/cert", "key": "/key"}),
        ({"certfile": "/cert"}, {}),  # kazoo does not use it without a key
        ({"check_hostname": True}, {}),  # it is checked in any case
        ({"check_hostname": False}, {}),
        ({"keyfile_password": SECRET}, {}),  # there is no key
    ],
    ids=str,
)
def test_tls(given: dict[str, Any], carried: dict[str, str]):
    assert same(describe(KazooClient("h/app", use_ssl=True, **given)), "zookeepers://h:2181/app", **carried)


def test_certificates_are_nothing_without_tls():
    assert same(describe(KazooClient("h", ca="/ca", verify_certs=False)), "zookeeper://h:2181")


def test_how_it_behaves_is_left_alone():
    acl = [make_digest_acl("u", SECRET, all=True)]
    client = KazooClient(
        "h", timeout=60, read_only=True, default_acl=acl, randomize_hosts=False, client_id=(5, b"x" * 16)
    )
    assert same(describe(client), "zookeeper://h:2181")


# -- what is refused


def refused() -> dict[str, Any]:
    """What cannot be carried over, by what the message says."""
    secure: dict[str, Any] = {"hosts": "h", "use_ssl": True}
    with_key = {"certfile": "/cert", "keyfile": "/key", "keyfile_password": SECRET}
    one, other = ("digest", f"u:{SECRET}"), ("digest", f"v:{SECRET}")
    sasl = {"mechanism": "DIGEST-MD5", "username": "u", "password": SECRET}
    return {
        "the verify_certs=False of this client cannot be carried over: holdfast always checks": KazooClient(
            **secure, verify_certs=False
        ),
        "the keyfile_password of this client .*keys that have none; pass a URL": KazooClient(**secure, **with_key),
        "the sasl_options of this client .*scheme digest only": KazooClient(sasl_options=sasl),
        "the auth_data of this client .*2 logins, and a URL has one": KazooClient(auth_data=[one, other]),
        "the auth_data of this client .*not by ip": KazooClient(auth_data=[("ip", SECRET)]),
        "the auth_data of this client .*not USER:PASSWORD": KazooClient(auth_data=[("digest", SECRET)]),
        r"no address can be read from kazoo\.recipe\.lock\.Lock; pass a KazooClient": KazooClient().Lock("/l"),
    }


@flavours
def test_what_cannot_be_carried_over_is_refused_with_the_reason(flavour: ModuleType):
    for rule, client in refused().items():
        with pytest.raises(ValueError, match=rule) as caught:
            flavour.connect(client)
        assert SECRET not in str(caught.value)


# -- what is touched


@flavours
def test_nothing_is_opened_and_the_object_is_not_kept(flavour: ModuleType, monkeypatch: pytest.MonkeyPatch):
    def touched(*args: object, **kwargs: object) -> None:
        raise AssertionError("a socket is made")

    client = KazooClient("h", auth_data=[("digest", f"u:{SECRET}")])
    with monkeypatch.context() as patched:
        patched.setattr("socket.socket.__init__", touched)
        locks = flavour.connect(client)
    assert SECRET not in repr(locks) + repr(locks.url)
    weak = weakref.ref(client)
    del client
    gc.collect()
    assert weak() is None


@flavours
def test_a_subclass_of_the_user(flavour: ModuleType):
    class Mine(KazooClient):  # type: ignore[misc]  # kazoo has no types
        pass

    assert str(flavour.connect(Mine("h:7/app")).url) == "zookeeper://h:7/app"


@flavours
def test_a_password_goes_before_that_of_the_object(flavour: ModuleType):
    locks = flavour.connect(KazooClient("h", auth_data=[("digest", "u:old")]), password="new")
    assert (locks.url.username, locks.url.password) == ("u", "new")


def test_nothing_is_imported_that_the_user_has_not():
    """The object is known by the name of its module."""
    out, _ = run(
        """
        import sys
        import holdfast

        class KazooClient:
            hosts, chroot, auth_data, use_ssl = [("h", 7)], "/app", set(), False

        KazooClient.__module__ = "kazoo.client"
        print(holdfast.connect(KazooClient()).url, "kazoo" in sys.modules)
        """
    )
    assert out == "zookeeper://h:7/app False\n"


# -- on a real server


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with needed(ZooKeeperServer) as server:
        yield server


def nodes_below(client: KazooClient, path: str) -> list[str]:
    """Return all paths below one."""
    return [
        found
        for name in client.get_children(path)
        for found in (f"{path}/{name}", *nodes_below(client, f"{path}/{name}"))
    ]


@pytest.mark.server
def test_a_client_object_really_locks(server: ZooKeeperServer):
    """With its login and below its chroot, which nobody has made before; its own connection goes on as it was."""
    login = ("digest", f"app:{SECRET}")
    client = KazooClient(f"127.0.0.1:{server.port}/team/app", auth_data=[login])
    with pytest.warns(UserWarning, match="No chroot path exists"):
        client.start(10)
    stranger = KazooClient(f"127.0.0.1:{server.port}")
    stranger.start(10)
    try:
        session, sent = client.client_id, client._connection._xid
        with (
            holdfast.connect(client) as locks,
            holdfast.connect(client) as others,
            locks.lock("order:1", ttl=5, timeout=10) as lease,
        ):
            assert others.lock("order:1", ttl=5).try_acquire() is None
            assert (client.client_id, client._connection._xid) == (session, sent), "its connection was used"
            assert client.connected
            # What stands there can be seen with its login, and not without.
            made = nodes_below(client, "/holdfast")
            (claim,) = [path for path in made if path.startswith("/holdfast/claims/default/order:1/")]
            assert client.exists(claim).czxid == lease.token
            assert client.exists(claim).ephemeralOwner != session[0]
            with pytest.raises(NoAuthError):
                stranger.get(f"/team/app{claim}")
            with pytest.raises(NoAuthError):
                stranger.delete(f"/team/app{claim}")
        with holdfast.connect(client) as locks:
            again = locks.lock("order:1", ttl=5, timeout=10).acquire()
            assert again.token > lease.token
            again.release()
        assert client.connected
    finally:
        for each in (client, stranger):
            each.stop()
            each.close()


@pytest.mark.server
def test_a_client_object_locks_with_asyncio_and_was_never_started(server: ZooKeeperServer):
    client = KazooClient(f"127.0.0.1:{server.port}", auth_data=[("digest", f"aio:{SECRET}")])

    async def main() -> None:
        async with holdfast.aio.connect(client, namespace="aio") as locks:
            async with locks.lock("r", ttl=5, timeout=10) as lease:
                assert lease.token > 0
                assert await locks.lock("r", ttl=5).try_acquire() is None

    asyncio.run(main())
    assert not client.connected


@pytest.mark.server
def test_a_client_object_locks_over_tls() -> None:
    with needed(lambda: ZooKeeperServer(tls=True)) as server:
        ca = str(server.folder / AUTHORITY)
        client = KazooClient(f"127.0.0.1:{server.port}", use_ssl=True, ca=ca)
        with holdfast.connect(client) as locks, locks.lock("r", ttl=5, timeout=10) as lease:
            assert lease.token > 0
