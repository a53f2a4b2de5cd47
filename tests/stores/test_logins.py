"""Logins that a callable gives: one call at a time, in a thread of its own, whatever it does."""

from __future__ import annotations

import threading
from _thread import get_ident
from queue import SimpleQueue

import pytest

from holdfast.core.urls import Login
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.logins import Answer, LoginSource, read_login
from holdfast.testing._sync.runtime import eventually


class Vault:
    """A callable that waits at a gate, and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.threads: list[int] = []
        self.gate = threading.Semaphore(0)

    def __call__(self) -> Login:
        self.calls += 1
        self.threads.append(get_ident())
        number = self.calls
        assert self.gate.acquire(timeout=20)
        return None, f"password {number}"


def request(source: LoginSource) -> SimpleQueue[Answer]:
    answers: SimpleQueue[Answer] = SimpleQueue()
    source.request(answers.put)
    return answers


def test_every_login_asks_again():
    vault = Vault()
    source = LoginSource(vault)
    for number in (1, 2, 3):
        vault.gate.release()
        assert request(source).get(timeout=20) == (None, f"password {number}")
    assert get_ident() not in vault.threads


def test_those_who_ask_at_the_same_time_share_a_call():
    vault = Vault()
    source = LoginSource(vault)
    waiting = [request(source) for _ in range(5)]
    vault.gate.release()
    assert [answers.get(timeout=20) for answers in waiting] == [(None, "password 1")] * 5
    assert vault.calls == 1


def test_a_call_that_outlasts_those_who_asked_is_for_the_next_one():
    """A callable that takes longer than anybody waits would never let anybody in."""
    vault = Vault()
    source = LoginSource(vault)
    impatient: SimpleQueue[Answer] = SimpleQueue()
    source.request(impatient.put)
    source.forget(impatient.put)
    assert impatient.empty()
    patient = request(source)  # of the same call
    vault.gate.release()
    assert patient.get(timeout=20) == (None, "password 1")

    source.request(impatient.put)
    source.forget(impatient.put)
    vault.gate.release()
    eventually(lambda: source._left is not None)  # it has ended, and nobody was there
    assert request(source).get(timeout=20) == (None, "password 2")
    assert (vault.calls, source._left) == (2, None)


def test_a_call_that_hangs_leaves_one_thread():
    vault = Vault()
    source = LoginSource(vault)
    for _ in range(10):
        source.forget(request(source).put)
    eventually(lambda: vault.calls == 1)
    vault.gate.release()


@pytest.mark.parametrize("error", [OSError("hunter2"), SystemExit("hunter2"), NotImplementedError()], ids=repr)
def test_what_it_raises_is_an_outage_and_not_repeated_in_the_message(error: BaseException):
    def ask() -> Login:
        raise error

    source = LoginSource(ask)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=f"has raised {type(error).__name__}$") as caught:
            read_login(request(source).get(timeout=20))
        assert caught.value.__cause__ is error
        assert source._left is None


def test_what_is_no_password_is_an_error():
    mistake = StoreError("it returned NoneType")

    def ask() -> Login:
        raise mistake

    with pytest.raises(StoreError, match="NoneType") as caught:
        read_login(request(LoginSource(ask)).get(timeout=20))
    assert type(caught.value) is StoreError
    assert caught.value is not mistake  # a copy for each: a traceback grows wherever an error is raised


def test_without_threads_it_is_called_at_once(monkeypatch: pytest.MonkeyPatch):
    """At the end of the interpreter."""

    def refuse(*args: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("holdfast.stores.logins.start_new_thread", refuse)
    threads: list[int] = []

    def ask() -> Login:
        threads.append(get_ident())
        return "u", "p"

    assert request(LoginSource(ask)).get_nowait() == ("u", "p")
    assert threads == [get_ident()]


def test_nothing_of_it_shows():
    assert "Vault" not in repr(LoginSource(Vault()))
