"""The hooks of .pre-commit-config.yaml: they run with what make has installed, and this tree passes them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = re.findall(r"^ +entry: (.*)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)


@pytest.mark.parametrize("entry", ENTRIES)
def test_tree_passes(entry: str):
    program, *words = shlex.split(entry)
    assert program == ".venv/bin/python"
    if "format" in words:
        words.append("--check")  # a test changes nothing
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hooks_are_local():
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"repo: (.*)", text)) == {"local"}
    assert set(re.findall(r"language: (.*)", text)) == {"system"}
    assert len(ENTRIES) == 3
