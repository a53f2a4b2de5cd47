"""The nodes of a Redlock: commands to all of them at once, and which of them are silent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from ...._async import runtime
from ...._clock import SystemClock
from ....core.ballot import majority
from ....errors import StoreError, StoreUnavailable
from ....observe.log import logger
from ...redis._async.transport import Connection
from ...redis.config import Found, assess, questions, unanswered
from ...redis.script import Script
from ...redis.wire import Access, Command, Endpoint, ReplyError, explain
from ..shared import Shared
from .transport import Panel

_REAL = SystemClock()
_SHARE = 2  # rounds fit into an io_timeout: one that is not won is followed by another, which gives votes back
_PROBE_LEAST, _PROBE_MOST = 0.01, 1.0
_IDLE = 10.0

Enough = Callable[[Sequence[Any]], bool]


def all_of_them(replies: Sequence[Any]) -> bool:
    """Wait for every node that is asked."""
    return False


class Nodes:
    """All nodes. One that did not answer is silent: nobody waits for it until it has answered in the background."""

    def __init__(
        self,
        nodes: Sequence[tuple[Endpoint, Access]],
        trusted: bool,
        io_timeout: float,
        note_config: Callable[[Endpoint, Found], None],
        release: Script,
        shared: Shared,
    ) -> None:
        self.all = nodes
        self.needed = majority(len(nodes))
        self.timeout = io_timeout / _SHARE
        self._trusted = trusted
        self._note_config = note_config  # takes what was found at a node on its first use
        self._release = release  # what every node has to run in the end, also one that is away
        self._panel = Panel(nodes, self.timeout, self._lost)
        self._mutex = shared.mutex
        self._silent = shared.silent
        self._troubles = shared.troubles
        self._owed = shared.owed
        self._checked = shared.checked
        self._probed = shared.probed
        self._prober: runtime.Activity | None = None
        self._used = 0.0  # when somebody asked last
        self._stop = runtime.Signal()

    @property
    def subscription_node(self) -> int:
        """The node at which clients are told who can go: the same one for all of them, while it answers."""
        return next((at for at in range(len(self.all)) if at not in self._silent), 0)

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        *args: str | int,
        enough: Enough = all_of_them,
        limit: float | None = None,
        everyone: bool = False,
    ) -> list[Any]:
        """Run a script on the nodes; None stands for one that did not answer, or was not waited for.

        `everyone`: also on those that have not answered lately. An event loop finds out whether they do again, and that
        may be blocked.
        """
        if not self._checked:
            await self.check_configs()
        first: Command = ("EVALSHA", script.sha, len(keys), *keys, *args)
        replies = await self._ask([first] * len(self.all), enough, limit, everyone)
        if any(isinstance(reply, ReplyError) and reply.code == "NOSCRIPT" for reply in replies):
            unknown = [isinstance(reply, ReplyError) and reply.code == "NOSCRIPT" for reply in replies]
            command: Command = ("EVAL", script.source, len(keys), *keys, *args)
            again = await self._ask([command if missing else None for missing in unknown], all_of_them, limit, everyone)
            replies = [new if missing else old for missing, old, new in zip(unknown, replies, again, strict=True)]
        return self.accepted(replies)

    async def ask(self, commands: Sequence[Command | None]) -> list[Any]:
        """Send each node its own command; None stands for one that did not answer."""
        return self.accepted(await self._ask(commands, all_of_them))

    async def _ask(
        self, commands: Sequence[Command | None], enough: Enough, limit: float | None = None, everyone: bool = False
    ) -> list[Any]:
        """Ask all nodes that are not silent. If a majority is silent, ask all: there is nothing to lose then."""
        if self._silent:
            self._used = monotonic()
            self._tend()
            with self._mutex:
                if not everyone and len(self.all) - len(self._silent) >= self.needed:
                    for at in self._silent:
                        self._owe(at, commands[at])  # under the same mutex: it must not come back in between
                    commands = [None if at in self._silent else command for at, command in enumerate(commands)]
        seconds = self.timeout if limit is None else min(limit, self.timeout)
        replies = await self._panel.ask(commands, enough, monotonic() + seconds)
        for at, reply in enumerate(replies):
            if isinstance(reply, StoreError):
                self._mark_silent(at, reply)
                replies[at] = None
        return replies

    def accepted(self, replies: list[Any]) -> list[Any]:
        """Return the replies without refusals, which are told once."""
        for at, reply in enumerate(replies):
            if isinstance(reply, ReplyError):
                self.doubt(at, explain(reply, self.all[at][0]))
                replies[at] = None
            elif reply is not None and self._troubles:
                self._troubles.pop(at, None)
        return replies

    def doubt(self, at: int, error: StoreError) -> None:
        """Note what a node that answers has refused."""
        if str(self._troubles.get(at)) != str(error):
            logger.warning("a node of the Redlock takes no part: %s", error)
        self._troubles[at] = error

    async def check_configs(self) -> None:
        """Check the configuration of every node that answers.

        Raises: StoreError if one cannot be used; StoreUnavailable if a majority is silent.
        """
        asked = [await self._ask([question] * len(self.all), all_of_them) for question in questions(self._trusted)]
        for at, replies in enumerate(zip(*asked, strict=True)):
            if None not in replies:
                self._take_in(at, replies)
        if len(self._checked) < self.needed:
            raise self.unavailable(len(self._checked))

    def _owe(self, at: int, command: Command | None) -> bool:
        """Have a node run a release when it answers again: that harms nobody, however late it is."""
        if command is None or command[1:2] not in ((self._release.sha,), (self._release.source,)):
            return False
        self._owed[at].append(("EVAL", self._release.source, *command[2:]))
        return True

    def _lost(self, at: int, command: Command) -> None:
        """Take note of a command whose connection has ended without an answer; maybe nobody waited for it."""
        if self._owe(at, command):
            self._mark_silent(at, StoreUnavailable(f"Redis at {self.all[at][0]} did not confirm a release"))

    def unavailable(self, answered: int) -> StoreError:
        """Return what to raise when fewer than a majority answered."""
        causes = self._silent | self._troubles
        said = f"{answered} of {len(self.all)} nodes answered, and {self.needed} are needed"
        text = said + "".join(f"; {error}" for error in causes.values())
        hopeless = sum(not isinstance(error, StoreUnavailable) for error in causes.values())
        return (StoreError if len(self.all) - hopeless < self.needed else StoreUnavailable)(text)

    async def close(self) -> None:
        """Close all connections, and end the prober."""
        self._stop.set()
        if self._prober is not None:
            await self._prober.join(2 * self.timeout)
        await self._panel.close()

    def _take_in(self, at: int, replies: Sequence[Any]) -> None:
        endpoint = self.all[at][0]
        if (error := unanswered(endpoint, replies)) is not None:
            return self._mark_silent(at, error)
        self._note_config(endpoint, assess(endpoint, replies, self._trusted))
        self._checked.add(at)

    def _mark_silent(self, at: int, error: StoreError) -> None:
        if self._stop.is_set():  # connections end because this client is closed
            return
        with self._mutex:
            known = at in self._silent
            self._silent[at] = error
        self._used = monotonic()
        self._tend()
        if not known:
            logger.warning("a node of the Redlock is left out until it answers again: %s", error)

    def _tend(self) -> None:
        """Make sure that the silent nodes are probed, as long as the others are in use."""
        with self._mutex:
            if not self._stop.is_set() and (self._prober is None or self._prober.over):
                self._prober = runtime.start(self._probe, "holdfast-redlock-probe")

    async def _probe(self) -> None:
        pause = _PROBE_LEAST
        while not self._stop.is_set():
            for at in list(self._silent):
                if self._stop.is_set():
                    return
                if not self._probed[at].acquire(False):
                    continue  # the other side of this client does
                try:
                    await self._try(at)
                except (StoreError, ReplyError):
                    pass
                except Exception:
                    logger.exception("the check of a silent node failed")
                finally:
                    self._probed[at].release()
            with self._mutex:
                # Also when nobody uses this client any more: it may have been forgotten without a close.
                if not self._silent or monotonic() > self._used + _IDLE:
                    self._prober = None  # whoever finds a silent node after this starts a new one
                    return
            await self._stop.wait(_REAL, _REAL.now() + pause)
            pause = min(_PROBE_MOST, pause * 2)

    async def _try(self, at: int) -> None:
        """Let a node take part again if it answers, has a configuration that is known, and has run what it is owed."""
        connection = Connection(*self.all[at], self.timeout)
        try:
            await connection.call("PING")
            if at not in self._checked:
                self._take_in(at, [await _answer(connection, question) for question in questions(self._trusted)])
                if at not in self._checked:
                    return
            while True:
                with self._mutex:
                    if not self._owed[at]:
                        self._silent.pop(at, None)
                        return
                await _settle(connection, self._owed[at][0])
                self._owed[at].popleft()  # not before: the connection may break
        finally:
            await connection.close()


async def _settle(connection: Connection, release: Command) -> None:
    try:
        await connection.call(*release)
    except ReplyError as error:
        if error.code not in ("FORMAT", "WRONGTYPE"):  # else there is nothing of ours left to release
            raise


async def _answer(connection: Connection, question: Command) -> Any:
    try:
        return await connection.call(*question)
    except ReplyError as error:
        return error
