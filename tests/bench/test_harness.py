"""The bench's own arithmetic: a wrong verdict there would be believed."""

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from bench import report
from bench.contend import Hold, fairness, figures, handoffs, merge, overlaps, token_faults
from bench.harness import Contender, NotInstalled, Slice, calibrate, interleaved, peer, run_scenario
from bench.model import Budget, Outcome, Plan, Rule, Scenario, Series, judge
from bench.stats import jain, median_excess, median_ratio, quantile, summarise


def test_quantile_interpolates():
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([0, 10], 0.25) == 2.5
    assert quantile([7], 0.99) == 7
    assert quantile(range(101), 0.9) == pytest.approx(90)
    with pytest.raises(ValueError, match="no samples"):
        quantile([], 0.5)


def test_summary_is_median_with_the_middle_80_percent():
    summary = summarise(list(range(101)))
    assert (summary.median, summary.low, summary.high) == (50, 10, 90)


def test_ratio_survives_a_machine_that_slows_down():
    floor = [10.0, 10.0, 40.0, 40.0, 40.0]
    ours = [15.0, 15.0, 60.0, 60.0, 60.0]
    assert median_ratio(ours, floor) == 1.5
    assert median_excess(ours, floor) == 20
    with pytest.raises(ValueError, match="shorter"):
        median_ratio(ours, floor[1:])


def test_jain_index():
    assert jain([5, 5, 5, 5]) == 1
    assert jain([8, 0, 0, 0]) == 0.25
    assert jain([0, 0]) == 0


@pytest.mark.parametrize(
    ("rule", "to", "limit", "value", "ok"),
    [
        ("times", "floor", 1.6, 1.5, True),
        ("times", "floor", 1.4, 1.5, False),
        ("over", "floor", 10, 10, True),
        ("over", "floor", 9.9, 10, False),
        ("at most", "", 30, 30, True),
        ("at most", "", 29, 30, False),
        ("at least", "", 30, 30, True),
        ("at least", "", 31, 30, False),
        ("never over", "", 90, 90, True),
        ("never over", "", 30, 90, False),
    ],
)
def test_budget_rules(rule: Rule, to: str, limit: float, value: float, ok: bool):
    measured = {"ours": Series("ours", "µs", [30, 30, 90]), "floor": Series("floor", "µs", [20, 20, 60])}
    verdict = judge(Budget("ours", rule, limit, to), measured)
    assert (verdict.value, verdict.ok) == (value, ok)
    assert str(verdict) == ("ok" if ok else "MISSED")


@pytest.mark.parametrize("absent", ["ours", "floor"])
def test_what_was_not_measured_is_missed(absent: str):
    measured = {name: Series(name, "µs", [] if name == absent else [1.0]) for name in ("ours", "floor")}
    assert str(judge(Budget("ours", "times", 9, to="floor"), measured)) == "MISSED (not measured)"


def counting(name: str, log: list[str], seconds: float) -> Contender:
    @contextmanager
    def opened(directory: Path) -> Iterator[Slice]:
        assert directory.is_dir()

        def run(times: int) -> float:
            log.append(name)
            return seconds * times

        yield run
        log.append(f"{name} closed")

    return Contender(name, opened)


def absent(_: Path) -> Iterator[Slice]:
    peer("no_such_peer.module")
    yield calibrate_never


def calibrate_never(_: int) -> float:
    raise AssertionError("a missing peer was run")


@pytest.fixture
def _nothing_to_collect() -> Iterator[None]:
    """Leave what other tests have made to nobody: the harness collects garbage before every slice."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_nothing_to_collect")
def test_rounds_interleave_all_contenders_in_changing_order(tmp_path: Path):
    log: list[str] = []
    contenders = [counting("a", log, 1e-6), counting("b", log, 3e-6), Contender("c", contextmanager(absent))]
    series = interleaved(contenders, rounds=9, slice_seconds=1e-3)(Plan(tmp_path))
    assert [(one.name, len(one.samples), one.note) for one in series] == [
        ("a", 9, ""),
        ("b", 9, ""),
        ("c", 0, "not installed: no_such_peer"),
    ]
    assert series[0].samples == pytest.approx([1.0] * 9)
    assert series[1].samples == pytest.approx([3.0] * 9)
    assert set(log[-2:]) == {"a closed", "b closed"}
    slices = log[-20:-2]
    rounds = ["".join(slices[at : at + 2]) for at in range(0, 18, 2)]
    assert set(rounds) == {"ab", "ba"}


def test_peer_names_the_package():
    assert peer("json") is json
    with pytest.raises(NotInstalled, match="not installed: no_such_peer"):
        peer("no_such_peer.module")


def test_calibration_fills_a_slice():
    assert calibrate(lambda times: times * 0.001, 0.1) == 100
    assert calibrate(lambda times: times * 5.0, 0.1) == 1


def test_calibration_leaves_out_the_first_use_and_a_hiccup():
    extra = iter([0.5, 0.0, 0.3])
    assert calibrate(lambda times: times * 0.001 + next(extra, 0.0), 0.1) == 100


def test_an_error_fails_the_scenario_and_is_shown(tmp_path: Path):
    def measure(_: Plan) -> list[Series]:
        raise RuntimeError("the disk is full")

    outcome = run_scenario(Scenario("broken", "breaks", measure), Plan(tmp_path))
    assert not outcome.ok
    assert "the disk is full" in report.table(outcome)
    assert report.table(outcome).endswith("MISSED (error)")


def outcome() -> Outcome:
    series = [
        Series("floor", "µs", [10, 20]),
        Series("ours", "µs", [15, 30]),
        Series("gone", "µs", (), "not installed"),
    ]
    budgets = [Budget("ours", "times", 1.6, to="floor"), Budget("ours", "at most", 20)]
    scenario = Scenario("demo", "a demo", lambda _: series, budgets, "floor", {"disk": "none"})
    return Outcome(scenario, series, [judge(budget, {one.name: one for one in series}) for budget in budgets])


def test_table():
    assert report.table(outcome()).splitlines() == [
        "demo: a demo",
        "  disk: none",
        "",
        "       median    p10 – p90  unit           × floor  budget         found  verdict",
        "floor      15      11 – 19  µs                   1",
        "ours     22.5  16.5 – 28.5  µs                1.50  ≤ 1.6 × floor   1.50  ok",
        "                                                    ≤ 20            22.5  MISSED",
        "gone        –               not installed",
    ]


def test_json_has_every_round_and_says_what_was_missed():
    data = json.loads(json.dumps(report.as_json([outcome()], {"cpus": 2})))
    assert data["machine"] == {"cpus": 2}
    assert data["ok"] is False
    demo = data["scenarios"]["demo"]
    assert demo["series"][1] == {"name": "ours", "unit": "µs", "note": "", "rounds": [15, 30]}
    assert [one["verdict"] for one in demo["budgets"]] == ["ok", "MISSED"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0123, "0.012"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346")],
)
def test_numbers_are_short(value: float, text: str):
    assert report.number(value) == text


def hold(process: int, token: int, got: int, leaving: int) -> Hold:
    return Hold(process, token, got - 5, got, leaving)


GOOD = [hold(0, 1, 10, 20), hold(1, 2, 30, 40), hold(0, 5, 41, 50)]


def test_a_good_history():
    assert (overlaps(GOOD), token_faults(GOOD)) == (0, 0)
    assert handoffs(GOOD) == pytest.approx([10e-6, 1e-6])


def test_an_overlap_is_seen_also_behind_a_short_hold():
    assert overlaps([hold(0, 1, 10, 100), hold(1, 2, 20, 30), hold(2, 3, 40, 50)]) == 2


def test_tokens_must_rise_strictly():
    assert token_faults([hold(0, 4, 1, 2), hold(1, 4, 3, 4), hold(2, 3, 5, 6), hold(3, 9, 7, 8)]) == 2


def test_taking_the_own_lock_again_is_no_handoff():
    alone = [hold(0, 1, 10, 20), hold(0, 2, 21, 30)]
    assert handoffs(alone) == []
    assert figures(alone, 2)["handed over"] == 0
    assert figures(alone, 2)["p50"] == float("inf")


def test_a_process_that_never_held_counts_against_fairness():
    assert fairness(GOOD[:2], 2) == 1
    assert fairness(GOOD[:2], 4) == 0.5


def test_records_are_merged_by_time(tmp_path: Path):
    (tmp_path / "0.csv").write_text("0,1,0,10,20\r\n0,3,25,50,60\r\n")
    (tmp_path / "1.csv").write_text("1,2,5,30,40\r\n")
    holds = merge(tmp_path.glob("*.csv"))
    assert [one.token for one in holds] == [1, 2, 3]
    assert all(before.got < after.got for before, after in pairwise(holds))
