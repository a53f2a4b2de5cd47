"""The parts of the demo: the fence in front of the books, the verdict, and what is shown on narrow terminals."""

from __future__ import annotations

import contextlib
import io
import signal

import pytest
from rich.console import Console

import holdfast
from holdfast.cli.demo.crew import Crew, DemoFailed
from holdfast.cli.demo.ledger import Books, Ledger
from holdfast.cli.demo.messages import Kind, Order, Report, encode, read_order, read_report
from holdfast.cli.demo.outcome import Seen, faults
from holdfast.cli.demo.plan import TTL, Plan, payments, work_seconds
from holdfast.cli.demo.show import Show

PLAN = Plan(workers=3, batches=4, fenced=True)


def fence(token: int, batch: int = 1) -> holdfast.Fence:
    return holdfast.Fence("default", f"batch:{batch}", token)


@pytest.fixture
def ledger(tmp_path):
    with contextlib.closing(Ledger(tmp_path / "ledger.db", fenced=True)) as made:
        made.create(PLAN)
        yield made


@pytest.fixture
def unfenced(ledger, tmp_path):
    with contextlib.closing(Ledger(tmp_path / "ledger.db", fenced=False)) as made:
        yield made


def test_a_stale_write_is_refused_and_changes_nothing(ledger):
    ledger.settle(1, fence(20), "new")
    before = ledger.books()
    with pytest.raises(holdfast.StaleToken, match=r"token 10 for 'batch:1' is stale: 20 was here before"):
        ledger.settle(1, fence(10), "old")
    assert ledger.books() == before
    assert (before.settled, before.twice, before.missing) == (1, (), 0)


def test_the_new_holder_shuts_the_old_one_out_before_it_reads(ledger):
    assert not ledger.is_settled(1, fence(20))
    with pytest.raises(holdfast.StaleToken):
        ledger.settle(1, fence(10), "old")


def test_one_holder_may_enter_many_times(ledger):
    assert not ledger.is_settled(1, fence(10))
    ledger.settle(1, fence(10), "w")
    assert ledger.is_settled(1, fence(10))


def test_a_missing_fence_is_not_taken_for_a_stale_token(ledger):
    with pytest.raises(LookupError, match="batch 99 has no row"):
        ledger.settle(99, fence(10, batch=99), "w")


@pytest.mark.parametrize("verb", ["is_settled", "settle"])
def test_the_fence_is_entered_by_the_first_statement(ledger, verb):
    statements: list[str] = []
    ledger._connection.set_trace_callback(statements.append)
    getattr(ledger, verb)(1, fence(10), *(["w"] if verb == "settle" else []))
    assert statements[0].startswith("BEGIN")
    assert statements[1].startswith("UPDATE fences SET token = 10 WHERE batch = 1 AND token <= 10")


def test_without_the_fence_the_books_do_not_balance(unfenced):
    unfenced.settle(1, fence(20), "new")
    unfenced.settle(1, fence(10), "old")
    books = unfenced.books()
    assert books.twice == (1,)
    assert books.missing == sum(payment.cents for payment in payments(1))


def test_the_plan_has_what_the_demo_shows():
    plan = Plan(workers=4, batches=40, fenced=True)
    assert plan.freezes_at in plan.numbers
    assert any(work_seconds(batch) > TTL for batch in plan.numbers)  # the keeper is needed
    assert any(plan.is_delivered_twice(batch) for batch in plan.numbers)
    for workers in range(2, 17):
        for batches in (2, 3, 40):
            odd = Plan(workers, batches, True)
            assert odd.freezes_at in odd.numbers
            assert not odd.is_delivered_twice(odd.freezes_at)


def test_messages_survive_the_pipe():
    order, report = Order(7, freeze=True), Report(Kind.REFUSED, 7, 2**52, 1.5, 3, True, "é\n")
    assert encode(report).count(b"\n") == 1
    assert (read_order(encode(order)), read_report(encode(report))) == (order, report)


SEEN = Seen("worker-1", 10, "worker-2", 20, resumed=True, frozen_refused=True, lease_knew=True, refused=1)
BOOKS = Books(settled=4, twice=(), opened=1000, due=400, left=600)
UNSAFE = PLAN._replace(fenced=False)
DOUBLE = BOOKS._replace(twice=(PLAN.freezes_at,), left=500)


def test_what_should_happen_is_no_fault():
    assert faults(PLAN, SEEN, BOOKS) == []
    assert faults(UNSAFE, SEEN, DOUBLE) == []


@pytest.mark.parametrize(
    ("plan", "changed", "books", "fact"),
    [
        (PLAN, {}, BOOKS._replace(settled=3), "3 of 4 batches are settled"),
        (PLAN, {}, BOOKS._replace(twice=(2,)), "settled twice: 2"),
        (PLAN, {}, BOOKS._replace(left=599), "the books do not balance: 1 cents are missing"),
        (PLAN, {"frozen_refused": False}, BOOKS, "the stale write was not refused"),
        (PLAN, {"resumed": False}, BOOKS, "no worker was frozen and resumed"),
        (PLAN, {"successor_token": 10}, BOOKS, "the tokens do not rise: 10, then 10"),
        (PLAN, {"lease_knew": False}, BOOKS, "the lease of the frozen worker did not know that it was lost"),
        (UNSAFE, {}, DOUBLE._replace(twice=(1,)), "should have been settled twice, and was not"),
        (UNSAFE, {}, DOUBLE._replace(left=600), "money should be missing, and is not"),
    ],
)
def test_every_other_outcome_is_a_fault(plan, changed, books, fact):
    (found,) = faults(plan, Seen(**{**vars(SEEN), **changed}), books)
    assert fact in found


def values_of_table(shown: str) -> str:
    """Return the second column without its line breaks."""
    cells = [line.split("│")[2] for line in shown.splitlines() if line.count("│") == 3]
    return "".join("".join(cells).split())


@pytest.mark.parametrize("width", [16, 24, 40, 120])
@pytest.mark.parametrize("terminal", [True, False])
def test_narrow_terminals_show_everything(width, terminal):
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=terminal, no_color=True, highlight=False, legacy_windows=False
    )
    with Show(console, PLAN) as show:
        show.opening("sqlite:///tmp/x/locks.db")
        show.tell("a part of the story")
        show.progress(4)
    told = out.getvalue()
    assert ("\x1b" in told) is terminal
    out.truncate(0)
    out.seek(0)
    seen = Seen(**{**vars(SEEN), "successor_token": 1794792814287398})
    show.table(seen, BOOKS)
    show.closing(seen)
    values = values_of_table(out.getvalue())
    assert "4of4" in values
    assert "1794792814287398" in values


def test_a_worker_that_is_killed_is_told(tmp_path):
    with Crew(tmp_path) as crew:
        crew.hire("worker-1", [f"sqlite://{tmp_path}/locks.db", str(tmp_path / "ledger.db"), "fenced"])
        hand, report = crew.hear(20)
        assert report.kind is Kind.READY
        hand.process.send_signal(signal.SIGKILL)
        with pytest.raises(DemoFailed, match="worker-1 ended with status -9"):
            crew.hear(20)


def test_a_worker_that_cannot_start_says_why(tmp_path):
    with Crew(tmp_path) as crew:
        crew.hire("worker-1", ["nonsense://", str(tmp_path / "ledger.db"), "fenced"])
        with pytest.raises(
            DemoFailed, match="worker-1 ended with status 1: ValueError: no store is known for the scheme"
        ):
            crew.hear(20)


def test_silence_is_told(tmp_path):
    with Crew(tmp_path) as crew, pytest.raises(DemoFailed, match=r"no worker has reported for 0\.01 s"):
        crew.hear(0.01)
