"""The step that gets the servers: a missing one is an error in CI, and is told of elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "servers.py"


def run(path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "CI"} | {"PATH": path} | environment
    return subprocess.run([sys.executable, str(TOOL)], env=env, capture_output=True, text=True, check=False)


def programs(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_nothing_is_said_when_all_are_there(tmp_path):
    done = run(programs(tmp_path, "redis-server", "etcd", "java", "zookeeper.jar"), CI="true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_server_is_an_error_in_ci(tmp_path):
    assert run(programs(tmp_path, "redis-server"), CI="true").returncode == 1


def test_a_missing_server_is_told_of_elsewhere(tmp_path):
    done = run(programs(tmp_path, "redis-server"))
    assert done.returncode == 0
    assert "etcd is missing (Debian: apt-get install etcd-server): the tests of etcd:// are left out" in done.stdout
    assert "redis" not in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="packages are installed by root alone")
def test_an_installation_that_fails_is_shown_and_fails_in_ci(tmp_path):
    done = run(programs(tmp_path, "apt-get"), CI="true")
    assert done.returncode == 1
    assert "installing redis-server, etcd-server" in done.stdout
    assert "apt-get update failed" in done.stderr
