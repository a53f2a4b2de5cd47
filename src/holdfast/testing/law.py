"""What a law test is: a function with the number of its law and what it needs of a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ..core.promises import Capabilities, Scope
from ..core.urls import parse_url
from ..stores.registry import find_store

if TYPE_CHECKING:
    from .contract import Target

Flavour = Literal["sync", "async"]
Function = TypeVar("Function", bound=Callable[..., Any])

# What a law may need. Names of capabilities stand for themselves.
NEEDS = {
    "fair": "waiters are served in order",
    "unfair": "a claim may overtake those who wait",
    "shared": "several may hold at once",
    "detached": "a claim may outlive its client",
    "register": "fenced registers",
    "evict": "claims can be broken by hand",
    "extend": "leases can be made longer",
    "exact": "wakes nobody who cannot go",
    "host": "excludes other processes",
    "driven": "lives by our clock",
    "cancel": "calls can be cancelled from outside",
    "restart": "the suite was told how to restart the server",
    "silence": "the suite was told how to make the store silent",
    "blocking": "the keeper can call the store without the event loop",
}


@dataclass(frozen=True, slots=True)
class Law:
    """One test of a law, in one flavour."""

    number: int  # of the law in core.promises.LAWS
    name: str
    flavour: Flavour
    needs: frozenset[str]
    function: Callable[[Any], Any]

    def __str__(self) -> str:
        return f"{self.flavour}-{self.number:02}-{self.name}"

    def applies(self, target: Target, capabilities: Capabilities) -> bool:
        """Return whether a store has everything that this law is about."""
        return self.needs <= _has(target, capabilities, self.flavour)

    def run(self, target: Target) -> None:
        """Put the store to this law.

        Raises: AssertionError if it breaks the law.
        """
        import_module(f"holdfast.testing._{self.flavour}.case").run(self.function, target)


def _has(target: Target, capabilities: Capabilities, flavour: Flavour) -> set[str]:
    flags = ("fair", "unfair", "shared", "detached", "register", "evict", "extend")
    has = {name for name in flags if getattr(capabilities, name)}
    facts = {
        "exact": not capabilities.herd,
        "host": capabilities.scope is not Scope.PROCESS,
        "driven": target.driven,
        "cancel": flavour == "async",
        "restart": target.restart is not None,
        "silence": target.silence is not None,
        "blocking": hasattr(find_store(parse_url(target.url).scheme, flavour), "blocking"),
    }
    return has | {name for name, true in facts.items() if true}


_laws: dict[str, list[Law]] = {"sync": [], "async": []}


def law(number: int, *needs: str) -> Callable[[Function], Function]:
    """Register a function of a `Case` as a test of this law."""
    if unknown := set(needs) - set(NEEDS):
        raise ValueError(f"a law cannot need {sorted(unknown)}; known are {sorted(NEEDS)}")

    def register(function: Function) -> Function:
        flavour: Flavour = "async" if "._async." in function.__module__ else "sync"
        _laws[flavour].append(Law(number, function.__name__, flavour, frozenset(needs), function))
        return function

    return register


def registered(flavour: Flavour) -> list[Law]:
    """Return the laws that have been imported, in the order of their numbers."""
    return sorted(_laws[flavour], key=lambda law: law.number)
