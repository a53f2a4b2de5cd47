"""The file: damaged, foreign, full, read-only, remote, moved, restored. Each a clear StoreError, and nothing lost."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import logging
import os
import select
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import StoreError, StoreUnavailable
from holdfast.core.claim import LOST, Claim, Granted, Record, Renewed, Waiting
from holdfast.core.fence import Fence
from holdfast.errors import StaleToken
from holdfast.stores.sqlite import host
from holdfast.stores.sqlite.claims import Claims
from holdfast.stores.sqlite.database import APPLICATION_ID, FORMAT

from .driven import driven_clock, environment, open_claims, restarted, sql

HERE = Path(__file__).parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that everybody may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    folder.chmod(0o755)
    yield folder
    for found in [folder, *folder.rglob("*")]:
        if found.is_dir():
            found.chmod(0o755)
    shutil.rmtree(folder)


def script(name: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(HERE / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def take(path: Path, resource: str = "job", holder: str = "h") -> int:
    """Take a resource through a client that comes and goes; return the token."""
    store = open_claims(path)
    try:
        answer = store.claim(Claim(resource, holder), False)
        assert isinstance(answer, Granted), answer
        return answer.token
    finally:
        store.close()


def fill(path: Path, count: int = 300) -> None:
    store = open_claims(path)
    for i in range(count):
        store.claim(Claim(f"job:{i}", "h", owner="o" * 100), False)
    store.close()


# -- damaged


def test_garbage_is_refused_and_left_alone(path: Path) -> None:
    garbage = bytes(range(256)) * 32
    path.write_bytes(garbage)
    with pytest.raises(StoreError, match=r"not a SQLite file.*move the file away"):
        take(path)
    assert path.read_bytes() == garbage
    path.rename(path.with_name("old"))
    assert take(path) > 0


@pytest.mark.parametrize("size", [50, 100, 1000])
def test_a_file_cut_off_in_its_first_page_is_refused(path: Path, size: int) -> None:
    fill(path)
    os.truncate(path, size)
    before = path.read_bytes()
    with pytest.raises(StoreError):
        take(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_file_cut_off_later_is_a_store_error_and_nothing_else(path: Path, part: float) -> None:
    fill(path)
    os.truncate(path, int(path.stat().st_size * part) // 4096 * 4096)
    with pytest.raises(StoreError, match=r"damaged|disk"):
        use_everything(path)


def test_damaged_pages_are_a_store_error_and_nothing_else(path: Path) -> None:
    fill(path)
    whole = path.read_bytes()
    told = []
    for start in range(4096, len(whole), 4096):
        path.write_bytes(whole[:start] + os.urandom(4096) + whole[start + 4096 :])
        try:
            use_everything(path)
        except StoreError as error:
            told.append(str(error))
    assert told
    assert all(str(path) in message for message in told)


def use_everything(path: Path) -> None:
    store = open_claims(path)
    try:
        for i in range(0, 300, 7):
            store.claim(Claim(f"job:{i}", "h2"), False)
            store.release(f"job:{i}", "h", 0.0)
        store.renew([Claim(f"job:{i}", "h") for i in range(300)])
        store.inspect("")
        store.registers.write("key", "value", Fence("n", "r", 1), None)
        store.registers.read("key")
    finally:
        store.close()


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    assert take(path) > 0


def test_tokens_go_on_rising_after_a_damaged_file_was_moved_away(path: Path) -> None:
    before = take(path)
    path.write_bytes(b"x" * 4096)
    with pytest.raises(StoreError, match=r"[Mm]ove (it|the file) away"):
        take(path)
    path.unlink()
    assert take(path) > before


# -- foreign


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE users (name)", "INSERT INTO users VALUES ('x')"],
        ["PRAGMA application_id = 12345"],
        ["PRAGMA application_id = 12345", "CREATE TABLE meta (key, value)"],
        ["CREATE TABLE claims (x)", "CREATE TABLE meta (key, value)"],
    ],
)
def test_the_file_of_another_program_is_refused_and_not_changed(path: Path, mode: str, statements: list[str]) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    for statement in statements:
        connection.execute(statement)
    connection.close()
    before, mode_before = path.read_bytes(), path.stat().st_mode
    for _ in range(2):
        with pytest.raises(StoreError, match="SQLite file of another program; nothing was changed"):
            take(path)
    assert path.read_bytes() == before
    assert path.stat().st_mode == mode_before
    assert [found.name for found in path.parent.iterdir()] == ["locks.db"]


def test_a_newer_format_is_refused_with_both_numbers(path: Path) -> None:
    take(path)
    sql(path, f"PRAGMA user_version = {FORMAT + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=rf"has format {FORMAT + 1}, .*reads format {FORMAT}"):
        take(path)
    assert path.read_bytes() == before
    sql(path, f"PRAGMA user_version = {FORMAT}")
    assert isinstance(open_and_ask(path, Claim("job", "h2")), Waiting), "what was there is there still"


def open_and_ask(path: Path, claim: Claim) -> Granted | Waiting:
    store = open_claims(path)
    try:
        return store.claim(claim, False)
    finally:
        store.close()


def test_our_mark_is_in_the_file(path: Path) -> None:
    take(path)
    assert sql(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert APPLICATION_ID.to_bytes(4, "big") == b"hold"
    assert sql(path, "PRAGMA journal_mode") == [("wal",)]


# -- full


def test_a_file_that_may_not_grow_refuses_and_loses_nothing(path: Path) -> None:
    said = script("small_files.py", path).splitlines()
    assert said[0].startswith("StoreError"), said
    assert "disk" in said[0]
    assert int(said[1].split()[1]) > 10


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts; small_files.py above stands in for it")
def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    if libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=512k") != 0:
        pytest.fail(f"cannot mount a tmpfs as root: {os.strerror(ctypes.get_errno())}")
    try:
        path = folder / "locks.db"
        store = open_claims(path)
        first = store.claim(Claim("first", "h", ttl=600.0), True)
        assert isinstance(first, Granted)
        ballast = (folder / "ballast").open("wb", buffering=0)
        with contextlib.suppress(OSError):
            while ballast.write(b"x" * 1024):
                pass
        granted = []

        def go_on() -> None:
            for i in range(5000):
                claim = Claim(f"job:{i}", "h", ttl=600.0, owner="o" * 400)
                assert isinstance(store.claim(claim, True), Granted)
                granted.append(claim.resource)

        with pytest.raises(StoreError, match=r"the disk is full; nothing was written\. Make room") as caught:
            go_on()
        assert not isinstance(caught.value, StoreUnavailable), "asking again is pointless"
        newcomer = open_claims(folder / "new.db")
        with pytest.raises(StoreError, match=r"full|cannot be made"):
            newcomer.claim(Claim("job", "h"), True)
        ballast.close()
        (folder / "ballast").unlink()
        assert {state.resource for state in store.inspect("")} == {"first", *granted}
        assert store.renew([Claim("first", "h", ttl=600.0)]) == [Renewed(600.0)]
        assert isinstance(newcomer.claim(Claim("job", "h"), True), Granted)
        assert sql(path, "PRAGMA integrity_check") == [("ok",)]
        newcomer.close()
        store.close()
    finally:
        libc.umount2(bytes(folder), 2)


# -- read-only, missing, a directory


def test_a_read_only_directory(public: Path) -> None:
    folder = public / "locks"
    folder.mkdir(mode=0o555)
    said = script("as_nobody.py", folder / "locks.db")
    assert said.startswith("StoreError"), said
    assert "may be written" in said
    assert not list(folder.iterdir())


def test_a_read_only_file(public: Path) -> None:
    path = public / "locks.db"
    take(path)
    path.chmod(0o444)
    public.chmod(0o755)
    before = path.read_bytes()
    said = script("as_nobody.py", path)
    assert said.startswith("StoreError"), said
    assert str(path) in said
    assert path.read_bytes() == before


def test_a_file_that_may_not_even_be_read(public: Path) -> None:
    path = public / "locks.db"
    take(path)
    path.chmod(0o000)
    said = script("as_nobody.py", path)
    assert said.startswith("StoreError"), said
    path.chmod(0o600)
    assert isinstance(open_and_ask(path, Claim("job", "h2")), Waiting)


def test_a_directory_that_may_be_written(public: Path) -> None:
    """Control: the script that gives up root does get a lock where it may."""
    folder = public / "locks"
    folder.mkdir()
    folder.chmod(0o777)
    assert script("as_nobody.py", folder / "locks.db").startswith("token")


def test_a_missing_directory_is_named_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "locks.db"
    with pytest.raises(StoreError, match="its directory exists") as caught:
        take(path)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "no").exists()


def test_a_path_that_is_a_directory(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreError) as caught:
        take(path)
    assert str(path) in str(caught.value)
    assert not list(path.iterdir())


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be made"):
        take(tmp_path / "file" / "locks.db")


# -- network file systems

ROOT = "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"
MOUNTS = {
    "root only": (f"{ROOT}", "/var/lib/x", "ext4"),
    "longest wins": (f"{ROOT}\n30 21 0:4 / /mnt rw - xfs d rw\n31 30 0:5 / /mnt/n rw - nfs s:/ rw", "/mnt/n/a", "nfs"),
    "longest wins, whatever the order": (f"31 30 0:5 / /mnt/nfs rw - nfs4 s:/ rw\n{ROOT}", "/mnt/nfs/a", "nfs4"),
    "the point itself": (f"{ROOT}\n31 21 0:5 / /mnt rw - cifs s rw", "/mnt", "cifs"),
    "a name that only begins alike": (f"{ROOT}\n31 21 0:5 / /mnt rw - nfs s rw", "/mnt2/a", "ext4"),
    "later covers earlier": (f"{ROOT}\n31 21 0:5 / /m rw - nfs s rw\n32 31 8:2 / /m rw - xfs d rw", "/m/a", "xfs"),
    "later covers earlier, the other way": (
        f"{ROOT}\n31 21 8:2 / /mnt rw - autofs d rw\n32 31 0:5 / /mnt rw - nfs4 s rw",
        "/mnt/a",
        "nfs4",
    ),
    "a mount over the root": (f"{ROOT}\n40 21 0:9 / / rw - overlay o rw", "/var", "overlay"),
    "spaces": (f"{ROOT}\n31 21 0:5 / /mnt/my\\040disk rw - smb3 s rw", "/mnt/my disk/a", "smb3"),
    "tab, newline and backslash": (f"{ROOT}\n31 21 0:5 / /m\\011\\012\\134x rw - nfs s rw", "/m\t\n\\x/a", "nfs"),
    "not ASCII": (f"{ROOT}\n31 21 0:5 / /mnt/dané rw - nfs4 s rw", "/mnt/dané/a", "nfs4"),
    "not ASCII, and a space": (f"{ROOT}\n31 21 0:5 / /m/\u65e5\u672c\\040x rw - nfs s rw", "/m/\u65e5\u672c x", "nfs"),
    "several optional fields": (f"{ROOT} \n31 21 0:5 / /m rw shared:2 master:1 - fuse.x s rw", "/m/a", "fuse.x"),
    "no optional field": (f"{ROOT}\n31 21 0:5 / /m rw - 9p s rw", "/m/a", "9p"),
    "an empty source": (f"{ROOT}\n31 21 0:5 / /m rw - tmpfs  rw", "/m/a", "tmpfs"),
    "a dash in the options": (f"{ROOT}\n31 21 0:5 / /a-b rw - nfs s:/x-y rw", "/a-b/c", "nfs"),
    "nonsense lines": (f"\nnonsense\n1 2 3\n - \n{ROOT}\nx - ", "/a", "ext4"),
    "nothing": ("", "/a", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", MOUNTS)
def test_which_file_system_a_path_is_on(case: str) -> None:
    mounts, path, kind = MOUNTS[case]
    assert host.file_system(Path(path), mounts) == kind


def test_this_machine_tells_the_file_system(tmp_path: Path) -> None:
    assert host.file_system(tmp_path)
    assert host.file_system(Path("/proc")) == "proc"


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph", "fuse.glusterfs", "lustre"]
)
def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(host, "file_system", lambda where, mounts=None: kind)
    with pytest.raises(StoreError, match=rf"network file system \({kind}\).*use a local disk") as caught:
        take(path)
    assert str(path) in str(caught.value)
    assert not path.exists()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk", ""])
def test_a_local_file_system_is_taken(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(host, "file_system", lambda where, mounts=None: kind)
    assert take(path) > 0


def test_a_link_to_a_network_file_system_is_seen_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    asked: list[Path] = []

    def file_system(where: Path, mounts: str | None = None) -> str:
        asked.append(where)
        return "ext4"

    monkeypatch.setattr(host, "file_system", file_system)
    take(tmp_path / "link" / "locks.db")
    assert set(asked) == {(tmp_path / "real").resolve()}


# -- another machine, another boot


def test_the_file_of_another_machine_is_refused(path: Path) -> None:
    take(path)
    sql(path, "UPDATE meta SET value = 'another-boot' WHERE key = 'boot'")
    sql(path, "UPDATE meta SET value = 'another-machine' WHERE key = 'machine'")
    before = sql(path, "SELECT * FROM claims")
    with pytest.raises(StoreError, match=r"belongs to another machine \(another-machine.*tokens go on rising"):
        take(path)
    assert sql(path, "SELECT * FROM claims") == before
    assert sql(path, "SELECT value FROM meta WHERE key = 'boot'") == [("another-boot",)]


def test_the_same_boot_is_the_same_machine_whatever_its_id(path: Path) -> None:
    """Containers of one kernel have one clock, and may have any machine id."""
    take(path)
    sql(path, "UPDATE meta SET value = 'another-machine' WHERE key = 'machine'")
    assert isinstance(open_and_ask(path, Claim("job", "h2")), Waiting)


def test_after_a_restart_plain_claims_are_over_and_detached_ones_run_on(path: Path) -> None:
    clock = driven_clock(now=500_000.0)
    store = open_claims(path, clock)
    tokens = {}
    for claim in (
        Claim("plain", "h1", ttl=1000.0),
        Claim("detached", "h2", ttl=1000.0, detached=True),
        Claim("kept", "h3", ttl=1000.0),
        Claim("over", "h4", ttl=50.0, detached=True),
        Claim("shared", "h5", 1, 10, ttl=1000.0),
        Claim("shared", "h6", 1, 10, ttl=1000.0, detached=True),
    ):
        answer = store.claim(claim, True)
        assert isinstance(answer, Granted)
        tokens[claim.holder] = answer.token
    assert isinstance(store.claim(Claim("detached", "h7", detached=True), True), Waiting)
    assert store.release("kept", "h3", 300.0)
    store.close()
    sql(path, "UPDATE meta SET value = 'boot before' WHERE key = 'boot'")
    # The machine was off for a while: 100 s have passed by the wall clock, and the other clock began again.
    clock = restarted(clock, off=100.0, now=20.0)
    store = open_claims(path, clock)
    view = {claim.holder: claim for state in store.inspect("") for claim in (*state.holders, *state.waiters)}
    assert {holder: claim.left for holder, claim in view.items()} == pytest.approx(
        {"h2": 900.0, "h3": 200.0, "h6": 900.0}
    )
    assert {holder: claim.token for holder, claim in view.items()} == {h: tokens[h] for h in view}
    again = store.claim(Claim("plain", "h8"), True)
    assert isinstance(again, Granted)
    assert again.token > tokens["h1"]
    assert store.renew([Claim("plain", "h1"), Claim("detached", "h2", ttl=1000.0)]) == [LOST, Renewed(1000.0)]
    assert isinstance(store.claim(Claim("shared", "h9", 9, 10), True), Granted), "the plain permit is free again"
    assert sql(path, "SELECT value FROM meta WHERE key = 'boot'") == [(host.boot_id(),)]
    store.close()


def test_after_a_restart_a_wall_clock_that_was_set_back_does_not_prolong(path: Path) -> None:
    clock = driven_clock(now=500_000.0)
    store = open_claims(path, clock)
    first = store.claim(Claim("a", "h", ttl=60.0, detached=True), True)
    assert isinstance(first, Granted)
    store.close()
    sql(path, "UPDATE meta SET value = 'boot before' WHERE key = 'boot'")
    clock = restarted(clock, off=-3600.0, now=20.0)
    store = open_claims(path, clock)
    (state,) = store.inspect("")
    assert state.holders[0].left <= 60.0
    clock.advance(61.0)
    second = store.claim(Claim("a", "h2"), True)
    assert isinstance(second, Granted)
    assert second.token > first.token
    store.close()


# -- deleted, replaced, restored


@pytest.mark.parametrize("leftovers", [False, True], ids=["with its -wal and -shm", "alone"])
def test_a_client_moves_on_when_its_file_was_deleted(path: Path, leftovers: bool) -> None:
    clock = driven_clock()
    one, other = open_claims(path, clock), open_claims(path, clock)
    first = one.claim(Claim("job", "h1"), True)
    assert isinstance(first, Granted)
    assert isinstance(other.claim(Claim("job", "h2"), False), Waiting)
    path.unlink()
    if not leftovers:
        for end in ("-wal", "-shm"):
            path.with_name(path.name + end).unlink()
    clock.advance(0.1)  # a client looks at its file again after a moment
    second = other.claim(Claim("job", "h2"), True)
    assert isinstance(second, Granted)
    assert second.token > first.token
    assert one.renew([Claim("job", "h1")]) == [LOST]
    assert one.release("job", "h1", 0.0) is False
    assert isinstance(one.claim(Claim("job", "h3"), False), Waiting)
    assert other.renew([Claim("job", "h2")]) == [Renewed(30.0)]
    one.close()
    other.close()
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_new_process_can_use_the_new_file_while_an_old_one_still_has_the_old(path: Path) -> None:
    old = open_claims(path)
    for i in range(50):
        old.claim(Claim(f"job:{i}", "h"), True)
    path.unlink()  # alone: its -wal and -shm stay, and the old process uses them
    url = f"sqlite://{path}"
    code = f"import holdfast; print(holdfast.connect({url!r}).lock('job:1').acquire(timeout=2).token)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert old.renew([Claim("job:1", "h")]) == [LOST]
    old.close()
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


def test_the_lease_of_a_deleted_file_is_lost_at_its_renewal(path: Path) -> None:
    with holdfast.connect(f"sqlite://{path}") as locks:
        lease = locks.lock("job").acquire()
        for found in path.parent.glob("locks.db*"):
            if found.is_file():
                found.unlink()
        with pytest.raises(holdfast.LeaseLost):
            lease.renew()
        assert lease.lost


def test_tokens_still_rise_after_an_old_copy_was_restored(path: Path) -> None:
    clock = driven_clock()
    store = open_claims(path, clock)
    taken = store.claim(Claim("job", "h1"), True)
    assert isinstance(taken, Granted)
    store.close()
    copy = path.read_bytes()
    store = open_claims(path, clock)
    store.release("job", "h1", 0.0)
    later = []
    for i in range(20):
        answer = store.claim(Claim("job", f"k{i}"), True)
        assert isinstance(answer, Granted)
        later.append(answer.token)
        store.release("job", f"k{i}", 0.0)
    restored = path.with_name("restored")
    restored.write_bytes(copy)
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink()
    restored.replace(path)
    clock.advance(0.1)
    assert isinstance(store.claim(Claim("job", "h2"), False), Waiting), "the copy says that h1 holds it"
    assert store.release("job", "h1", 0.0)
    answer = store.claim(Claim("job", "h2"), True)
    assert isinstance(answer, Granted)
    assert answer.token > max(later) > taken.token
    store.close()


def test_a_file_that_is_swapped_while_it_is_opened_does_not_split_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, new = host.boot_id, path.with_name("new.db")
    take(new, "other")

    def swap() -> str:
        monkeypatch.setattr(host, "boot_id", real)
        for end in ("-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        new.replace(path)
        return real()

    monkeypatch.setattr(host, "boot_id", swap)
    one, other = open_claims(path), open_claims(path)
    answers = [one.claim(Claim("job", "h1"), False), other.claim(Claim("job", "h2"), False)]
    assert [isinstance(answer, Granted) for answer in answers] == [True, False]
    one.close()
    other.close()


# -- names, modes, folders


def test_only_the_owner_may_read_and_write(path: Path) -> None:
    mask = os.umask(0)
    try:
        store = open_claims(path)
        store.claim(Claim("job", "h1"), True)
        store.claim(Claim("job", "h2"), True)
        modes = {found.name: stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()}
    finally:
        os.umask(mask)
    assert modes == {"locks.db": 0o600, "locks.db-wal": 0o600, "locks.db-shm": 0o600, "locks.db-wake": 0o700}
    store.close()
    assert [found.name for found in path.parent.iterdir()] == ["locks.db"], "close leaves nothing else behind"


def test_without_a_url_the_file_is_in_the_state_directory_and_one_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state of mine"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    caplog.set_level(logging.INFO, logger="holdfast")
    with holdfast.connect() as locks:
        assert not state.exists(), "connect() does no I/O"
        with locks.lock("job"), locks.lock("other"):
            pass
    path = state / "holdfast" / "locks.db"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(path) in record.getMessage()
    assert "this user on this host" in record.getMessage()


def test_without_xdg_state_home_it_is_below_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with holdfast.connect() as locks, locks.lock("job"):
        assert (tmp_path / ".local" / "state" / "holdfast" / "locks.db").exists()


def test_the_environment_names_a_url(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite://{path}")
    with holdfast.connect(require="correctness") as locks, locks.lock("job"):
        assert path.exists()
    assert not caplog.records


def test_what_is_required_must_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    with pytest.raises(StoreError, match="pass a URL or set HOLDFAST_URL"):
        holdfast.connect(require="efficiency")
    assert not list(tmp_path.iterdir())


NAMES = ["with space.db", "ünï-日本-😀.db", "per%20cent.db", "quote'\".db", "a?b#c.db", "-", "x" * 180 + ".db"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_path_works_with_wakeups(tmp_path: Path, name: str) -> None:
    from urllib.parse import quote

    path = tmp_path / "dir with ünïcode" / name
    path.parent.mkdir()
    with holdfast.connect(f"sqlite://{quote(str(path))}") as locks, locks.lock("job"):
        assert path.exists()
    assert_wakeups_work(path)


def deep_path(folder: Path, least: int = 200) -> Path:
    while len(os.fsencode(folder)) < least:
        folder = folder / ("d" * 40)
    folder.mkdir(parents=True)
    return folder / "locks.db"


def test_a_path_too_long_for_a_socket_has_wakeups(tmp_path: Path) -> None:
    assert_wakeups_work(deep_path(tmp_path))


def test_wakeups_of_a_long_path_survive_the_last_one_out(tmp_path: Path) -> None:
    path = deep_path(tmp_path)
    folder = path.with_name("locks.db-wake")
    stays = open_claims(path)
    for _ in range(2):
        comes = open_claims(path)
        assert_hand_over(stays, comes)
        comes.close()
        assert not folder.exists(), "the last one out takes the directory with it"
    comes = open_claims(path)
    assert_hand_over(comes, stays)
    comes.close()
    stays.close()


def assert_wakeups_work(path: Path) -> None:
    one, other = open_claims(path), open_claims(path)
    assert_hand_over(one, other)
    assert_hand_over(other, one)
    one.close()
    other.close()
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def assert_hand_over(one: Claims, other: Claims) -> None:
    holder = os.urandom(4).hex()
    assert isinstance(one.claim(Claim("job", holder + "1"), False), Granted)
    assert isinstance(other.claim(Claim("job", holder + "2"), True), Waiting)
    wakeup, _ = other.watched(holder + "2")
    assert wakeup is not None, "no wake-up: the waiter polls"
    assert not select.select([wakeup], [], [], 0)[0]
    assert one.release("job", holder + "1", 0.0)
    assert select.select([wakeup], [], [], 1.0)[0], "the waiter was not woken"
    assert isinstance(other.claim(Claim("job", holder + "2"), True), Granted)
    assert other.release("job", holder + "2", 0.0)


def test_a_name_that_no_file_may_have(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        take(tmp_path / ("x" * 300))


def test_a_relative_path_does_not_follow_a_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    with holdfast.connect("sqlite:locks.db") as locks:
        monkeypatch.chdir(tmp_path / "two")
        with locks.lock("job"):
            assert (tmp_path / "one" / "locks.db").exists()
            assert not (tmp_path / "two" / "locks.db").exists()


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:", "sqlite://host/locks.db", "sqlite://u:pw@/x", "sqlite:///x?a=1"]
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="sqlite") as caught:
        holdfast.connect(url)
    assert "pw" not in str(caught.value)


# -- registers


def test_a_register_survives_and_is_fenced(path: Path) -> None:
    store = open_claims(path)
    assert store.registers.read("key") is None
    store.registers.write("key", "one", Fence("n", "r", 10), None)
    store.close()
    store = open_claims(path)
    assert store.registers.read("key") == Record("one", 10)
    with pytest.raises(StaleToken, match="token 9"):
        store.registers.write("key", "old", Fence("n", "r", 9), None)
    assert store.registers.read("key") == Record("one", 10)
    store.registers.write("key", "two", Fence("n", "r", 10), None)  # one holder may write many times
    store.registers.write("key", "reader 12", Fence("n", "r", 12, True), None)
    store.registers.write("key", "reader 11", Fence("n", "r", 11, True), None)  # live readers do not refuse each other
    with pytest.raises(StaleToken):
        store.registers.write("key", "writer 11", Fence("n", "r", 11), None)
    assert store.registers.read("key") == Record("reader 11", 11)
    assert isinstance(store.claim(Claim("job", "h"), True), Granted), "a refusal leaves no transaction open"
    store.close()


def test_the_value_of_a_register_goes_and_its_fence_stays(path: Path) -> None:
    clock = driven_clock()
    store = open_claims(path, clock)
    store.registers.write("key", "value", Fence("n", "r", 10), 60.0)
    clock.advance(59.0)
    assert store.registers.read("key") == Record("value", 10)
    clock.advance(1.0)
    assert store.registers.read("key") is None
    with pytest.raises(StaleToken):
        store.registers.write("key", "old", Fence("n", "r", 9), None)
    store.close()


def test_a_register_outlives_a_restart(path: Path) -> None:
    clock = driven_clock(now=500_000.0)
    store = open_claims(path, clock)
    store.registers.write("key", "value", Fence("n", "r", 10), 60.0)
    store.close()
    sql(path, "UPDATE meta SET value = 'boot before' WHERE key = 'boot'")
    clock = restarted(clock, off=30.0, now=5.0)
    store = open_claims(path, clock)
    assert store.registers.read("key") == Record("value", 10)
    clock.advance(31.0)
    assert store.registers.read("key") is None
    store.close()


# -- a writer that was paused


def test_a_writer_that_was_paused_is_borne_for_io_timeout(path: Path) -> None:
    store = open_claims(path, io_timeout=0.3)
    held = store.claim(Claim("held", "h"), True)
    assert isinstance(held, Granted)
    with subprocess.Popen(
        [sys.executable, str(HERE / "paused_writer.py"), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        for ask in (
            lambda: store.claim(Claim("job", "h"), True),
            lambda: store.release("held", "h", 0.0),
            lambda: store.renew([Claim("held", "h")]),
            lambda: store.registers.write("key", "value", Fence("n", "r", 1), None),
        ):
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match=r"locked by another process for 0\.3 s"):
                ask()
            assert 0.2 < time.monotonic() - started < 0.9
        assert [state.resource for state in store.inspect("")] == ["held"], "reading goes on"
        newcomer = open_claims(path, io_timeout=0.2)
        with pytest.raises(StoreUnavailable):
            newcomer.claim(Claim("job", "h2"), True)
        newcomer.close()
        writer.stdin.write("go\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "done\n"
    assert store.renew([Claim("held", "h")]) == [Renewed(30.0)]
    assert isinstance(store.claim(Claim("job", "h"), True), Granted)
    store.close()


def test_a_withdrawal_that_goes_unanswered_keeps_no_wakeup(path: Path) -> None:
    """It may be the last: nobody tries for longer than the claim can live. A wake-up is an open file."""
    store = open_claims(path, io_timeout=0.05)
    store.claim(Claim("job", "holder"), True)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        assert isinstance(store.claim(Claim("job", f"waiter-{number}"), True), Waiting)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable):
                store.release("job", f"waiter-{number}")
    assert (store._wakeups, store._ahead) == ({}, {})
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    store.close()


def test_an_acquire_tells_an_outage_from_a_busy_resource(path: Path) -> None:
    with holdfast.connect(f"sqlite://{path}", io_timeout=0.1) as locks:
        with locks.lock("warm"):
            pass
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        for timeout in (0, 0.3):
            with pytest.raises(StoreUnavailable):
                locks.lock("job").acquire(timeout=timeout)
            with pytest.raises(StoreUnavailable):
                locks.lock("job").try_acquire(timeout=timeout)
        connection.execute("ROLLBACK")
        connection.close()
        with locks.lock("job", timeout=1):
            pass
