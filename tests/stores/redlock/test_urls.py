"""Addresses of a Redlock: which nodes there may be, and which options."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.core.urls import parse_url
from holdfast.errors import Unsupported
from holdfast.stores.redis.address import read_nodes
from holdfast.stores.redis.wire import Endpoint


def test_nodes_have_ports_logins_and_one_database():
    nodes, trusted = read_nodes(parse_url("redlock://a:1,u:p@b,:q@[::1]:3/4?trust_config=true"))
    assert [endpoint for endpoint, _ in nodes] == [Endpoint("a", 1), Endpoint("b", 6379), Endpoint("::1", 3)]
    select = ("SELECT", 4)
    assert [access.greeting for _, access in nodes] == [[select], [("AUTH", "u", "p"), select], [("AUTH", "q"), select]]
    assert trusted


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("redlock://", "names 0 nodes"),
        ("redlock://a", "names 1 nodes; a Redlock needs an odd number, 3 or more"),
        ("redlock://a,b", "names 2 nodes"),
        ("redlock://a,b,c,d", "names 4 nodes.*tolerates no more failures"),
        ("redlock://a,b,c,d,e,f", "names 6 nodes"),
        ("redlock://a,b,a", "names a:6379 twice; its vote would count twice"),
        ("redlock://a,b,a:6379", "names a:6379 twice"),
        ("redlock://u:p@a,b,v:q@a", "names a:6379 twice"),
        ("redlock://a,b,c/x", "database"),
        ("redlock://a,b,c?quorum=1", "unknown option 'quorum'"),
        ("redlock://a,b,c?tls=maybe", "true or false"),
        ("redlock://a,b,c?ca=/x", "about TLS"),
    ],
)
def test_what_cannot_be_a_redlock_is_refused_before_anything_is_sent(url: str, rule: str):
    for connect in (holdfast.connect, holdfast.aio.connect):
        with pytest.raises(ValueError, match=rule):
            connect(url)


def test_what_redlock_cannot_do_is_refused():
    locks = holdfast.connect("redlock://a,b,c")
    for refused in (
        lambda: locks.semaphore("r", permits=2),
        lambda: locks.rwlock("r").read(),
        lambda: locks.tree("a/b"),
        lambda: locks.rate_limit("r", 5, per=1.0),
        lambda: locks.lock("r", fair=True),
        lambda: locks.lock("r", renew=False),
        lambda: locks.lock("r", min_hold=1.0),
    ):
        with pytest.raises(Unsupported, match="redlock"):
            refused()
    locks.lock("r", fair=False)
