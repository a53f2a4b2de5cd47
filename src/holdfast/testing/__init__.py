"""What tests need: a clock to drive, the contract suite for stores, and pytest fixtures."""

from __future__ import annotations

from .clock import ManualClock

__all__ = ["ManualClock"]
