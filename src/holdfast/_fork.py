"""One hook for forks, in one order: whatever must not go through a fork as it is registers here.

Before the fork, and again after it in the parent, stores let go of what a child must not inherit. In the child the
order matters: leases are disowned first, so that nothing that runs later takes one for live; then copies of connections
are closed or set aside; then the thread is told that it is inside of nothing; then clients begin anew, on clean ground.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import IntEnum


class Turn(IntEnum):
    """When it is whose turn in the child; before the fork the order is the opposite one."""

    LEASES = 1
    CONNECTIONS = 2
    STRANDS = 3
    CLIENTS = 4


Hook = Callable[[], None]
_hooks: dict[str, list[tuple[Turn, Hook]]] = {"before": [], "in_parent": [], "in_child": []}


def at_fork(
    turn: Turn, *, before: Hook | None = None, in_parent: Hook | None = None, in_child: Hook | None = None
) -> None:
    """Call these around every fork that Python sees, when it is their turn."""
    for moment, hook in (("before", before), ("in_parent", in_parent), ("in_child", in_child)):
        if hook is not None:
            _hooks[moment].append((turn, hook))
            _hooks[moment].sort(key=lambda entry: entry[0], reverse=moment == "before")


def _run(moment: str) -> None:
    for _, hook in tuple(_hooks[moment]):
        hook()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _run("before"),
        after_in_parent=lambda: _run("in_parent"),
        after_in_child=lambda: _run("in_child"),
    )
