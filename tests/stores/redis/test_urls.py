"""What a URL of Redis says, and what it may not say. Nothing is sent."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
import holdfast.aio
from holdfast.core.urls import parse_url
from holdfast.errors import StoreError
from holdfast.stores.redis.address import read_address
from holdfast.stores.redis.wire import TLS, Access, Endpoint
from holdfast.stores.registry import find_store
from holdfast.testing.servers import Missing, find


@pytest.mark.parametrize(
    ("url", "endpoints", "greeting"),
    [
        ("redis://", [Endpoint("127.0.0.1", 6379)], []),
        ("redis://h", [Endpoint("h", 6379)], []),
        ("redis://h:7/3", [Endpoint("h", 7)], [("SELECT", 3)]),
        ("redis://:p@h", [Endpoint("h", 6379)], [("AUTH", "p")]),
        ("redis://u:p@[::1]:7/1", [Endpoint("::1", 7)], [("AUTH", "u", "p"), ("SELECT", 1)]),
        ("redis:///run/redis.sock", [Endpoint("", 0, "/run/redis.sock")], []),
        ("redis+sentinel://:p@a,b:7/name/2", [Endpoint("a", 26379), Endpoint("b", 7)], [("AUTH", "p"), ("SELECT", 2)]),
        ("redis+cluster://a,b:7", [Endpoint("a", 6379), Endpoint("b", 7)], []),
        ("redis://u@h", [Endpoint("h", 6379)], [("AUTH", "u", "")]),
        ("redis:///run/redis.sock?db=2", [Endpoint("", 0, "/run/redis.sock")], [("SELECT", 2)]),
        ("valkey://:p@h/1", [Endpoint("h", 6379)], [("AUTH", "p"), ("SELECT", 1)]),
        ("valkey+sentinel://a/name/2", [Endpoint("a", 26379)], [("SELECT", 2)]),
        ("valkey+cluster://a,b:7", [Endpoint("a", 6379), Endpoint("b", 7)], []),
    ],
)
def test_servers_and_login(url: str, endpoints: list[Endpoint], greeting: list[object]) -> None:
    address = read_address(parse_url(url))
    assert list(address.endpoints) == endpoints
    assert address.access.greeting == greeting
    assert address.access.tls is None


@pytest.mark.parametrize(
    ("url", "tls"),
    [
        ("rediss://h", TLS()),
        ("rediss://h?ca=/a&cert=/b&key=/c", TLS("/a", "/b", "/c")),
        ("rediss://h?verify=false", TLS(verify=False)),
        ("redis+sentinel://h/m?tls=true", TLS()),
        ("redis+cluster://h?tls=true&ca=/a", TLS("/a")),
        ("valkeys://h", TLS()),
        ("valkey+cluster://h?tls=true", TLS()),
        ("rediss://h?ca_path=/a&check_hostname=false", TLS(ca_path="/a", check_hostname=False)),
        ("rediss://h?ca_data=PEM&min_tls=1.3&ciphers=HIGH", TLS(ca_data="PEM", min_version="1.3", ciphers="HIGH")),
        ("rediss://h?cert=/b&key=/c&key_password=p", TLS(certificate="/b", key="/c", key_password="p")),
    ],
)
def test_tls(url: str, tls: TLS) -> None:
    assert read_address(parse_url(url)).access.tls == tls


def test_sentinels_have_a_login_of_their_own() -> None:
    address = read_address(parse_url("redis+sentinel://:p@h/m?sentinel_username=u&sentinel_password=q"))
    assert address.master == "m"
    assert address.sentinel_access.greeting == [("AUTH", "u", "q")]


@pytest.mark.parametrize(
    ("options", "master", "sentinels"),
    [
        ("", False, False),
        ("?tls=true", True, True),
        ("?tls=true&sentinel_tls=false", True, False),
        ("?sentinel_tls=true", False, True),
    ],
)
def test_sentinels_may_be_plain_where_the_master_is_not(options: str, master: bool, sentinels: bool) -> None:
    address = read_address(parse_url(f"redis+sentinel://h/m{options}"))
    assert (address.access.tls is not None, address.sentinel_access.tls is not None) == (master, sentinels)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("redis://h?db=2", r"option 'db'.*write redis://host:port/2$"),
        ("valkeys://h?db=two", r"write valkeys://host:port/2$"),
        ("redis+sentinel://h/m?db=3", r"write redis\+sentinel://sentinel:port/NAME-OF-THE-MASTER/3$"),
        ("redis+cluster://h?db=3", "one database: leave it out"),
        ("redlock://a,b,c?db=4", r"write redlock://host:port/4$"),
        ("redis:///run/redis.sock?db=x", "number"),
        ("rediss://h?min_tls=1.1", "1.2 or 1.3, not '1.1'"),
        ("rediss://h?key=/x", "'key' without 'cert'"),
        ("valkey://h?ca=/x", "use valkeys://"),
        ("valkey+cluster://h?ca=/x", r"use \?tls=true"),
        ("redis://a,b", "one host"),
        ("redis://h/x", "number"),
        ("redis://h?nonsense=1", "nonsense"),
        ("redis://h?tls=true", "tls"),
        ("redis://h?ca=/x", "rediss"),
        ("redis://h?trust_config=yes", "true or false"),
        ("rediss:///run/redis.sock", "one host"),
        ("redis+sentinel://h", "NAME-OF-THE-MASTER"),
        ("redis+sentinel:///m", "NAME-OF-THE-MASTER"),
        ("redis+cluster://", "host:port"),
        ("redis+cluster://h/1", "one database"),
    ],
)
@pytest.mark.parametrize("login", ["", "u:hunter2@"])
def test_what_is_wrong_is_refused_with_the_rule_and_without_the_password(url: str, rule: str, login: str) -> None:
    scheme, _, rest = url.partition("://")
    if not rest or rest.startswith("/"):
        login = ""  # it would need a host
    with pytest.raises(ValueError, match=rule) as caught:
        holdfast.connect(f"{scheme}://{login}{rest}")
    assert "hunter2" not in str(caught.value)


def test_the_password_is_in_no_repr() -> None:
    address = read_address(parse_url("redis://u:hunter2@h"))
    assert "hunter2" not in repr(address) + repr(address.access) + str(address.access)
    assert "hunter2" not in repr(Access("u", "hunter2"))
    assert "hunter2" not in repr(TLS(key_password="hunter2"))


def test_valkey_is_another_name_of_the_same_store() -> None:
    for scheme in ("valkey", "valkeys", "valkey+sentinel", "valkey+cluster"):
        for flavour in ("sync", "async"):
            assert find_store(scheme, flavour) is find_store(scheme.replace("valkey", "redis"), flavour)


@pytest.mark.parametrize("flavour", [holdfast, holdfast.aio], ids=lambda module: module.__name__)
def test_a_login_that_the_store_would_not_use_is_refused(flavour: ModuleType) -> None:
    for url in ("memory://room", "sqlite:///tmp/locks.db"):
        for password in ("hunter2", lambda: "hunter2"):
            with pytest.raises(ValueError, match="takes no password"):
                flavour.connect(url, password=password)
    with pytest.raises(ValueError, match="etcd:// takes a password that is a str, not a callable"):
        flavour.connect("etcd://root@h", password=lambda: "hunter2")
    assert flavour.connect("etcd://root@h", password="hunter2").url.password == "hunter2"
    with pytest.raises(ValueError, match="unknown option 'nonsense'"):
        flavour.connect("redis://h", options={"nonsense": True})


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """The errors of OpenSSL do not say which file is missing."""
    missing, garbage = tmp_path / "missing.pem", tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    for tls, rule in (
        (TLS(ca=str(missing)), rf"CA certificates \({missing}\) cannot be used for TLS: No such file"),
        (TLS(ca=str(garbage)), rf"CA certificates \({garbage}\)"),
        (TLS(ca_data="nonsense"), r"CA certificates \(given as text\)"),
        (TLS(certificate=str(missing)), rf"certificate and key of this client \({missing}\).*No such file"),
        (TLS(certificate=str(garbage), key=str(missing)), rf"\({garbage}, {missing}\)"),
        (TLS(ciphers="nonsense"), "ciphers 'nonsense'"),
    ):
        with pytest.raises(StoreError, match=rule) as caught:
            Access(tls=tls).context()
        assert type(caught.value) is StoreError


def test_a_key_may_have_a_password(tmp_path: Path) -> None:
    command = (find("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-passout", "pass:hunter2", "-subj", "/CN=me")
    try:
        subprocess.run([*command, "-keyout", "key", "-out", "cert"], cwd=tmp_path, check=True, capture_output=True)
    except Missing as missing:
        pytest.skip(str(missing))
    tls = TLS(certificate=str(tmp_path / "cert"), key=str(tmp_path / "key"), key_password="hunter2")
    tls.context()
    for wrong in ("", "wr0ng"):  # without one OpenSSL would ask at the terminal, and wait
        with pytest.raises(StoreError, match="certificate and key") as caught:
            tls._replace(key_password=wrong).context()
        assert "wr0ng" not in str(caught.value)


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        (TLS(), (True, ssl.CERT_REQUIRED)),
        (TLS(check_hostname=False), (False, ssl.CERT_REQUIRED)),
        (TLS(verify=False), (False, ssl.CERT_NONE)),
    ],
)
def test_what_is_verified(tls: TLS, expected: tuple[bool, ssl.VerifyMode]) -> None:
    context = tls.context()
    assert (context.check_hostname, context.verify_mode) == expected
    assert TLS(min_version="1.3").context().minimum_version is ssl.TLSVersion.TLSv1_3
