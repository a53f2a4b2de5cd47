"""The names of nodes: any name of a user is one part of a path, and everything in a claim's name comes back."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.claim import MAX, Claim
from holdfast.core.line import Place
from holdfast.errors import StoreError
from holdfast.stores.zookeeper import nodes
from holdfast.stores.zookeeper.nodes import Space, escape, escape_holder, kind, place, read_line, unescape

MANY = settings(deadline=None)

# What users may write: anything but control characters and lone surrogates; and what paths and claims are made of.
anything = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=30)
tricky = st.text("-/.%~ +2EDaé\ue000🔒", min_size=1, max_size=8)
names = st.one_of(
    anything, tricky, st.sampled_from(["-", "/", ".", "..", "zookeeper", "holdfast", "a/../b", "%2E", "x"])
)
holders = st.builds("{}.{}".format, names, names)  # <actor>.<random>
places = st.one_of(
    st.sampled_from([Place(MAX, MAX), Place(1, MAX), Place(2, MAX), Place(1, 1)]),
    st.builds(Place, st.integers(1, MAX), st.integers(1, MAX)),
)
numbers = st.one_of(st.integers(0, 20), st.integers(-(2**31), 2**31 - 1))


def as_zookeeper_takes_it(part: str) -> bool:
    """Return whether a name can be one part of a path, by the rules of ZooKeeper's PathUtils, and more strictly."""
    return part not in ("", ".", "..") and part.isascii() and part.isprintable() and "/" not in part


def suffix(number: int) -> str:
    """Write a number as ZooKeeper appends it, with Java's %010d."""
    return f"{number:010d}"


# -- names


@MANY
@given(name=names)
def test_a_name_is_one_part_of_a_path_and_comes_back(name: str) -> None:
    assert as_zookeeper_takes_it(escape(name))
    assert unescape(escape(name)) == name


@MANY
@given(name=names, other=names)
def test_different_names_are_different_nodes(name: str, other: str) -> None:
    assert (escape(name) == escape(other)) == (name == other)


@MANY
@given(prefix=names, rest=names)
@example(prefix=".", rest="a")
@example(prefix=".", rest=".")
@example(prefix="..", rest="a")
def test_a_prefix_stays_a_prefix(prefix: str, rest: str) -> None:
    assert escape(prefix + rest).startswith(escape(prefix))


@MANY
@given(holder=holders)
def test_a_holder_comes_back_and_has_no_separator(holder: str) -> None:
    assert as_zookeeper_takes_it(escape_holder(holder) + "-")
    assert "-" not in escape_holder(holder)
    assert unescape(escape_holder(holder)) == holder


def test_common_names_can_be_read_by_people() -> None:
    for name in ("order:123", "invoices", "a b", "zookeeper", "web-1.example", "user@host", "x=1,y=2"):
        assert escape(name) == name


# -- kinds


@MANY
@given(asked=places)
def test_weight_and_capacity_come_back(asked: Place) -> None:
    assert place(kind(*asked)) == asked
    assert "-" not in kind(*asked)
    assert as_zookeeper_takes_it(kind(*asked))


@pytest.mark.parametrize(
    ("asked", "said"),
    [((MAX, MAX), "x"), ((1, MAX), "r"), ((1, 4), "s4"), ((1, 1), "s1"), ((2, 5), "w2.5"), ((2, MAX), f"w2.{MAX}")],
)
def test_kinds(asked: tuple[int, int], said: str) -> None:
    """Clients of other versions read them."""
    assert kind(*asked) == said


FOREIGN_KINDS = [
    "",
    "y",
    "s",
    "s1_0",
    "s 1",
    "s+1",
    "s१",
    "s01",
    "w",
    "w1",
    "w1.",
    "w.1",
    "1.5",
    "w1.5",
    "w1.5.2",
    "rr",
]


@pytest.mark.parametrize("text", FOREIGN_KINDS)
def test_what_is_no_kind_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (only read_line catches it)
        place(text)


@MANY
@given(text=st.text(max_size=8))
def test_any_text_is_refused_or_is_what_we_would_write(text: str) -> None:
    try:
        found = place(text)
    except ValueError:
        return
    assert kind(*found) == text


# -- lines


@MANY
@given(
    claims=st.lists(st.tuples(holders, places), max_size=8),
    first=numbers,
    order=st.randoms(use_true_random=False),
)
def test_a_line_is_in_order_and_says_everything(claims: list[tuple[str, Place]], first: int, order: Random) -> None:
    wrapped = [(first + at + 2**31) % 2**32 - 2**31 for at in range(len(claims))]
    made = [
        f"{escape_holder(holder)}-{kind(*asked)}-{suffix(number)}"
        for (holder, asked), number in zip(claims, wrapped, strict=True)
    ]
    listed = list(made)
    order.shuffle(listed)
    line = read_line(listed, "/q")
    assert [node.name for node in line.nodes] == made
    assert [unescape(node.holder) for node in line.nodes] == [holder for holder, _ in claims]
    assert line.places == [node.place for node in line.nodes] == [asked for _, asked in claims]
    for at, name in enumerate(made):
        assert line.find(name) == at
    assert line.find("nobody") == -1
    for holder, _ in claims:
        mine = [name for name, (other, _) in zip(made, claims, strict=True) if other == holder]
        assert line.of(escape_holder(holder)) == mine


def test_a_number_below_zero_is_no_separator() -> None:
    """The counter goes on there after 2^31 - 1."""
    line = read_line(["b-r--2147483648", "a-x-2147483647", "c-s4--2147483647"], "/q")
    assert [node.holder for node in line.nodes] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "name",
    [
        "lock-0000000001",
        "0123456789abcdef__lock__0000000001",
        "_c_7f2b2d5c-ac5e-4d1b-9ac4-0b9e4a8b0a2f-lock-0000000001",
        "a-x-",
        "a-x-b",
        "a-z-0000000001",
        "a-s-0000000001",
        "a-w5-0000000001",
        "somebody's",
        "x" * 500,
        "two\nlines",
    ],
)
def test_a_child_of_somebody_else_is_named(name: str) -> None:
    with pytest.raises(
        StoreError, match=r"the node /q/.* in ZooKeeper is none that holdfast wrote; delete it"
    ) as caught:
        read_line(["h-x-0000000000", name], "/q")
    text = str(caught.value)
    assert name[:30] in text or repr(name)[:10] in text
    assert len(text) < 200
    assert "\n" not in text


# -- paths


@MANY
@given(chroot=st.sampled_from(["", "/a", "/a/b c"]), namespace=names, resource=names, holder=holders)
def test_everything_stands_below_the_chroot(chroot: str, namespace: str, resource: str, holder: str) -> None:
    space = Space(chroot, namespace)
    paths = [space.queue(resource), space.value(resource), space.mark(0x1F, holder), space.offset, space.clock]
    for path in [*paths, space.floor, space.ends]:
        assert path.startswith(f"{chroot}/holdfast/")
        assert all(map(as_zookeeper_takes_it, path.split("/")[1:]))
    assert len(set(paths)) == len(paths)
    assert space.queue(resource).rpartition("/")[0] == space.claims
    assert unescape(space.queue(resource).rpartition("/")[2]) == resource


def test_what_stands_above_a_path() -> None:
    """Nodes that stay for ever do not grow with the names that are used; the others are containers."""
    space = Space("/a/b", "n/1")
    lasting = ["/a", "/a/b", "/a/b/holdfast"]
    for path, stays, goes in [
        (space.queue("r"), "claims", ["/a/b/holdfast/claims/n%2F1"]),
        (space.value("k"), "values", ["/a/b/holdfast/values/n%2F1"]),
        (space.mark(255, "h.1"), "broken", ["/a/b/holdfast/broken/ff"]),
    ]:
        assert space.lasting(path) == [*lasting, f"/a/b/holdfast/{stays}"]
        assert space.passing(path) == goes
    assert space.lasting(space.offset) == lasting
    assert space.passing(space.offset) == []
    assert Space("", "n").lasting("/holdfast/offset") == ["/holdfast"]


@MANY
@given(one=names, other=names, resource=names)
def test_namespaces_do_not_meet(one: str, other: str, resource: str) -> None:
    assert (Space("", one).queue(resource) == Space("", other).queue(resource)) == (one == other)


# -- what nodes hold


@MANY
@given(
    ttl=st.floats(0.5, 1e6),
    timeout=st.floats(0.5, 1e6),
    owner=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    value=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
def test_a_claim_comes_back(ttl: float, timeout: float, owner: str, value: str | None) -> None:
    claim = Claim("r", "h", ttl=ttl, owner=owner, value=value)
    assert nodes.read_claim(nodes.stored(claim, timeout), "/q/h") == (ttl, timeout, owner, value)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"null", b"{}", b"[]", b"[1,2,3]", b"[1,2,3,4,5]", b"\xff", b"[" * 100_000, b"word", b"[1,2,"),
        *(b'["1",2,"o",null]', b'[1,null,"o",null]', b"[1,2,3,null]", b'[1,2,"o",[]]'),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_a_claim_that_somebody_else_wrote_is_named(data: bytes) -> None:
    with pytest.raises(StoreError, match=re.escape("the node /q/h in ZooKeeper holds something that holdfast did not")):
        nodes.read_claim(data, "/q/h")


@given(offset=st.integers(0, 2**60))
def test_an_offset_comes_back(offset: int) -> None:
    assert nodes.read_offset(str(offset).encode(), "/o") == offset


@pytest.mark.parametrize("data", [b"", b"-1", b"1.5", b"many", b"f", b"fx 1", b"\xff", b"0x10", b"9" * 5000])
def test_what_is_no_offset_is_refused(data: bytes) -> None:
    with pytest.raises(StoreError, match="the node /o in ZooKeeper must hold a number of at least 0, not b'"):
        nodes.read_offset(data, "/o")


@pytest.mark.parametrize("data", [b"f2 5", b"f1 5", b"f10"])
def test_another_format_is_refused(data: bytes) -> None:
    with pytest.raises(StoreError, match=r"/o, has format \d+, and this version of holdfast reads format 1"):
        nodes.read_offset(data, "/o")


# -- controls: one mistake each


right = escape


def unescaped(name: str) -> str:
    return name


def unquoted_dot(escaped: str) -> str:
    return "." + escaped.removeprefix("%2E") if escaped.startswith("%2E") else escaped


def only_two_dots(name: str) -> str:
    """As it was written first: of all names that begin with a dot only these two are escaped."""
    return name.replace(".", "%2E") if name in (".", "..") else unquoted_dot(right(name))


def folded(name: str) -> str:
    return right(name.lower())


MISTAKES: dict[str, tuple[Callable[[str], str], Callable[[], None]]] = {
    "a path within a name": (unescaped, test_a_name_is_one_part_of_a_path_and_comes_back),
    "a prefix that is escaped in another way": (only_two_dots, test_a_prefix_stays_a_prefix),
    "names that differ by case only": (folded, test_a_name_is_one_part_of_a_path_and_comes_back),
}


@pytest.mark.control
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_names_is_caught(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, check = MISTAKES[mistake]
    monkeypatch.setitem(globals(), "escape", wrong)
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        check()
