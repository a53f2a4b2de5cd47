"""The parts of `make test`: together they are all tests, each once; one that fails is told, and fails the whole."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools import parts
from tools.parts import PARTS, Part


def collecting(*words: str) -> subprocess.Popen[str]:
    """Start to list the tests that these words select."""
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *words],
        cwd=parts.ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def collected(process: subprocess.Popen[str]) -> Counter[str]:
    out, _ = process.communicate(timeout=290)
    assert process.returncode == 0, out
    return Counter(line for line in out.splitlines() if "::" in line)


@pytest.mark.slow
@pytest.mark.timeout(300)  # all tests are listed twice, and that by six processes at once
def test_every_test_is_in_exactly_one_part():
    everything, *chosen = [collecting(), *(collecting(*part.selection) for part in PARTS)]
    found = [collected(process) for process in chosen]
    assert sum(found, Counter()) == collected(everything)
    assert all(found)


def test_shares_leave_time_for_the_rest_of_the_quarter_of_an_hour():
    assert sum(part.seconds for part in PARTS) <= 900


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """A part of its own, in a folder of its own."""
    # Without the plugins of this environment, which take longer to load than these tests to run.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = ['-p', 'xdist']\n")
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    good, bad = tmp_path / "test_good.py", tmp_path / "test_bad.py"
    good.write_text("def test_good(): pass")
    bad.write_text("import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_bad(n): assert n == 1")
    monkeypatch.setattr(
        parts,
        "PARTS",
        (
            Part("first", "fails", 60, ("test_bad.py",), 0),
            Part("second", "is empty", 60, ("-k", "nothing"), 0),
            Part("third", "passes", 0, ("test_good.py",), 0),
        ),
    )
    return tmp_path


def test_later_parts_run_and_all_failures_are_told_at_the_end(folder, capfd):
    assert parts.main([]) == 1
    out = capfd.readouterr().out
    told, end = out[: out.index("==> all: ")], out[out.index("==> all: ") :]
    assert re.findall("^==> .*$", re.sub(r": \d+ s", ": N s", told), re.MULTILINE) == [
        "==> first: fails (pytest test_bad.py --numprocesses 0)",
        "==> first: N s of 60 s",
        "==> second: is empty (pytest -k nothing --numprocesses 0)",
        "==> second: N s of 60 s",
        "==> third: passes (pytest test_good.py --numprocesses 0)",
        "==> third: N s of 0 s, over its share",
    ]
    assert end.splitlines()[1:] == [
        "==> first failed:",
        "      test_bad::test_bad[2]",
        "==> second failed:",
        "      pytest ended with status 5",
    ]


def test_a_part_can_be_run_alone(folder, capfd):
    assert parts.main(["third"]) == 0
    assert "first" not in capfd.readouterr().out
    assert parts.main(["third", "nosuch"]) == 2
    assert "no such part: nosuch; there are first, second, third" in capfd.readouterr().out
