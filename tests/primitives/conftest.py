"""Every primitive is tried on every store, in both flavours, on a driven clock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that no other test uses."""
    return f"memory://{os.urandom(8).hex()}" if request.param == "memory" else f"sqlite://{tmp_path}/locks.db"
