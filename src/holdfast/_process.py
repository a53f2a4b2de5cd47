"""All living engines and keepers of this process: what a fork and the end of the interpreter do to them."""

from __future__ import annotations

import atexit
import os
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING

from ._clock import SystemClock
from ._fork import Turn, at_fork
from ._living import Living
from .keeper.signals import Signal
from .observe.log import logger

if TYPE_CHECKING:
    from ._async.engine import Engine as AsyncEngine
    from ._sync.engine import Engine
    from .keeper.keeper import Keeper

_EXIT_SECONDS = 2.0
_WITHDRAW_SECONDS = 1.0  # of those, for daemon threads to withdraw what they wait for

_engines: Living[Engine | AsyncEngine] = Living()
_keepers: Living[Keeper] = Living()


def remember(engine: Engine | AsyncEngine) -> None:
    """Note a client's engine: it goes on in a forked child, and takes nothing more when the interpreter ends."""
    _engines.add(engine)


def remember_keeper(keeper: Keeper) -> None:
    """Note a keeper: leases may outlive their client, and a fork must reach them, too."""
    _keepers.add(keeper)


def _disown_leases() -> None:
    for keeper in _keepers:
        keeper.inherited = True


def _begin_anew() -> None:
    for engine in _engines:
        try:
            engine.begin()
        except Exception:  # one that cannot begin must not keep the others from it
            engine.closing = engine.refuses = True
            logger.exception("the client of %s cannot be used in this forked child", engine.name)


def release_on_sigterm() -> None:
    """Release what is held, and withdraw what waits, when this process is told to end by SIGTERM; then end as before.

    Opt-in, for SIGTERM ends a process without a trace by default, and its leases stay taken for their ttl. All
    clients are closed, within 2 s, and then the handler that was there before is called; if there was none, the
    process dies of the signal (number 1 of a container, which cannot, exits with status 143). A program that
    ignores SIGTERM goes on ignoring it. Call it in the main thread, after whatever else sets a handler. A program
    that wants to finish its work first sets a flag in a handler of its own, and calls `client.drain()` where it
    finds it set: a body cannot end while a handler runs on top of it.

    Raises: ValueError outside of the main thread.
    """
    import signal

    before = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_IGN or getattr(before, "_of_holdfast", False):
        return

    def release(number: int, frame: FrameType | None) -> None:
        _at_exit()
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            if os.getpid() == 1:  # of a container: the kernel spares it
                sys.exit(128 + number)

    release._of_holdfast = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGTERM, release)


def _at_exit() -> None:
    clock = SystemClock()
    until = clock.now() + _EXIT_SECONDS
    engines = [engine for engine in _engines if not engine.closing]
    for engine in engines:
        engine.stop()  # daemon threads that wait must not take what is released now
    threads = [engine for engine in engines if engine.flavour == "sync"]  # no loop runs any more
    while any(engine.others_under_way() for engine in threads) and clock.now() < until - _WITHDRAW_SECONDS:
        time.sleep(0.001)
    # Keepers, not clients: a lease may be held whose client nobody refers to any more.
    keepers = [keeper for keeper in _keepers if not keeper.ended and not keeper.inherited]
    ends = [(keeper, Signal()) for keeper in keepers]
    cut_off = {engine.keeper: engine.cut_off() for engine in engines}
    for keeper, done in ends:  # all at once: one that hangs costs no other
        keeper.end(until, done, cut_off.get(keeper, ()))
    for keeper, done in ends:
        if done.wait(clock, until):
            keeper.join_teller(until)


at_fork(Turn.LEASES, in_child=_disown_leases)
at_fork(Turn.CLIENTS, in_child=_begin_anew)
atexit.register(_at_exit)
