"""Who is inside of which body: pools, frameworks, tasks, generators. Never two in one, and everybody gets a turn."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.pool import ThreadPool
from queue import SimpleQueue
from typing import Any

import pytest

import holdfast
from holdfast._async import engine as async_engine
from holdfast._sync import acquirable as sync_acquirable
from holdfast._sync import engine as sync_engine
from holdfast._sync import runtime as sync_runtime
from holdfast.errors import Deadlock
from holdfast.keeper import bodies, entries
from holdfast.keeper.bodies import Strand
from holdfast.keeper.entries import Entry
from holdfast.testing._sync.runtime import eventually, spawn

REQUESTS = 150
AT_ONCE = 12


@pytest.fixture
def locks(name: str) -> Iterator[holdfast.Client]:
    with holdfast.connect(f"memory://{name}") as client:
        yield client


@pytest.fixture
def by_thread_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of before: whoever runs in the thread (or task) that entered a body is inside of it."""

    def opened_here(strand: Strand) -> list[Entry]:
        return strand.bodies()

    monkeypatch.setattr(sync_engine, "enclosing", opened_here)
    monkeypatch.setattr(async_engine, "enclosing", opened_here)
    monkeypatch.setattr(bodies, "with_around", lambda frame: frame)
    monkeypatch.setattr(entries, "with_around", lambda frame: frame)


@pytest.fixture
def the_thread_is_the_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rule that this project had: whoever runs in the thread that acquired a lease holds it, and may neither
    wait for it nor find it busy.
    """

    def again(engine: Any, lock: Any, strand: Strand, entry: Any, endless: bool) -> Any:
        return None

    def acquire(engine: Any, lock: Any, *arguments: Any, **options: Any) -> Any:
        hold = engine.keeper.held_in(threading.get_ident(), lock.resource)
        if hold is not None:
            raise Deadlock(f"{lock.resource!r} is held by this thread")
        return plain(engine, lock, *arguments, **options)

    plain = sync_engine.Engine.acquire
    monkeypatch.setattr(sync_engine.Engine, "_again", again)
    monkeypatch.setattr(sync_engine.Engine, "acquire", acquire)


class Inside:
    """Counts who is in a body at the same time."""

    def __init__(self) -> None:
        self.now = self.most = self.ever = 0
        self._mutex = threading.Lock()

    @contextmanager
    def body(self) -> Iterator[None]:
        with self._mutex:
            self.now += 1
            self.ever += 1
            self.most = max(self.most, self.now)
        try:
            yield
        finally:
            with self._mutex:
                self.now -= 1


# -- FastAPI: a dependency with `yield` is entered in one thread of a pool, used in another and left in a third


def request(app: Any, path: str) -> Any:
    """Make a request without a server; return its status."""

    async def call() -> int:
        asked, status = False, 0

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await asyncio.sleep(3600)
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": path,
            "raw_path": path.encode(), "query_string": b"", "headers": [], "scheme": "http", "root_path": "",
            "client": ("test", 1), "server": ("test", 80),
        }  # fmt: skip
        try:
            await app(scope, receive, send)
        except Exception:
            return 500
        return status

    return call()


def serve(path: str, depends: Callable[[], Iterator[object]], inside: Inside) -> list[int]:
    """Serve many requests, some at a time, that need the dependency; return their statuses."""
    from fastapi import Depends, FastAPI

    app = FastAPI()

    @app.get(path)
    def endpoint(_: object = Depends(depends)) -> str:
        with inside.body():
            time.sleep(0.001)
        return "done"

    async def all_requests() -> list[int]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one() -> int:
            async with gate:
                return int(await request(app, path))

        return await asyncio.gather(*(one() for _ in range(REQUESTS)))

    return asyncio.run(all_requests())


DEPENDENCIES: dict[str, Callable[[holdfast.Client], Any]] = {
    "lock": lambda locks: locks.lock("r", timeout=30),
    "endless": lambda locks: locks.lock("r"),
    "reentrant": lambda locks: locks.lock("r", timeout=30, reentrant=True),
    "acquire": lambda locks: locks.lock("r", timeout=30),
    "writer": lambda locks: locks.rwlock("r", timeout=30).write(),
}


@pytest.mark.parametrize("kind", DEPENDENCIES)
def test_a_dependency_of_fastapi_lets_one_in_after_the_other(kind: str, locks: holdfast.Client) -> None:
    inside, lock = Inside(), DEPENDENCIES[kind](locks)

    def held() -> Iterator[object]:
        with lock.acquire() if kind == "acquire" else lock as lease:
            yield lease

    assert serve("/", held, inside) == [200] * REQUESTS
    assert (inside.ever, inside.most) == (REQUESTS, 1)
    assert locks.inspect() == []


@pytest.mark.control
@pytest.mark.usefixtures("by_thread_alone")
def test_a_dependency_of_fastapi_would_let_two_in_by_the_thread_alone(locks: holdfast.Client) -> None:
    inside, lock = Inside(), locks.lock("r", timeout=30, reentrant=True)

    def held() -> Iterator[object]:
        with lock as lease:
            yield lease

    serve("/", held, inside)
    assert inside.most > 1


@pytest.mark.control
@pytest.mark.usefixtures("the_thread_is_the_actor")
def test_a_dependency_of_fastapi_would_raise_where_the_thread_is_the_actor(locks: holdfast.Client) -> None:
    lock = locks.lock("r", timeout=30)

    def held() -> Iterator[object]:
        with lock as lease:
            yield lease

    assert 500 in serve("/", held, Inside())


@pytest.mark.parametrize(("kind", "most"), [("permit", 3), ("reader", AT_ONCE)])
def test_shares_are_left_in_other_threads_of_fastapi(kind: str, most: int, locks: holdfast.Client) -> None:
    shares = locks.semaphore("r", permits=3, timeout=30) if kind == "permit" else locks.rwlock("r", timeout=30).read()
    inside = Inside()

    def held() -> Iterator[object]:
        with shares as lease:
            yield lease

    assert serve("/", held, inside) == [200] * REQUESTS
    assert inside.most <= most
    assert locks.inspect() == []


@pytest.mark.control
def test_shares_would_be_mixed_up_if_an_exit_took_the_last_that_was_entered(
    locks: holdfast.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exit that does not know its own entry frees another's permit, under its body."""
    entered: list[Any] = []
    freed: list[bool] = []
    enter, leave = sync_acquirable.Acquirable._enter, sync_acquirable.Acquirable._leave

    def note(lock: Any, entry: Entry) -> Any:
        lease = enter(lock, entry)
        entered.append(entry)
        return lease

    def leave_the_last(lock: Any, entry: Entry, error: BaseException | None) -> Any:
        last = entered.pop()
        freed.append(last is not entry)
        return leave(lock, last, error)

    monkeypatch.setattr(sync_acquirable.Acquirable, "_enter", note)
    monkeypatch.setattr(sync_acquirable.Acquirable, "_leave", leave_the_last)
    permits = locks.semaphore("r", permits=3, timeout=30)

    def held() -> Iterator[object]:
        with permits as lease:
            yield lease

    serve("/", held, Inside())
    assert any(freed)


# -- Django: a thread per request


def serve_by_django(body: Callable[[], str], requests: int) -> list[str]:
    """Serve requests, some at a time, in a thread each."""
    import django
    from django.conf import settings
    from django.core.handlers.wsgi import WSGIHandler
    from django.core.servers import basehttp
    from django.http import HttpResponse
    from django.urls import path

    def view(request: object) -> Any:
        return HttpResponse(body())

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="test", MIDDLEWARE=[], LOGGING_CONFIG=None)
        django.setup()
    settings.ROOT_URLCONF = type("Urls", (), {"urlpatterns": [path("", view)]})  # a module is not needed
    with basehttp.ThreadedWSGIServer(("127.0.0.1", 0), basehttp.WSGIRequestHandler) as server:
        server.set_app(WSGIHandler())
        serving = spawn(server.serve_forever)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(lambda _: get(server.server_port), range(requests)))
        server.shutdown()
        serving.join()
    return found


def test_requests_of_a_threaded_django_server_take_turns(locks: holdfast.Client) -> None:
    inside, lock = Inside(), locks.lock("r", timeout=30, reentrant=True)

    def body() -> str:
        with lock as outer, lock as inner, inside.body():
            time.sleep(0.001)
            return str(outer.token == inner.token)

    assert serve_by_django(body, 60) == ["True"] * 60
    assert (inside.ever, inside.most) == (60, 1)


@pytest.mark.control
def test_requests_of_a_threaded_django_server_would_meet(locks: holdfast.Client) -> None:
    inside = Inside()

    def body() -> str:
        with inside.body():
            time.sleep(0.01)
        return ""

    serve_by_django(body, 60)
    assert inside.most > 1


def get(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


# -- pools of threads


@pytest.mark.parametrize("url", ["memory://", "sqlite:{}/locks.db"])
def test_of_many_jobs_that_try_exactly_one_gets_it(url: str, tmp_path: Any) -> None:
    with holdfast.connect(url.format(tmp_path)) as locks, ThreadPoolExecutor(8) as pool:
        lock = locks.lock("r")
        for _ in range(200):
            leases = [lease for lease in pool.map(lambda _: lock.try_acquire(), range(8)) if lease is not None]
            assert len(leases) == 1
            leases[0].release()


@pytest.mark.control
@pytest.mark.usefixtures("the_thread_is_the_actor")
def test_jobs_that_try_would_raise_where_the_thread_is_the_actor(locks: holdfast.Client) -> None:
    lock = locks.lock("r")
    with ThreadPoolExecutor(1) as pool:
        lease = pool.submit(lock.try_acquire).result()
        with pytest.raises(Deadlock):
            pool.submit(lock.try_acquire).result()
        assert lease is not None
        lease.release()


@pytest.mark.control
@pytest.mark.usefixtures("the_thread_is_the_actor")
def test_a_dispatcher_would_raise_where_the_thread_is_the_actor(locks: holdfast.Client) -> None:
    lease = locks.lock("r").try_acquire()
    with pytest.raises(Deadlock):
        locks.lock("r").acquire(timeout=0.1)
    assert lease is not None
    lease.release()


def test_a_dispatcher_hands_leases_to_workers(locks: holdfast.Client) -> None:
    """The next message for a name waits until the worker is done with the first, or is told that it is busy."""
    lock, inside = locks.lock("r"), Inside()

    def work(lease: holdfast.Lease) -> None:
        with lease, inside.body():
            time.sleep(0.001)

    with ThreadPoolExecutor(4) as pool:
        for number in range(40):
            if number % 2:
                while (lease := lock.try_acquire()) is None:
                    time.sleep(0.0005)
            else:
                lease = lock.acquire()
            pool.submit(work, lease)
    assert (inside.ever, inside.most) == (40, 1)
    assert locks.inspect() == []


def left_open_by_a_generator(lock: holdfast.Lock) -> Any:
    def standing() -> Iterator[holdfast.Lease]:
        with lock as lease:
            yield lease

    generator = standing()
    next(generator)
    return generator


def left_open_by_a_stack(lock: holdfast.Lock) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(lock)
    return stack


LEFT_OPEN = [left_open_by_a_generator, left_open_by_a_stack]


class Worker:
    """A thread that runs jobs from the one frame of its loop, at two places, as many programs have one."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        self._done: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, arguments = job
            self._done.put(function(*arguments) if arguments else function())

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self._jobs.put((function, arguments))
        return self._done.get(timeout=30)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()


@contextmanager
def executor() -> Iterator[Callable[..., Any]]:
    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


@contextmanager
def thread_pool() -> Iterator[Callable[..., Any]]:
    with ThreadPool(1) as pool:
        yield lambda function, *arguments: pool.apply(function, arguments)


@contextmanager
def worker() -> Iterator[Callable[..., Any]]:
    with contextlib.closing(Worker()) as own:
        yield own.do


POOLS = [executor, thread_pool, worker]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("leave_open", LEFT_OPEN)
def test_a_job_is_not_inside_of_what_an_earlier_one_left_open(
    leave_open: Any, pool: Any, locks: holdfast.Client
) -> None:
    lock = locks.lock("r", reentrant=True)
    with pool() as do:  # the same thread, and the same context
        body = do(leave_open, lock)
        assert do(lock.try_acquire) is None
        do(body.close)
        lease = do(lock.try_acquire)
        assert lease is not None
        lease.release()


@pytest.mark.parametrize("pool", POOLS)
def test_a_job_is_not_inside_of_what_a_pool_has_entered_itself(pool: Any, locks: holdfast.Client) -> None:
    """The job is `__enter__`, `next` or `enter_context`: the frame that calls it is the loop of the pool."""
    lock = locks.lock("r", reentrant=True)

    def standing() -> Iterator[holdfast.Lease]:
        with lock as lease:
            yield lease

    with pool() as do:
        manager, stack = held(lock), ExitStack()
        generator: Any = standing()
        ways: list[tuple[Any, tuple[Any, ...], Any]] = [
            (manager.__enter__, (), lambda: manager.__exit__(None, None, None)),
            (next, (generator,), generator.close),
            (stack.enter_context, (lock,), stack.close),
        ]
        for enter, arguments, leave in ways:
            lease = do(enter, *arguments)
            assert do(lock.try_acquire) is None
            lease.check()
            do(leave)
    assert locks.inspect() == []


@pytest.mark.control
@pytest.mark.usefixtures("by_thread_alone")
@pytest.mark.parametrize("leave_open", LEFT_OPEN)
def test_a_job_would_be_inside_by_the_thread_alone(leave_open: Any, locks: holdfast.Client) -> None:
    lock = locks.lock("r", reentrant=True)
    with ThreadPoolExecutor(1) as pool:
        body = pool.submit(leave_open, lock).result()
        lease = pool.submit(lock.try_acquire).result()
        assert lease is not None
        lease.release()
        body.close()


# -- a blocking client in an event loop


async def hold_across_an_await(lock: holdfast.Lock, inside: Inside, entered: asyncio.Event) -> None:
    with lock, inside.body():
        entered.set()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("timeout", [None, 20])
async def test_a_blocking_client_in_two_tasks_raises_with_advice(
    reentrant: bool, timeout: float | None, locks: holdfast.Client
) -> None:
    lock, inside, entered = locks.lock("r", reentrant=reentrant, timeout=timeout), Inside(), asyncio.Event()
    first = asyncio.create_task(hold_across_an_await(lock, inside, entered))
    await entered.wait()
    with pytest.raises(Deadlock, match=r"held in this thread .*use holdfast\.aio"):
        with lock:
            pytest.fail("two in one body")
    assert lock.try_acquire() is None
    await first
    assert inside.most == 1
    with lock:
        pass
    assert locks.inspect() == []


@pytest.mark.control
async def test_a_blocking_client_in_two_tasks_would_stop_the_loop(
    locks: holdfast.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast._sync.runtime.stops_a_loop", lambda: False)
    lock, inside, entered = locks.lock("r"), Inside(), asyncio.Event()
    first = asyncio.create_task(hold_across_an_await(lock, inside, entered))
    await entered.wait()
    with pytest.raises(holdfast.AcquireTimeout):  # for so long nothing else runs; without a timeout, for ever
        lock.acquire(timeout=0.2)
    assert inside.now == 1
    await first


async def test_a_bare_lease_of_the_loop_raises_too(locks: holdfast.Client) -> None:
    lease = locks.lock("r").acquire()
    with pytest.raises(Deadlock, match=r"use holdfast\.aio"):
        locks.lock("r").acquire(timeout=20)
    lease.release()


async def test_permits_that_are_free_are_taken_by_tasks_of_one_loop(locks: holdfast.Client) -> None:
    """Only a wait would stop the loop: what is granted at once is no trouble."""
    permits = locks.semaphore("r", permits=2)
    with permits, permits:
        with pytest.raises(Deadlock, match=r"use holdfast\.aio"):
            permits.acquire()
    assert locks.inspect() == []


async def test_a_loop_waits_for_other_threads(locks: holdfast.Client) -> None:
    """What a thread beside the loop holds will be given back: the blocking wait is bad manners, and no deadlock."""
    lease = spawn(locks.lock("r").acquire).join()
    threading.Timer(0.02, lease.release).start()
    with locks.lock("r"):
        pass


async def test_a_thread_that_a_body_waits_for_is_not_inside(locks: holdfast.Client) -> None:
    lock = locks.lock("r", reentrant=True)
    with lock:
        assert await asyncio.to_thread(lock.try_acquire) is None
        assert lock.try_acquire() is not None


@pytest.mark.control
@pytest.mark.usefixtures("by_thread_alone")
async def test_a_thread_that_a_body_waits_for_would_be_inside_by_its_context_alone(
    locks: holdfast.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """to_thread copies the context: who took that for the actor would let the thread in."""
    lock = locks.lock("r", reentrant=True)
    with lock as outer:
        here = sync_runtime.strand()
        monkeypatch.setattr(sync_runtime, "strand", lambda: here)
        monkeypatch.setattr(sync_runtime.Home, "strand", lambda home: here)
        inner = await asyncio.to_thread(lock.try_acquire)
        assert inner is not None
        assert inner.token == outer.token
        inner.release()


# -- asyncio


@pytest.mark.parametrize("reentrant", [False, True])
async def test_a_task_that_a_body_makes_is_not_inside(reentrant: bool, name: str) -> None:
    async with holdfast.aio.connect(f"memory://{name}") as locks:
        lock = locks.lock("r", reentrant=reentrant)
        async with lock:
            assert await asyncio.create_task(lock.try_acquire()) is None
            child = asyncio.create_task(lock.acquire())
            await asyncio.sleep(0)
            assert not child.done()
        await (await child).release()


async def test_async_context_managers_are_bodies(name: str) -> None:
    async with holdfast.aio.connect(f"memory://{name}") as locks:
        lock = locks.lock("r", reentrant=True, timeout=0)

        @contextlib.asynccontextmanager
        async def held() -> Any:
            async with lock as lease:
                yield lease

        async with held() as outer, lock as inner, contextlib.AsyncExitStack() as stack:
            assert (await stack.enter_async_context(lock)).token == inner.token == outer.token
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(held())  # entered by a call: it may be handed to somebody else
            assert await lock.try_acquire() is None
        assert await locks.inspect() == []


# -- what is inside


@contextmanager
def held(lock: holdfast.Lock) -> Iterator[holdfast.Lease]:
    with lock as lease:
        yield lease


@contextmanager
def held_through_another(lock: holdfast.Lock) -> Iterator[holdfast.Lease]:
    with held(lock) as lease:
        yield lease


@contextmanager
def held_by_a_stack(lock: holdfast.Lock) -> Iterator[holdfast.Lease]:
    with ExitStack() as stack:
        yield stack.enter_context(lock)


WAYS: list[Callable[[Any], Any]] = [
    lambda lock: lock,
    lambda lock: lock.acquire(),
    held,
    held_through_another,
    held_by_a_stack,
]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_called_inside_of_a_body_shares_its_hold(way: Any, locks: holdfast.Client) -> None:
    lock = locks.lock("r", reentrant=True, timeout=0)

    def deeper() -> int:
        with lock as inner:
            return inner.token

    with way(lock) as outer:
        assert deeper() == outer.token
        assert lock(lambda: deeper())() == outer.token
        with ExitStack() as stack:
            assert stack.enter_context(lock).token == outer.token
        outer.check()
    assert locks.inspect() == []


@pytest.mark.parametrize("way", WAYS)
def test_what_is_called_inside_of_a_body_would_wait_for_itself(way: Any, locks: holdfast.Client) -> None:
    with way(locks.lock("r")):
        with pytest.raises(Deadlock, match="this `with` block holds 'r'"):
            locks.lock("r").acquire()
        with pytest.raises(Deadlock, match="this `with` block holds 'r'"):
            locks.lock_all("q", "r").acquire()
        with pytest.raises(Deadlock, match="this `with` block holds 'r'"):
            locks.lock_all("r", "q", order="given").acquire()
        with pytest.raises(Deadlock, match="this `with` block holds 'r'"):
            locks.tree("r/s").acquire()
        assert [state.resource for state in locks.inspect()] == ["r"]


def test_the_body_of_a_loop_over_a_generator_is_not_inside(locks: holdfast.Client) -> None:
    """Nothing tells it from a scheduler, which resumes generators by turns: they must not share a hold."""
    lock = locks.lock("r", reentrant=True)

    def leases() -> Iterator[holdfast.Lease]:
        for _ in range(2):
            with lock as lease:
                yield lease

    for _ in leases():
        assert lock.try_acquire() is None
    assert locks.inspect() == []


def test_generators_that_are_resumed_by_turns_do_not_share_a_hold(locks: holdfast.Client) -> None:
    lock, inside = locks.lock("r", reentrant=True), Inside()

    def work() -> Iterator[None]:
        while (lease := lock.try_acquire()) is None:
            yield
        with lease, inside.body():
            yield

    generators = [work() for _ in range(3)]
    for _ in range(20):
        for generator in generators:
            next(generator, None)
    assert (inside.ever, inside.most) == (3, 1)


def test_a_stack_of_exits_is_no_body(locks: holdfast.Client) -> None:
    """It may be handed to another thread, and its leases with it."""
    lock = locks.lock("r", reentrant=True)
    with ExitStack() as stack:
        stack.enter_context(lock)
        assert lock.try_acquire() is None
        with pytest.raises(holdfast.AcquireTimeout):
            lock.acquire(timeout=0.01)
    assert locks.inspect() == []


def test_decorators_of_contextlib_are_bodies(locks: holdfast.Client) -> None:
    lock = locks.lock("r", reentrant=True, timeout=0)

    @held(lock)
    def recurse(depth: int) -> int:
        return recurse(depth - 1) + 1 if depth else 0

    assert recurse(5) == 5


def test_a_lease_that_came_from_another_thread_is_entered_here(locks: holdfast.Client) -> None:
    lock = locks.lock("r", reentrant=True, timeout=0)
    with spawn(lock.acquire).join() as outer, lock as inner:
        assert inner.token == outer.token


def test_after_an_interrupted_exit_nobody_is_inside(locks: holdfast.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The body is over, although its lease has not been given back yet."""
    lock = locks.lock("r", reentrant=True)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        with lock as first:
            patch.setattr(holdfast.Lease, "_end", interrupt)
    lease = lock.try_acquire()  # none, unless the keeper has given the first one back already
    assert lease is None or lease.token > first.token
    if lease is not None:
        lease.release()
    with holdfast.connect("memory://somebody else") as other, other.lock("a keeper looks", ttl=0.5):
        eventually(lambda: locks.inspect() == [])


# -- what bodies leave behind


def test_bodies_leave_nothing_behind(locks: holdfast.Client) -> None:
    from holdfast._sync import runtime

    lock = locks.lock("r", reentrant=True)
    for way in WAYS:
        with way(lock), lock:
            assert runtime.strand().opened
        assert not runtime.strand().opened


def test_a_frame_is_not_kept_by_what_was_left(locks: holdfast.Client) -> None:
    import weakref

    class Kept:
        pass

    def take() -> weakref.ref[Kept]:
        kept = Kept()
        with held(locks.lock("r")), ExitStack() as stack:
            stack.enter_context(locks.lock("s"))
        with pytest.raises(holdfast.AcquireTimeout), locks.lock("t"):
            with locks.lock("t", timeout=0):
                pass
        return weakref.ref(kept)

    assert take()() is None


# -- entered by hand


def test_an_exit_by_hand_that_cannot_be_told_leaves_nothing_that_is_renewed_for_ever(locks: holdfast.Client) -> None:
    permits = locks.semaphore("r", permits=3, ttl=0.5)
    for _ in range(2):
        spawn(permits.__enter__).join()  # nobody keeps the leases
    kept = spawn(permits.__enter__).join()
    with pytest.raises(holdfast.NotHeld, match="cannot tell which lease"):
        permits.__exit__(None, None, None)
    eventually(lambda: len(locks.inspect()[0].holders) == 1)
    kept.check()
    kept.release()
    assert locks.inspect() == []


def test_an_exit_that_was_looked_up_by_hand_belongs_to_its_own_lock(locks: holdfast.Client) -> None:
    one, two = locks.lock("one"), locks.lock("two")
    first = one.__enter__()
    leave_one = one.__exit__
    second = two.__enter__()
    leave_one(None, None, None)
    assert (first.state, second.state) == ("released", "held")
    two.__exit__(None, None, None)
    assert locks.inspect() == []


def test_exits_that_are_pushed_onto_a_stack_belong_to_their_own_locks(locks: holdfast.Client) -> None:
    one, two = locks.lock("one"), locks.lock("two")
    with ExitStack() as stack:
        one.__enter__()
        stack.push(one)
        two.__enter__()
        stack.push(two)
        assert [state.resource for state in locks.inspect()] == ["one", "two"]
    assert locks.inspect() == []


def test_after_an_exit_that_could_not_be_told_no_lease_is_taken_for_the_only_one(locks: holdfast.Client) -> None:
    permits = locks.semaphore("r", permits=3)
    kept = [spawn(permits.__enter__).join() for _ in range(2)]
    with pytest.raises(holdfast.NotHeld, match="cannot tell which lease"):
        permits.__exit__(None, None, None)
    third = spawn(permits.__enter__).join()
    with pytest.raises(holdfast.NotHeld, match="cannot tell which lease"):
        permits.__exit__(None, None, None)  # may be that of one of the first two
    third.check()
    for lease in (*kept, third):
        lease.release()


# -- a lease that is handed to the thread of a loop


async def test_a_lease_that_a_thread_has_acquired_and_the_loop_has_entered_is_held_by_the_loop(
    locks: holdfast.Client,
) -> None:
    lock = locks.lock("r")
    with await asyncio.to_thread(lock.acquire):
        with pytest.raises(Deadlock, match=r"use holdfast\.aio"):
            await asyncio.create_task(blocking(lock))


async def blocking(lock: holdfast.Lock) -> None:
    lock.acquire()
