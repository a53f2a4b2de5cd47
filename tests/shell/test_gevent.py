"""gevent, which makes greenlets of the keeper's threads: it works, and says once what is not promised then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shell.script import run

pytest.importorskip("gevent")


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_leases_are_kept_by_greenlets_and_one_warning_says_so(store: str, tmp_path: Path) -> None:
    url = "memory://" if store == "memory" else f"sqlite://{tmp_path}/locks.db"
    out, err = run(
        """
        import gevent.monkey
        gevent.monkey.patch_all()

        import gevent, logging, sys, time
        import holdfast

        logging.basicConfig(format="%(levelname)s %(message)s")
        seen = []

        def work(number):
            with locks.lock("shared", timeout=10):
                seen.append(number)

        with holdfast.connect(sys.argv[1]) as locks:
            with locks.lock("r", ttl=0.6) as lease:
                gevent.sleep(0.8)  # longer than the ttl: a greenlet renews
                print(lease.state)
            gevent.joinall([gevent.spawn(work, number) for number in range(10)])
            lease = locks.lock("r", ttl=0.5).acquire()
            until = time.monotonic() + 0.6
            while time.monotonic() < until:
                pass  # nobody else runs
            print(lease.state)
            assert not locks.inspect("shared")
        with holdfast.connect(sys.argv[1]) as locks, locks.lock("r"):  # another keeper: it says nothing again
            gevent.sleep(0)
        assert len(seen) == 10
        """,
        url,
    )
    assert out.split() == ["held", "lost"]
    lines = err.splitlines()
    (warning,) = (line for line in lines if line.startswith("WARNING"))
    assert "gevent has replaced threads by greenlets: a greenlet that does not yield for longer than a lease" in warning
    assert len([line for line in lines if line.startswith("ERROR lease on 'r'")]) == 1
    assert len(lines) == 2


def test_gevent_that_was_not_asked_to_replace_anything_is_no_reason_to_warn() -> None:
    _, err = run(
        """
        import gevent.monkey
        import holdfast

        with holdfast.connect("memory://") as locks, locks.lock("r"):
            pass
        """
    )
    assert err == ""
