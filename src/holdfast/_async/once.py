"""once: one result is recorded for a key, and whoever calls later gets it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast

from ..core.keys import parse_template
from ..core.names import check_flag, check_keep, check_name
from ..core.outcome import FORGOTTEN, Outcome, outcome_of, read_outcome
from ..core.timing import backoff
from ..errors import LeaseLost, StaleToken, StoreUnavailable, Unsupported
from ..observe.log import logger
from . import runtime
from .acquirable import wants_lease
from .lease import Lease
from .lock import Lock, LockOptions
from .register import Register

if TYPE_CHECKING:
    from .engine import Engine

_FORGET = 1.0  # seconds after which the store may drop what marks a result as forgotten

P = ParamSpec("P")
T = TypeVar("T")


class Once:
    """Describes work that is done once for each name, made by `Client.once`; decorates the function that does it."""

    def __init__(
        self,
        engine: Engine,
        template: str | None,
        key: Callable[..., str] | None,
        keep: float | None,
        wait: bool,
        **options: Unpack[LockOptions],
    ) -> None:
        if (template is None) is (key is None):
            raise ValueError("once needs a template like 'invoice:{number}', or key=, and not both")
        if key is not None and not callable(key):
            raise ValueError(f"key is called with the arguments and returns the name; {key!r} cannot be called")
        if not engine.capabilities.register:
            raise Unsupported(f"{engine.capabilities.store} cannot record results: its capabilities lack `register`")
        self._engine = engine
        self._template = template
        self._key = key
        self._keep = check_keep(keep)
        self._wait = check_flag(wait, "wait")
        self._options = options
        Lock(engine, "once", **options)  # checks them now

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Decorate a function: its result is recorded, and given to every later call.

        function: a coroutine function for an asyncio client, a plain function otherwise. If it has a keyword-only
            parameter `lease`, it gets the lease there.

        The parameter has to be keyword-only. Write `*, lease: Lease | None = None` where types are checked: callers do
        not pass it, and without a default a type checker would demand it from them. It is never None in the body.

        Raises: TypeError for what cannot run under a lease, or takes `lease` by position; ValueError for a template
        that does not fit it.
        """
        runtime.check_function(function, f"once({self._template or self._key!r})")
        name_of = self._namer(function)
        pass_lease = wants_lease(function)

        @functools.wraps(function)
        async def once(*args: P.args, **kwargs: P.kwargs) -> T:
            async def run(lease: Lease) -> T:
                if pass_lease:
                    kwargs["lease"] = lease
                return await function(*args, **kwargs)

            return cast(T, await self._run(check_name(name_of(*args, **kwargs)), run))

        return once

    def _namer(self, function: Callable[..., Any]) -> Callable[..., str]:
        """Return what makes the name from the arguments of a call."""
        if self._key is not None:
            return self._key
        signature = inspect.signature(function)
        if wants_lease(function):  # we pass it, the caller does not
            parameters = [p for p in signature.parameters.values() if p.name != "lease"]
            signature = signature.replace(parameters=parameters)
        fixed = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        template = parse_template(self._template, fixed)

        def name_of(*args: Any, **kwargs: Any) -> str:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return template.fill(bound.arguments)

        return name_of

    async def forget(self, *args: Any, **kwargs: Any) -> bool:
        """Forget the result that is recorded for these arguments, so that the next call does the work again.

        args, kwargs: what the template names, as in `forget(number=7)`. With `key=`, the arguments of the call.

        Work that is under way is waited for as a call waits for it (`timeout`, `wait`), and its result is forgotten.
        Returns whether there was one.

        Raises: TypeError for arguments that do not make a name; AcquireTimeout; StoreUnavailable when the outcome is
        unknown; LeaseLost if the work was begun anew meanwhile.
        """
        lease = await self._take(check_name(self._name_to_forget(args, kwargs)))
        forgotten: bool | None = None
        try:
            async with lease:
                register = self._register(lease.resource)
                try:
                    # Through the fence: the result of a run that was paused past its lease is refused from here on.
                    found = read_outcome(await register.read(lease.fence), lease.resource) is not None
                    if found:
                        await register.write(FORGOTTEN, fence=lease.fence, keep=_FORGET)
                except StaleToken as stale:
                    raise self._overtaken(lease, "was not forgotten") from stale
                forgotten = found
        except LeaseLost:
            if forgotten is None:
                raise
        return bool(forgotten)

    def _name_to_forget(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if self._key is not None:
            return self._key(*args, **kwargs)
        template = parse_template(self._template)
        if args or kwargs.keys() != set(template.names):
            wanted = ", ".join(f"{name}=…" for name in template.names) or "nothing"
            raise TypeError(f"forget takes what {self._template!r} names, by keyword: {wanted}")
        return template.fill(kwargs)

    def _register(self, name: str) -> Register:
        return Register(self._engine, name, "once")

    async def _take(self, name: str) -> Lease:
        lock = Lock(self._engine, name, kind="once", **self._options)
        return await lock._take(lock.timeout if self._wait else 0)

    async def _run(self, name: str, run: Callable[[Lease], Awaitable[Any]]) -> Any:
        outcome = read_outcome(await self._register(name).read(), name)
        if outcome is not None:
            return outcome.result(name)
        lease = await self._take(name)
        try:
            async with lease:
                outcome = await self._enter(lease)
                if outcome is None:
                    outcome = await self._record(lease, outcome_of(await run(lease)))
        except LeaseLost:
            if outcome is None:
                raise
            # It was lost, but what is recorded is recorded: nobody newer had come.
        return outcome.result(name)

    async def _enter(self, lease: Lease) -> Outcome | None:
        """Read what is recorded, through the fence: nobody older can record a result from here on.

        Raises: LeaseLost if a newer run has begun and is not done yet.
        """
        try:
            return read_outcome(await self._register(lease.resource).read(lease.fence), lease.resource)
        except StaleToken as stale:
            return await self._newer(lease, "was not begun", stale)

    async def _record(self, lease: Lease, outcome: Outcome) -> Outcome:
        """Record the result; return what is recorded, which is another's if this run was overtaken.

        Raises: LeaseLost if it was overtaken by a run that is not done yet; StoreUnavailable if it is unknown.
        """
        register, clock = self._register(lease.resource), self._engine.clock
        failures = 0
        while True:
            try:
                await register.write(outcome.packed(), fence=lease.fence, keep=self._keep)
                return outcome
            except StaleToken as stale:
                recorded = await self._newer(lease, "was done in vain", stale)
                logger.warning(
                    "%r was done twice: token %d was paused past its lease, and the result of token %d is recorded",
                    lease.resource,
                    lease.token,
                    stale.newest,
                )
                return recorded
            except StoreUnavailable:
                # The work is done. Not to record it means to do it again: try as long as the lease keeps others away.
                if lease.lost:
                    raise
                await runtime.sleep(clock, clock.now() + backoff(failures))
                failures += 1

    async def _newer(self, lease: Lease, fact: str, stale: StaleToken) -> Outcome:
        """Return what a newer run has recorded.

        Raises: LeaseLost if it is not done yet.
        """
        outcome = read_outcome(await self._register(lease.resource).read(), lease.resource)
        if outcome is not None:
            return outcome
        raise self._overtaken(lease, fact) from stale

    def _overtaken(self, lease: Lease, fact: str) -> LeaseLost:
        return LeaseLost(
            f"{lease.resource!r} {fact}: its lease (token {lease.token}) was lost meanwhile, and another does it; "
            "call again for the result that is recorded",
            resource=lease.resource,
            owner=lease.owner,
            token=lease.token,
        )

    def __repr__(self) -> str:
        return f"<Once {self._template or self._key!r}>"
