"""The command itself: help, version, errors, and what it says where its extra is missing."""

from __future__ import annotations

import pytest

import holdfast
from tests.cli.kit import run


def test_version(tmp_path):
    assert run("--version", temporary=tmp_path) == (0, f"holdfast {holdfast.__version__}\n", "")


@pytest.mark.parametrize(("words", "expected"), [(["--help"], "demo"), (["demo", "--help"], "--unsafe")])
def test_help(words, expected, tmp_path):
    status, out, err = run(*words, temporary=tmp_path)
    assert (status, err) == (0, "")
    assert expected in out


def test_help_without_a_command(tmp_path):
    status, out, err = run(temporary=tmp_path)
    assert status == 2
    assert "Usage: holdfast" in out + err


@pytest.mark.parametrize(
    ("words", "named"),
    [(["demo", "--nonsense"], "--nonsense"), (["nonsense"], "nonsense"), (["demo", "--workers", "1"], "--workers")],
)
def test_bad_usage_is_told(words, named, tmp_path):
    status, out, err = run(*words, temporary=tmp_path)
    assert (status, out) == (2, "")
    assert named in err


@pytest.mark.parametrize("words", [[], ["demo"], ["--version"]])
def test_missing_extra_is_one_line_that_says_what_to_install(words, tmp_path):
    # -S: without site-packages, as after a bare `pip install holdfast`.
    status, out, err = run(*words, temporary=tmp_path, flags=("-S",))
    assert (status, out) == (2, "")
    assert err == "holdfast: the command line needs 'typer', which is not installed: pip install 'holdfast[cli]'\n"
