"""What a URL of Redis says, and what it may not say. Nothing is sent."""

from __future__ import annotations

import pytest

import holdfast
from holdfast._redis.address import read_address
from holdfast._redis.wire import TLS, Access, Endpoint
from holdfast.core.urls import parse_url


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
    ],
)
def test_tls(url: str, tls: TLS) -> None:
    assert read_address(parse_url(url)).access.tls == tls


def test_sentinels_have_a_login_of_their_own() -> None:
    address = read_address(parse_url("redis+sentinel://:p@h/m?sentinel_username=u&sentinel_password=q"))
    assert address.master == "m"
    assert address.sentinel_access.greeting == [("AUTH", "u", "q")]


@pytest.mark.parametrize(
    ("url", "rule"),
    [
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
