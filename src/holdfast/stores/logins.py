"""Logins that a callable gives: passwords that change, a redis-py credential_provider.

It is somebody else's code. It may take long, hang or raise, and it must not hold up an event loop, or an acquire past
its timeout. So it runs in a thread of its own, and whoever needs a login waits for the answer as long as it can.

- *Several need one at once*: one call serves all that wait for it. A store that opens twenty connections does not ask a
  vault twenty times.
- *It takes longer than anybody waits*: the call goes on, and whoever asks meanwhile waits for that call. An answer that
  nobody has waited for is given to the next one. So a slow callable delays logins, and does not prevent them.
- *It hangs*: one thread stays behind, not one for each try.
- *Fork*: the thread is not in the child. A client makes its store anew there, and with it this object.
"""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread
from collections.abc import Callable

from ..core.urls import Login
from ..errors import StoreError, StoreUnavailable

Answer = Login | BaseException
Tell = Callable[[Answer], None]


class LoginSource:
    """One callable, and who waits for its answer. Its repr shows nothing of it."""

    __slots__ = ("_ask", "_left", "_mutex", "_running", "_waiting")

    def __init__(self, ask: Callable[[], Login]) -> None:
        self._ask = ask
        self._mutex = allocate_lock()
        self._waiting: list[Tell] = []
        self._running = False
        self._left: Answer | None = None  # that nobody waited for

    def request(self, tell: Tell) -> None:
        """Have the next answer told, mostly in another thread; `read_login` reads it."""
        with self._mutex:
            answer, self._left = self._left, None
            if answer is None:
                self._waiting.append(tell)
                if self._running:
                    return
                try:
                    start_new_thread(self._call, ())
                    self._running = True  # after it: an interrupt in between costs a call, not the source
                    return
                except RuntimeError:  # the interpreter is about to end: there are no more threads
                    self._waiting.remove(tell)
        tell(self._outcome() if answer is None else answer)

    def forget(self, tell: Tell) -> None:
        """Wait no more."""
        with self._mutex:
            if tell in self._waiting:
                self._waiting.remove(tell)

    def _call(self) -> None:
        answer = self._outcome()
        with self._mutex:
            self._running = False
            waiting, self._waiting = self._waiting, []
            if not waiting and isinstance(answer, tuple):
                self._left = answer
        for tell in waiting:
            tell(answer)

    def _outcome(self) -> Answer:
        try:
            return self._ask()
        except BaseException as error:  # SystemExit, too: it would end the thread, and nobody would hear of it
            return error


def read_login(answer: Answer) -> Login:
    """Return the login of an answer.

    Raises: StoreUnavailable if the callable has raised: it may work the next time. StoreError if it returned what is
    not a password. The text of the cause is not repeated, for it may hold a secret.
    """
    if isinstance(answer, tuple):
        return answer
    if isinstance(answer, StoreError):
        raise type(answer)(str(answer))
    raise StoreUnavailable(f"the callable that gives the password has raised {type(answer).__name__}") from answer


def no_login(seconds: float) -> StoreUnavailable:
    """Return what a callable that takes too long means to the caller."""
    return StoreUnavailable(
        f"the callable that gives the password did not return within {seconds:.3g} s; it is waited for the next time"
    )
