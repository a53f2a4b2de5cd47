"""The contract suite: every law of a store, in both flavours.

A store of your own is proved by one test:

    import pytest
    from holdfast.testing import contract

    STORE = contract.Target("mystore://localhost:4711")

    @pytest.mark.parametrize("law", contract.laws(STORE), ids=str)
    def test_law(law):
        law.run(STORE)

The store's capabilities decide which laws apply. Every law runs in a namespace of its own, and at its end nothing may
be left running or open. `{folder}` in the URL stands for a directory made for each law. A store whose server can be
restarted or silenced says how, and is put to more laws: see `Target`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module

from ..core.promises import Capabilities
from ..core.urls import parse_url
from .law import Flavour, Law, registered

__all__ = ["Law", "Target", "capabilities", "laws"]

_THEMES = (
    "exclusion",
    "tokens",
    "holders",
    "abandon",
    "waiting",
    "loss",
    "bodies",
    "calls",
    "closing",
    "registers",
    "views",
    "processes",
    "keeping",
    "shares",
    "several",
    "election",
    "once",
    "breaking",
)


@dataclass(frozen=True, slots=True)
class Target:
    """A store to be put to the laws."""

    url: str  # {folder}: a fresh directory for each law
    # The store has no other clock than the one it is given, as memory:// and sqlite: have: time can then be driven.
    # Otherwise the laws wait in real time, with short leases.
    driven: bool = False
    # Otherwise: seconds of the leases that the laws take, at least. A store that needs several exchanges in a ttl wants
    # more than a second on a busy machine.
    ttl: float = 1.0
    # Restart the server, called with the URL: returns when it answers again.
    restart: Callable[[str], None] | None = None
    # Make the store silent, called with the URL: connections stay open, and nothing is answered inside the `with`.
    silence: Callable[[str], AbstractContextManager[object]] | None = None

    def __str__(self) -> str:
        return self.url.partition(":")[0]


def capabilities(target: Target, flavour: Flavour = "sync") -> Capabilities:
    """Return what the store says of itself; asks no server."""
    client = import_module(f"holdfast._{flavour}.client").Client(parse_url(target.url.replace("{folder}", "/nowhere")))
    found = client.capabilities
    assert isinstance(found, Capabilities)
    return found


def laws(target: Target, flavours: Iterable[Flavour] = ("sync", "async")) -> list[Law]:
    """Return the laws that this store has to keep."""
    found: list[Law] = []
    for flavour in flavours:
        for theme in _THEMES:
            import_module(f"holdfast.testing._{flavour}.{theme}")
        can = capabilities(target, flavour)
        found += [law for law in registered(flavour) if law.applies(target, can)]
    return found
