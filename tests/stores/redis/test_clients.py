"""Client objects of redis-py and valkey-py: what is read of them, and what is refused. No server is needed."""

from __future__ import annotations

import gc
import importlib
import ssl
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio

import holdfast
import holdfast.aio
from holdfast.core.urls import StoreURL
from holdfast.errors import StoreError
from holdfast.stores.redis.address import read_address
from holdfast.stores.registry import describe
from tests.shell.script import run

SECRET = "hunter2"
flavours = pytest.mark.parametrize("flavour", [holdfast, holdfast.aio], ids=lambda module: module.__name__)


class Library:
    """The names of one library, in one flavour."""

    def __init__(self, name: str, flavour: str) -> None:
        self.scheme, word = name, name.capitalize()
        module = importlib.import_module(f"{name}{flavour}")
        self.client: Callable[..., Any] = getattr(module, word)
        self.from_url = getattr(module, word).from_url
        self.sentinel: Callable[..., Any] = importlib.import_module(f"{name}{flavour}.sentinel").Sentinel
        self.connection: type = module.Connection
        self.pool: Callable[..., Any] = module.ConnectionPool
        self.provider: type = importlib.import_module(f"{name}.credentials").CredentialProvider
        self.fixed: Callable[..., Any] = importlib.import_module(
            f"{name}.credentials"
        ).UsernamePasswordCredentialProvider


@pytest.fixture(params=[("redis", ""), ("redis", ".asyncio"), ("valkey", ""), ("valkey", ".asyncio")], ids="".join)
def library(request: pytest.FixtureRequest) -> Library:
    return Library(*request.param)


def same(url: StoreURL, expected: str, **options: str) -> bool:
    """Return whether the address is shown like this, and has these options."""
    return (str(url), url.options) == (expected, options)


def test_one_server(library: Library):
    name = library.scheme
    assert same(describe(library.client()), f"{name}://localhost:6379/0")
    assert same(describe(library.client(host="h", port=7, db=3)), f"{name}://h:7/3")
    assert same(describe(library.client(host="::1")), f"{name}://[::1]:6379/0")
    assert same(describe(library.from_url(f"{name}://h:7/3")), f"{name}://h:7/3")
    assert same(describe(library.client(connection_pool=library.pool(host="h"))), f"{name}://h:6379/0")


def test_a_login(library: Library):
    for client in (
        library.client(host="h", username="u", password=SECRET),
        library.from_url(f"{library.scheme}://u:{SECRET}@h"),
    ):
        url = describe(client)
        assert (url.username, url.password) == ("u", SECRET)
        assert SECRET not in str(url) + repr(url)
    assert describe(library.client(password=SECRET.encode())).password == SECRET
    url = describe(library.client(username="u"))
    assert read_address(url).access.greeting == [("AUTH", "u", "")]  # as the library does
    url = describe(library.client(username="", password=""))
    assert read_address(url).access.greeting == []


def test_a_socket(library: Library):
    name = library.scheme
    assert same(describe(library.client(unix_socket_path="/run/r.sock")), f"{name}:///run/r.sock")
    client = library.from_url(f"unix://u:{SECRET}@/run/r.sock?db=2")
    assert same(describe(client), f"{name}://u:***@/run/r.sock", db="2")
    address = read_address(describe(client))
    assert address.endpoints[0].path == "/run/r.sock"
    assert address.access.greeting == [("AUTH", "u", SECRET), ("SELECT", 2)]


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        ({"ssl_ca_certs": "/ca"}, {"ca": "/ca"}),
        ({"ssl_ca_data": "PEM"}, {"ca_data": "PEM"}),
        ({"ssl_certfile": "/cert", "ssl_keyfile": "/key"}, {"cert": "/cert", "key": "/key"}),
        ({"ssl_cert_reqs": "none"}, {"verify": "false"}),
        ({"ssl_cert_reqs": ssl.CERT_NONE}, {"verify": "false"}),
        ({"ssl_cert_reqs": "optional"}, {}),  # for a client that is the same as "required"
        ({"ssl_check_hostname": False}, {"check_hostname": "false"}),
        ({"ssl_min_version": ssl.TLSVersion.TLSv1_3}, {"min_tls": "1.3"}),
        ({"ssl_ciphers": "HIGH"}, {"ciphers": "HIGH"}),
    ],
    ids=str,
)
def test_tls(given: dict[str, Any], carried: dict[str, str], library: Library):
    url = describe(library.client(host="h", ssl=True, **{"ssl_check_hostname": True, **given}))
    assert same(url, f"{library.scheme}s://h:6379/0", **carried)
    assert read_address(url).access.tls is not None


def test_tls_of_a_url(library: Library):
    url = describe(library.from_url(f"{library.scheme}s://h?ssl_cert_reqs=none"))
    assert same(url, f"{library.scheme}s://h:6379/0", verify="false")
    assert same(describe(library.from_url(f"{library.scheme}s://h")), f"{library.scheme}s://h:6379/0")


def test_a_directory_of_certificates():
    assert describe(redis.Redis(ssl=True, ssl_ca_path="/cas")).options == {"ca_path": "/cas"}


def test_a_certificate_in_binary_form(library: Library):
    url = describe(library.client(ssl=True, ssl_ca_data=b"\x30\x82"))
    assert url.options["ca_data"].startswith("-----BEGIN CERTIFICATE-----")


def test_sentinels(library: Library):
    name = library.scheme
    plain = library.sentinel([("a", 1), ("b", 2)])
    assert same(describe(plain.master_for("m", db=3)), f"{name}+sentinel://a:1,b:2/m/3")
    secret = {"username": "s", "password": SECRET + "s"}
    guarded = library.sentinel([("a", 1)], sentinel_kwargs=secret, username="u", password=SECRET)
    url = describe(guarded.master_for("m"))
    assert SECRET not in str(url) + repr(url)
    address = read_address(url)
    assert address.access.greeting == [("AUTH", "u", SECRET)]
    assert address.sentinel_access.greeting == [("AUTH", "s", SECRET + "s")]


@pytest.mark.parametrize("sentinels", [False, True])
@pytest.mark.parametrize("master", [False, True])
def test_sentinels_may_be_plain_where_the_master_is_not(master: bool, sentinels: bool, library: Library):
    secure = {"ssl": True, "ssl_ca_certs": "/ca", "ssl_check_hostname": True}
    sentinel = library.sentinel([("a", 1)], sentinel_kwargs=secure if sentinels else {}, **(secure if master else {}))
    address = read_address(describe(sentinel.master_for("m")))
    assert (address.access.tls is not None, address.sentinel_access.tls is not None) == (master, sentinels)


@pytest.mark.parametrize("name", ["redis", "valkey"])
def test_a_cluster(name: str):
    kind = getattr(importlib.import_module(f"{name}.asyncio"), f"{name.capitalize()}Cluster")
    assert same(describe(kind(host="h", port=7)), f"{name}+cluster://h:7")
    node = importlib.import_module(f"{name}.asyncio.cluster").ClusterNode
    client = kind(startup_nodes=[node("a", 1), node("b", 2)], username="u", password=SECRET)
    assert same(describe(client), f"{name}+cluster://u:***@a:1,b:2")
    secure = kind(host="h", port=7, ssl=True, ssl_check_hostname=True, ssl_ca_certs="/ca")
    assert same(describe(secure), f"{name}+cluster://h:7", tls="true", ca="/ca")
    with pytest.raises(ValueError, match=r"address_remap.*cannot be carried over"):
        describe(kind(host="h", port=7, address_remap=lambda address: address))


def test_a_credential_provider_is_asked_for_every_login(library: Library):
    url = describe(library.client(host="h", credential_provider=library.fixed("u", SECRET)))
    assert str(url) == f"{library.scheme}://:***@h:6379/0"
    assert url.ask_login is not None
    assert url.ask_login() == ("u", SECRET)
    assert SECRET not in repr(tuple(url)) + repr(url.ask_login)
    assert read_address(url).access.greet(url.ask_login()) == [("AUTH", "u", SECRET)]
    url = describe(library.client(host="h", credential_provider=library.fixed(password=SECRET)))
    assert url.ask_login is not None
    assert url.ask_login() == (None, SECRET)


@pytest.mark.parametrize("given", [None, (), (None,), ("a", "b", "c"), b"bytes", SECRET], ids=repr)
def test_what_a_provider_must_not_return(given: Any, library: Library):
    provider = type("Provider", (library.provider,), {"get_credentials": lambda self: given})
    url = describe(library.client(credential_provider=provider()))
    assert url.ask_login is not None
    with pytest.raises(StoreError, match=r"\(password,\) or \(username, password\)") as caught:
        url.ask_login()
    assert SECRET not in str(caught.value)


def refused(library: Library) -> dict[str, Any]:
    """What cannot be carried over, by what the message says."""

    async def later(self: object) -> tuple[str]:
        return (SECRET,)

    later_only = type("Later", (library.provider,), {"get_credentials_async": later})
    odd = type("Odd", (library.connection,), {})
    function = {f"{library.scheme}_connect_func": print}
    hosts, provider = [("a", 1)], library.fixed("u", SECRET)
    asked = library.sentinel(hosts, sentinel_kwargs={"credential_provider": provider})
    secure: dict[str, Any] = {"ssl": True, "ssl_ca_certs": "/ca"}
    differing = library.sentinel(hosts, sentinel_kwargs=secure, **{**secure, "ssl_ca_certs": "/other"})
    return {
        r"connection_class .*\.Odd may connect to anything": library.client(
            connection_pool=library.pool(connection_class=odd)
        ),
        "connect_func .*in a way of its own": library.client(**function),
        "credential_provider .*get_credentials_async": library.client(credential_provider=later_only()),
        r"pass the client of one of them, sentinel\.master_for\('NAME'\)": library.sentinel(hosts),
        r"take no writes: pass sentinel\.master_for": library.sentinel(hosts).slave_for("m"),
        "connect_func of": library.sentinel(hosts).master_for("m", **function),
        "list of sentinels": library.sentinel([]).master_for("m"),
        "credential_provider of the sentinels": asked.master_for("m"),
        r"ssl_\* of the sentinels.*differ": differing.master_for("m"),
        "no address can be read from": library.pool(),
    }


def test_what_cannot_be_carried_over_is_refused_with_the_reason(library: Library):
    for rule, client in refused(library).items():
        for flavour in (holdfast, holdfast.aio):
            with pytest.raises(ValueError, match=rule) as caught:
                flavour.connect(client)
            assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value"), [("ssl_validate_ocsp", True), ("ssl_include_verify_flags", [ssl.VERIFY_CRL_CHECK_LEAF])]
)
def test_what_makes_tls_stricter_is_not_dropped(option: str, value: Any):
    settings: dict[str, Any] = {option: value}
    with pytest.raises(ValueError, match=f"{option} .*cannot be carried over.*pass a URL"):
        holdfast.connect(redis.Redis(ssl=True, **settings))
    settings[option] = type(value)()  # False, or an empty list
    assert str(holdfast.connect(redis.Redis(ssl=True, **settings)).url) == "rediss://localhost:6379/0"


@flavours
def test_nothing_is_opened_and_the_object_is_not_kept(
    flavour: ModuleType, library: Library, monkeypatch: pytest.MonkeyPatch
):
    def touched(*args: object, **kwargs: object) -> None:
        raise AssertionError("a socket is made")

    client = library.client(host="h", credential_provider=library.fixed("u", SECRET))
    with monkeypatch.context() as patched:
        patched.setattr("socket.socket.__init__", touched)
        locks = flavour.connect(client)
    shown = repr(locks) + repr(locks.url) + repr(vars(locks._engine.store))
    assert SECRET not in shown
    weak = weakref.ref(client)
    del client
    gc.collect()
    assert weak() is None
    assert locks.url.ask_login() == ("u", SECRET)


@flavours
def test_a_subclass_of_the_user(flavour: ModuleType):
    class Mine(redis.Redis):
        pass

    assert str(flavour.connect(Mine(host="h")).url) == "redis://h:6379/0"


@flavours
def test_password_and_options_go_before_those_of_the_object(flavour: ModuleType):
    client = redis.Redis(host="h", username="u", password="old")
    locks = flavour.connect(client, password="new", options={"trust_config": True})
    assert (locks.url.username, locks.url.password) == ("u", "new")
    assert locks.url.options == {"trust_config": "true"}


def test_nothing_is_imported_that_the_user_has_not():
    """The object is known by the name of its module."""
    out, _ = run(
        """
        import sys
        import holdfast

        class Pool:
            connection_class, connection_kwargs = type("Connection", (), {"__module__": "redis.connection"}), {}

        class Redis:
            connection_pool = Pool()

        Redis.__module__ = "redis.client"
        print(holdfast.connect(Redis()).url, "redis" in sys.modules, "valkey" in sys.modules, "ssl" in sys.modules)
        """
    )
    assert out == "redis://localhost:6379/0 False False False\n"


@flavours
@pytest.mark.parametrize("thing", [redis.Redis, redis, object(), 5, b"redis://h", ["redis://h"]], ids=type)
def test_what_nothing_is_known_of(flavour: ModuleType, thing: Any):
    rule = "a store URL like .* or a client object of the libraries redis, valkey, kazoo; .* is neither"
    with pytest.raises(ValueError, match=rule):
        flavour.connect(thing)


def test_the_types_say_what_connect_takes():
    """Checked by mypy; a client object of the wrong kind is an error there."""
    clients = (
        holdfast.connect(redis.Redis()),
        holdfast.connect(valkey.Valkey()),
        holdfast.connect(redis.asyncio.Redis()),
        holdfast.connect(redis.asyncio.RedisCluster(host="h", port=1)),
        holdfast.connect(valkey.asyncio.ValkeyCluster(host="h", port=1)),
    )
    assert len({str(locks.url) for locks in clients}) == 4
    with pytest.raises(ValueError, match="neither"):
        holdfast.connect(5)  # type: ignore[arg-type]
