"""One file a scenario. A new file here that defines `SCENARIO` is found by itself."""

import importlib
import pkgutil

from bench.model import Scenario


def names() -> list[str]:
    """List the scenarios without importing them."""
    return [module.name for module in pkgutil.iter_modules(__path__)]


def load(name: str) -> Scenario:
    """Import one scenario."""
    scenario = importlib.import_module(f"{__name__}.{name}").SCENARIO
    if not isinstance(scenario, Scenario):
        raise TypeError(f"bench/scenarios/{name}.py: SCENARIO is a {type(scenario).__name__}, not a Scenario")
    return scenario
