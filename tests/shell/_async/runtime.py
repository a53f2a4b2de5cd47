"""What the asyncio tests of the shell do otherwise than the blocking ones."""

from __future__ import annotations

import asyncio

from tests.shell import threads


def activities() -> list[str]:
    """Name what holdfast runs in the background on behalf of this test: threads and tasks."""
    tasks = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("holdfast-")]
    return sorted([*tasks, *threads.activities()])
