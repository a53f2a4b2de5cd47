"""Store addresses: taken apart exactly, and never showing what is secret."""

from __future__ import annotations

import pickle
import string
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.urls import StoreURL, parse_url
from holdfast.errors import StoreError

SECRET = "Tr0ub4dor"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///var/lib/locks.db", StoreURL("sqlite", path="/var/lib/locks.db")),
        ("sqlite:locks.db", StoreURL("sqlite", path="locks.db")),
        ("sqlite:dir/locks.db", StoreURL("sqlite", path="dir/locks.db")),
        ("sqlite:////abs", StoreURL("sqlite", path="//abs")),
        ("sqlite:///a%20b/%C3%A9%23%3F.db", StoreURL("sqlite", path="/a b/é#?.db")),
        ("SQLite:///x", StoreURL("sqlite", path="/x")),
        ("memory://", StoreURL("memory")),
        ("memory://room", StoreURL("memory", (("room", None),))),
        ("redis://h:6379/0", StoreURL("redis", (("h", 6379),), "/0")),
        ("etcd://e1,e2:2,e3", StoreURL("etcd", (("e1", None), ("e2", 2), ("e3", None)))),
        ("redis://[::1]:6379", StoreURL("redis", (("::1", 6379),))),
        ("redis://[::1]", StoreURL("redis", (("::1", None),))),
        ("etcd://[fe80::1]:1,[fe80::2]:2,h", StoreURL("etcd", (("fe80::1", 1), ("fe80::2", 2), ("h", None)))),
        ("redis://u:p@h", StoreURL("redis", (("h", None),), username="u", password="p")),
        ("redis://:p@h", StoreURL("redis", (("h", None),), password="p")),
        ("redis://u@h", StoreURL("redis", (("h", None),), username="u")),
        ("redis://u:@h", StoreURL("redis", (("h", None),), username="u", password="")),
        ("redis://u%40x:p%3A%2F%40@h", StoreURL("redis", (("h", None),), username="u@x", password="p:/@")),
        ("redis://u:p:q@h", StoreURL("redis", (("h", None),), username="u", password="p:q")),
        (
            "redlock://u1:p1@h1:1,h2,:p3@[::1]:3/2",
            StoreURL(
                "redlock",
                (("h1", 1), ("h2", None), ("::1", 3)),
                "/2",
                logins=(("u1", "p1"), (None, None), (None, "p3")),
            ),
        ),
        ("redlock://h1,h2,h3", StoreURL("redlock", (("h1", None), ("h2", None), ("h3", None)))),
        (
            "redlock://u%2C%40:p%2C%40@h1,h2",
            StoreURL("redlock", (("h1", None), ("h2", None)), logins=(("u,@", "p,@"), (None, None))),
        ),
        ("redis+tls://h?a=1&b=&c=%20x", StoreURL("redis+tls", (("h", None),), options={"a": "1", "b": "", "c": " x"})),
    ],
)
def test_addresses_are_taken_apart(url: str, expected: StoreURL) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        (None, "must be a str"),
        (b"sqlite:///x", "must be a str"),
        (7, "must be a str"),
        ("", "begins with a scheme"),
        ("/var/lib/locks.db", "begins with a scheme"),
        ("locks.db", "begins with a scheme"),
        (f"{SECRET}@host", "begins with a scheme"),
        ("://h", "begins with a scheme"),
        ("re dis://h", "begins with a scheme"),
        (f"re@dis:{SECRET}", "begins with a scheme"),
        (f"user:{SECRET}@host:6379", "begins with a scheme, like .* or 'redis://host:6379'"),
        (f":{SECRET}@host:6379", "begins with a scheme"),
        (f"{SECRET}@host:6379/0", "begins with a scheme"),
        (f"redis://u:{SECRET}@h:0", "host:port"),
        (f"redis://u:{SECRET}@h:65536", "host:port"),
        (f"redis://u:{SECRET}@h:-1", "host:port"),
        (f"redis://u:{SECRET}@h:6379x", "host:port"),
        (f"redis://u:{SECRET}@h:\uff16\uff13", "host:port"),
        (f"redis://u:{SECRET}@:6379", "host:port"),
        (f"redis://u:{SECRET}@a,,b", "host:port"),
        (f"redis://u:{SECRET}@a,", "host:port"),
        (f"redis://u:{SECRET}@h/0#x", "%23"),
        (f"redis://u:{SECRET}#1@h/0", "redis://"),
        (f"redis://u:{SECRET}@h/?noequals", "cannot be parsed"),
        (f"redis://u:{SECRET}@[::1", "cannot be parsed"),
        (f"redis://u:{SECRET}@[nonsense]", "cannot be parsed"),
        (f"redis://u:{SECRET}[@h", "redis://"),
        (f"redis://u:{SECRET}/x@h:1", "redis://"),
        (f"redis://u:{SECRET}?x@h:1", "redis://"),
        (f"redis://u:a,{SECRET}:b@h:x", "host:port"),
    ],
)
def test_bad_addresses_are_refused_without_showing_a_secret(url: object, rule: str) -> None:
    with pytest.raises(ValueError, match=rule) as caught:
        parse_url(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


hosts = st.sampled_from(["h", "h:6379", "[::1]:5", "a,b:2,[fe80::9]"])
secrets = st.text(string.printable + "é😀", min_size=1, max_size=20).map(lambda text: SECRET + text + SECRET)


@given(secrets, st.sampled_from(["", "user", "u@ser"]), hosts, st.sampled_from(["", "/0", "/p%20q"]))
def test_a_password_is_never_shown(secret: str, user: str, host: str, path: str) -> None:
    url = parse_url(f"redis://{quote(user, safe='')}:{quote(secret, safe='')}@{host}{path}?token={SECRET}")
    assert url.password == secret
    assert url.username == (user or None)
    for shown in (str(url), repr(url), f"{url}", f"{url!r}", "%s" % (url,)):  # noqa: UP031
        assert SECRET not in shown
    assert "***" in str(url)
    with pytest.raises(ValueError, match="unknown option 'token'") as caught:
        url.allow("other", "another")
    assert SECRET not in str(caught.value)
    assert "another, other" in str(caught.value)


@given(secrets, hosts)
def test_a_password_that_was_not_quoted_is_not_shown_either(secret: str, host: str) -> None:
    try:
        url = parse_url(f"redis://user:{secret}@{host}")
        shown = str(url) + repr(url)
    except ValueError as error:
        shown = str(error)
    assert SECRET not in shown


@given(st.lists(secrets, min_size=3, max_size=3), st.sampled_from(["", "user", "u@s,er"]))
def test_passwords_of_single_hosts_are_never_shown(passwords: list[str], user: str) -> None:
    logins = [f"{quote(user, safe='')}:{quote(password, safe='')}" for password in passwords]
    url = parse_url(f"redlock://{logins[0]}@h1:1,{logins[1]}@h2,{logins[2]}@[::1]:3?token={SECRET}")
    assert [password for _, password in url.logins] == passwords
    assert [name for name, _ in url.logins] == [user or None] * 3
    for shown in (str(url), repr(url), f"{url}", f"{url!r}"):
        assert SECRET not in shown
        assert shown.count("***") == 3


@pytest.mark.parametrize("hosts", [f"u:{SECRET}@h:x,h2,h3", f"h1,u:{SECRET}@,h3", f"h1,h2,u:{SECRET}@h:0"])
def test_bad_hosts_with_a_login_of_their_own_are_refused_without_showing_it(hosts: str) -> None:
    with pytest.raises(ValueError, match=r"host number [123] of the redlock:// URL") as caught:
        parse_url(f"redlock://{hosts}")
    assert SECRET not in str(caught.value)


def test_a_url_can_be_pickled_with_its_password() -> None:
    url = parse_url("redis://u:p@h:1/0?a=b")
    twin = pickle.loads(pickle.dumps(url))
    assert twin == url
    assert twin.password == "p"


def test_options_that_are_known_pass() -> None:
    url = parse_url("redis://h?a=1&b=2")
    assert url.allow("a", "b", "c") is url
    with pytest.raises(ValueError, match="knows: none"):
        url.allow()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///var/lib/locks.db",
        "sqlite:locks.db",
        "memory://",
        "memory://room",
        "etcd://e1,e2:2",
        "redis://u@h:1/0",
    ],
)
def test_what_is_shown_can_be_parsed_again(url: str) -> None:
    assert str(parse_url(url)) == url
    assert parse_url(str(parse_url(url))) == parse_url(url)


def test_an_ipv6_address_is_shown_so_that_it_can_be_parsed_again() -> None:
    url = parse_url("redis://[::1]:6379,[::2]/0")
    assert parse_url(str(url)) == url


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("localhost:6379", r"'localhost:6379' has no scheme; write redis://localhost:6379$"),
        ("cache.example.com:6379/2", r"write redis://cache\.example\.com:6379/2$"),
        ("my_redis:6379", r"write redis://my_redis:6379$"),
        ("[::1]:2379", r"write etcd://\[::1\]:2379$"),
        ("127.0.0.1:26379", r"write redis\+sentinel://127\.0\.0\.1:26379$"),
        ("host:7000", "write redis://host:7000 or etcd://host:7000$"),
        ("localhost", "begins with a scheme"),
    ],
)
def test_a_host_and_a_port_without_a_scheme_are_told_what_to_write(text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        parse_url(text)


def test_a_file_may_have_a_number_for_a_name() -> None:
    assert parse_url("sqlite:6379") == StoreURL("sqlite", path="6379")


def test_a_password_may_be_given_apart() -> None:
    url = parse_url("redis://u:old@h").with_password("new")
    assert (url.username, url.password, url.ask_login) == ("u", "new", None)
    url = parse_url("redlock://u:old@a,b,c").with_password("new")
    assert url.logins == (("u", "new"), (None, "new"), (None, "new"))


def test_a_password_may_be_asked_for_and_is_not_shown() -> None:
    class Vault:
        def __call__(self) -> str:
            return SECRET

        def __repr__(self) -> str:
            return SECRET

    for text, shown in (
        ("redis://u:old@h", "redis://u:***@h"),
        ("redis://h", "redis://:***@h"),
        ("redlock://u:old@a,b,c", "redlock://u:***@a,:***@b,:***@c"),
    ):
        url = parse_url(text).with_password(Vault())
        assert url.password is None
        assert {password for _, password in url.logins} <= {None}
        assert url.ask_login is not None
        assert url.ask_login() == (None, SECRET)
        assert str(url) == shown
        assert SECRET not in repr(url) + repr(url.ask_login) + repr(tuple(url))
    assert url.with_password("text").ask_login is None


def test_what_cannot_be_a_password() -> None:
    async def later() -> str:
        return SECRET

    with pytest.raises(ValueError, match="a str, or a callable that returns one, not int"):
        parse_url("redis://h").with_password(5)
    with pytest.raises(ValueError, match="plain function, not a coroutine function"):
        parse_url("redis://h").with_password(later)
    asked = parse_url("redis://h").with_password(SECRET.encode).ask_login
    assert asked is not None
    with pytest.raises(StoreError, match="has to return a str; it returned bytes") as caught:
        asked()
    assert SECRET not in str(caught.value)


def test_options_may_be_given_apart() -> None:
    url = parse_url("redis://h?a=1&b=2").with_options({"b": "3", "c": True, "d": False})
    assert url.options == {"a": "1", "b": "3", "c": "true", "d": "false"}
    wrong: dict[str, Any] = {"a": 1}
    with pytest.raises(ValueError, match="option 'a' must be a str or a bool, not int"):
        url.with_options(wrong)
