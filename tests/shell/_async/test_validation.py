"""Bad input raises ValueError with the value and the rule, and nothing is sent."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from holdfast._async.client import Client
from holdfast.core.urls import parse_url
from holdfast.testing.clock import ManualClock
from tests.shell._async.kit import connect

NO_NUMBERS: list[Any] = [True, False, "5", nan, inf, -inf, -1, []]

BAD: list[tuple[str, Any]] = [
    *(("ttl", value) for value in (None, 0, 0.49, *NO_NUMBERS)),
    *(("timeout", value) for value in NO_NUMBERS),
    *(("min_hold", value) for value in (None, *NO_NUMBERS)),
    *(("max_hold", value) for value in NO_NUMBERS),
    *(("reentrant", value) for value in (None, 0, 1, "yes")),
    *(("renew", value) for value in (None, 0, 1, "yes")),
    *(("fair", value) for value in (0, 1, "yes")),
    *(("owner", value) for value in ("", 5, "a\nb", "x" * 513)),
    *(("on_lost", value) for value in (5, "print")),
]

RULES = {
    "ttl": "at least 0.5",
    "timeout": "at least 0 ",
    "min_hold": "at least 0",
    "max_hold": "or None: no limit",
    "reentrant": "True or False",
    "renew": "True or False",
    "fair": "True or False",
    "owner": "512|control character",
    "on_lost": "cannot be called",
}


def ids(value: Any) -> str:
    return repr(value)[:20]


@pytest.mark.parametrize(("option", "value"), BAD, ids=ids)
async def test_lock_options(option: str, value: Any, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        with pytest.raises(ValueError, match=RULES[option]) as caught:
            locks.lock("r", **{option: value})
        assert option in str(caught.value)
        assert repr(value)[:40] in str(caught.value)
        assert tap.claims == []


@pytest.mark.parametrize("option", ["ttl", "timeout", "min_hold", "max_hold"])
@pytest.mark.parametrize("digits", [400, 10_000])
async def test_numbers_that_no_float_can_hold(option: str, digits: int, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        with pytest.raises(ValueError, match=f"{option} must be a finite number"):
            locks.lock("r", **{option: 10**digits})


@pytest.mark.parametrize("value", NO_NUMBERS, ids=ids)
async def test_timeouts_of_calls(value: Any, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        tap = locks.tap
        lock = locks.lock("r")
        with pytest.raises(ValueError, match="timeout must be"):
            await lock.acquire(timeout=value)
        with pytest.raises(ValueError, match="timeout must be"):
            await lock.try_acquire(timeout=value)
        with pytest.raises(ValueError, match="timeout must be"):
            await locks.close(timeout=value)
        assert tap.claims == []
        async with lock as lease:
            with pytest.raises(ValueError, match="timeout must be"):
                await lease.wait_lost(timeout=value)


async def test_min_hold_may_not_exceed_the_ttl(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        with pytest.raises(ValueError, match=r"min_hold=31 exceeds ttl=30.*raise the ttl"):
            locks.lock("r", ttl=30, min_hold=31)
        locks.lock("r", ttl=30, min_hold=30)


@pytest.mark.parametrize(
    "resource", ["", "x" * 513, "é" * 257, "a\x00b", "a\nb", "\x7f", "\ud800", None, 5, b"r"], ids=ids
)
async def test_resources(resource: Any, name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        with pytest.raises(ValueError, match="resource"):
            locks.lock(resource)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"namespace": ""}, "namespace '' has 0 UTF-8 bytes"),
        ({"namespace": "a\tb"}, "control character"),
        ({"namespace": None}, "namespace must be a str"),
        ({"owner": ""}, "owner '' has 0"),
        ({"owner": 7}, "owner must be a str.* not 7"),
        ({"io_timeout": 0}, "io_timeout must be .*at least 0.01.* not 0"),
        ({"io_timeout": None}, "io_timeout must be .* not None"),
        ({"io_timeout": True}, "io_timeout must be .* not True"),
        ({"io_timeout": nan}, "io_timeout must be .* not nan"),
        ({"require": "speed"}, "'efficiency', 'correctness' or None, not 'speed'"),
        ({"observers": [5]}, "5 cannot be called"),
    ],
    ids=ids,
)
def test_client_options(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        Client(parse_url("memory://"), **options)


async def test_defaults(name: str, clock: ManualClock) -> None:
    async with connect(name, clock) as locks:
        lock = locks.lock("r")
        assert (lock.ttl, lock.timeout, lock.min_hold, lock.max_hold) == (30, None, 0, inf)
        assert (lock.reentrant, lock.renew, lock.fair, lock.owner) == (False, True, True, None)
        assert locks.namespace == "default"


async def test_owner_labels(name: str, clock: ManualClock) -> None:
    async with connect(name, clock, owner="web-3") as locks, connect(name, clock) as others:
        async with locks.lock("r") as lease:
            assert lease.owner == "web-3"
        async with locks.lock("r", owner="me") as lease:
            assert lease.owner == "me"
        async with others.lock("r") as lease:
            host, pid, actor = lease.owner.split(":", 2)
            assert host
            assert pid.isdigit()
            assert actor
