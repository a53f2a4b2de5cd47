"""`holdfast demo`, as people run it: what it shows with the fence, without it, and when it is interrupted."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.cli.kit import is_group_alive, read_table, run, start

pytestmark = pytest.mark.slow


def test_the_fence_refuses_the_frozen_worker(tmp_path):
    began = time.monotonic()
    status, out, err = run("demo", temporary=tmp_path)
    took = time.monotonic() - began
    assert (status, err) == (0, "")
    assert took < 30
    assert "\x1b" not in out

    rows = read_table(out)
    assert rows["batches settled"] == "40 of 40"
    assert rows["settled twice"] == "0"
    assert int(rows["stale writes refused"]) >= 1
    assert rows["missing in the books"] == "0.00"
    assert 0 < float(rows["longest wait"].removesuffix(" s")) < 10
    old, new = (int(value) for name, value in rows.items() if name.startswith("token of worker-"))
    assert old < new
    for part in ("is frozen (SIGSTOP)", "wakes up (SIGCONT)", "refused by the fence", "lease.lost is True"):
        assert part in out
    assert "settled 40 of 40" in out  # lines in place of the bar
    assert "docs/tutorial.md" in out
    assert list(tmp_path.iterdir()) == []


def test_without_the_fence_it_debits_twice(tmp_path):
    """The control: the same freeze does harm, so what refuses it above is the fence."""
    status, out, err = run("demo", "--unsafe", "--workers", "3", "--batches", "6", temporary=tmp_path)
    assert (status, err) == (0, "")
    rows = read_table(out)
    assert rows["batches settled"] == "6 of 6"
    assert int(rows["settled twice"]) >= 1
    assert rows["stale writes refused"] == "0"
    money = [
        float(rows[name].replace(",", ""))
        for name in ("in the accounts at the start", "paid for the settled batches", "in the accounts now")
    ]
    missing = float(rows["missing in the books"].replace(",", ""))
    assert missing > 0
    assert money[0] - money[1] - money[2] == pytest.approx(missing, abs=0.001)
    assert "debited twice" in out
    assert out.count("settled 6 of 6") == 1  # the second debit is no progress
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "to_all"),
    [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False)],
    ids=["Ctrl-C, which a terminal sends to all", "SIGINT", "SIGTERM"],
)
def test_an_interrupt_leaves_nothing_behind(number, to_all, tmp_path):
    process = start("demo", temporary=tmp_path)
    assert process.stdout is not None
    try:
        # Now one worker is stopped, and others work and wait.
        assert any("is frozen" in line for line in process.stdout)
        assert is_group_alive(process.pid)
        assert list(tmp_path.iterdir()) != []
        (os.killpg if to_all else os.kill)(process.pid, number)
        out, err = process.communicate(timeout=20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert (process.returncode, err) == (128 + number, "")
    assert "interrupted" in out
    assert not is_group_alive(process.pid)
    assert list(tmp_path.iterdir()) == []
