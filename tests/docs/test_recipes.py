"""Recipes that need a server of their own: their blocks are run by it, with several processes."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.testing._sync.runtime import eventually
from tests.docs import pages

pytestmark = pytest.mark.slow
LIMIT = 20.0
RECIPES = pages.ROOT / "docs" / "recipes.md"


def block(mark: str) -> str:
    """Return the one block of the page that has this in it."""
    (found,) = [block.code for block in pages.python_blocks(RECIPES) if mark in block.code]
    return found


@contextmanager
def running(folder: Path, *command: str, **environment: str) -> Iterator[None]:
    """Run a server's module in a folder; end it and all its processes."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=folder,
            env={**os.environ, "HOME": str(folder), **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def log(folder: Path) -> str:
    return (folder / "log").read_text()


class _Local(http.client.HTTPConnection):
    """HTTP through a UNIX socket: no port to find free."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


def ask(path: Path) -> list[str]:
    connection = _Local(str(path), timeout=10)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode().split()
    finally:
        connection.close()


def test_workers_of_gunicorn_share_a_client_made_before_their_fork(tmp_path: Path):
    (tmp_path / "shop.py").write_text(block("def application(") + "\nwith locks.lock('used before the fork'): pass\n")
    listening = tmp_path / "web"
    with running(tmp_path, "gunicorn", "--preload", "--workers=2", f"--bind=unix:{listening}", "shop:application"):
        eventually(listening.exists, limit=LIMIT, complaint=lambda: f"gunicorn did not listen\n{log(tmp_path)}")
        workers: set[str] = set()
        tokens: list[int] = []

        def both_answered() -> bool:
            try:
                owner, token = ask(listening)
            except ConnectionRefusedError:  # between its bind and its listen
                return False
            workers.add(owner)
            tokens.append(int(token))
            return len(workers) == 2

        eventually(both_answered, limit=LIMIT, complaint=lambda: f"only one worker answered\n{log(tmp_path)}")
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize(("url", "excludes"), [("sqlite:locks.db", True), ("memory://", False)])
def test_processes_of_a_celery_worker_share_a_client_made_before_their_fork(tmp_path: Path, url: str, excludes: bool):
    # Without a server: Celery can keep its queue in a folder.
    (tmp_path / "queue").mkdir()
    code = f"""{block("app = Celery(").replace("sqlite:locks.db", url)}
import os, time
app.conf.broker_transport_options = dict.fromkeys(["data_folder_in", "data_folder_out", "processed_folder"], "queue")

@app.task
def count():
    with locks.lock("count", timeout=20):
        with open("lines", "a+") as lines:
            lines.seek(0)
            number = len(lines.readlines())
            time.sleep(0.02)  # two at once would read the same
            lines.write(f"{{number}} {{os.getpid()}}\\n")
"""
    (tmp_path / "shop.py").write_text(code)
    broker = {"CELERY_BROKER_URL": "filesystem://"}
    send = "import shop\nfor _ in range(20): shop.count.delay()"
    subprocess.run([sys.executable, "-c", send], cwd=tmp_path, env={**os.environ, **broker}, check=True)
    options = ("--pool=prefork", "--concurrency=2", "--without-gossip", "--without-mingle", "--without-heartbeat")
    lines = tmp_path / "lines"

    def written() -> list[str]:
        return lines.read_text().splitlines() if lines.exists() else []

    with running(tmp_path, "celery", "-A", "shop", "worker", *options, **broker):
        eventually(
            lambda: len(written()) == 20,
            limit=LIMIT,
            complaint=lambda: f"the tasks were not done\n{log(tmp_path)}",
        )
    numbers, processes = zip(*(line.split() for line in written()), strict=True)
    assert len(set(processes)) == 2
    assert (sorted(map(int, numbers)) == list(range(20))) is excludes


def databases_made(folder: Path, code: str) -> int:
    """Run the tests with two workers; return how many databases they made."""
    (folder / "test_shop.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "test_shop.py"]
    # The run that this test belongs to has an identity of its own, and workers would take it for theirs.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout
    return len((folder / "made").read_text().splitlines())


def test_xdist_workers_make_the_database_once(tmp_path: Path):
    assert databases_made(tmp_path, block("def make_database(")) == 1


@pytest.mark.control
def test_without_once_each_xdist_worker_makes_one(tmp_path: Path):
    assert databases_made(tmp_path, re.sub(r"@locks\.once.*\n", "", block("def make_database("))) == 2


def test_a_stand_by_takes_over_when_beat_dies(tmp_path: Path):
    # One folder with both: Celery can keep its queue there. What is sent are files.
    (tmp_path / "queue").mkdir()
    code = block("app = Celery(") + block("class StandBy").partition("one, two =")[0]
    (tmp_path / "shop.py").write_text(
        code.replace("ttl=15", "ttl=1").replace("return 5.0", "return 0.2")
        + """
@app.task(name="tick")
def tick(): ...

app.conf.broker_transport_options = dict.fromkeys(["data_folder_in", "data_folder_out", "processed_folder"], "queue")
app.conf.beat_schedule = {"tick": {"task": "tick", "schedule": 0.2}}
"""
    )

    def beat(name: str) -> subprocess.Popen[bytes]:
        options = ["--scheduler", "shop:StandBy", "--schedule", name, "--pidfile", "", "--loglevel", "INFO"]
        with (tmp_path / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "shop", "beat", "--max-interval", "1", *options],
                cwd=tmp_path,
                env={**os.environ, "HOME": str(tmp_path), "CELERY_BROKER_URL": "filesystem://"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def sent() -> int:
        return len(list((tmp_path / "queue").iterdir()))

    def says(name: str) -> str:
        return (tmp_path / f"{name}.log").read_text()

    beats = [beat("one")]
    try:
        eventually(lambda: sent() > 0, limit=LIMIT, complaint=lambda: says("one"))
        beats.append(beat("two"))
        eventually(lambda: "beat: Starting" in says("two"), limit=LIMIT, complaint=lambda: says("two"))
        assert "Sending due task" not in says("two")
        beats[0].kill()
        beats[0].wait()
        before = sent()
        eventually(lambda: sent() > before + 2, limit=LIMIT, complaint=lambda: says("two"))
    finally:
        for each in beats:
            each.kill()
            each.wait()
