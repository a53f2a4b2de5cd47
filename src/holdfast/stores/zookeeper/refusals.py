"""What ZooKeeper's error codes mean to whoever asked."""

from __future__ import annotations

from ...errors import StoreError, StoreUnavailable
from . import wire
from .wire import Code


def explain(code: int) -> str:
    """Return the name of an error code."""
    return wire.NAMES.get(code) or (Code(code).name.lower() if code in Code.__members__.values() else f"error {code}")


def refusal(code: int, path: str) -> StoreError:
    """Return what to raise when ZooKeeper refuses a request."""
    if code == Code.NO_AUTH:
        return StoreError(
            f"ZooKeeper refuses this client at {path} (NoAuth); its login needs all rights below /holdfast"
        )
    if code in (Code.NO_NODE, Code.NODE_EXISTS, Code.BAD_VERSION, Code.NOT_EMPTY):
        return StoreUnavailable(f"ZooKeeper's nodes change too fast at {path}: {explain(code)}")
    if code == -125:
        return StoreError(f"ZooKeeper's quota is used up at {path}")
    if code in (-8, -114):
        return StoreError(f"ZooKeeper refuses {path}: {explain(code)}")
    return StoreUnavailable(f"ZooKeeper could not do it at {path}: {explain(code)}")
