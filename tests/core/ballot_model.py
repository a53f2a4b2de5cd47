"""An explicit-state model checker for the ballot of `holdfast.core.ballot`: every interleaving, nothing sampled.

Clients propose any ballot at any time, as if their clocks were arbitrary. A message may be delivered late, after others
that were sent later, or never; a reply may be lost; a client may send again, propose higher, or give up and release.
Somebody may break a grant that a client has won: once a majority has run that, no majority may renew it any more.
The nodes decide by the very functions that the store's scripts are compared with. A mutant replaces one rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from holdfast.core.ballot import GRANTED, PROLONGED, Node, Vote, broken_by, left_by, majority, prolonged, vote

NODES = 3
NOW = 100  # microseconds: the windows around a node's clock are far wider than any ballot here
FOREVER = 1 << 50

NAMES = "abc"

Decide = Callable[[Node, str, int], tuple[Node, Vote]]
Leave = Callable[[Node, str, int], Node]
Break = Callable[[Node, str, int], Node]


def granted_by_rule(node: Node, holder: str, ballot: int) -> tuple[Node, Vote]:
    """Decide on a proposal as a node does."""
    return vote(node, holder, ballot, FOREVER, NOW)


def left_by_rule(node: Node, holder: str, ballot: int) -> Node:
    """Release as a node does."""
    return left_by(node, holder, ballot, NOW)[0]


def broken_by_rule(node: Node, holder: str, ballot: int) -> Node:
    """Break as a node does."""
    return broken_by(node, holder, ballot, NOW)[0]


class Phase(IntEnum):
    """What a client is doing."""

    IDLE = 0
    ASKS = 1
    HOLDS = 2

    __hash__ = int.__hash__  # that of Enum is written in Python, and every state is hashed


@dataclass(frozen=True)
class System:
    """What is explored: so many rounds a client, ballots up to `highest`, and the rules."""

    rounds: tuple[int, ...] = (2, 1)
    highest: int = 3
    decide: Decide = granted_by_rule
    leave: Leave = left_by_rule
    evict: Break | None = None  # somebody may break one grant that was won; None: nobody does
    needed: int = majority(NODES)
    counts: Callable[[int, int], bool] = field(default=lambda mine, voted: mine == voted)  # a vote, in my round
    forgets: bool = False  # one node may lose what it has acknowledged, once
    expires: bool = False  # a grant may run out at any time: then two may believe to hold, and only tokens are judged
    resends: bool = False  # a client that got no answer sends its proposal again
    # Forget messages that can never again change anything. True of the real rules only: a counter never falls, and what
    # is not above it is neither granted nor, once its grant has ended, there to be released.
    prunes: bool = True


class Client(NamedTuple):
    """One acquire: it has one identity over all its rounds, and its ballots rise."""

    left: int  # rounds that it may still begin
    ballot: int = 0  # the last one that it proposed
    phase: Phase = Phase.IDLE
    floor: int = 0  # the highest token that was won before this round began


class Member(NamedTuple):
    """A node, the messages on their way to it, and the clients that have its vote (sets, as bits)."""

    node: Node = Node()
    inbox: int = 0
    votes: int = 0
    told: bool = False  # it has run what breaks the grant


class State(NamedTuple):
    """Everything there is. Nodes are alike, so members are sorted: which is which does not matter."""

    members: tuple[Member, ...]
    clients: tuple[Client, ...]
    won: int = 0  # the tokens, as bits
    forgot: bool = False
    target: tuple[int, int] | None = None  # the client and the ballot that somebody has broken


class Step(NamedTuple):
    """One thing that may happen next; `broken` says which law it breaks."""

    label: str
    state: State
    broken: str = ""


class Found(NamedTuple):
    """The end of an exploration: the way to a broken law, if there is one."""

    states: int
    broken: str = ""
    trace: tuple[str, ...] = ()


def explore(system: System, most: int = 1_000_000) -> Found:
    """Visit every state; stop at the first that breaks a law, by a shortest way.

    Raises: RuntimeError if there are more states than `most`: then nothing was proved.
    """
    return _Explorer(system).run(most)


class _Explorer:
    def __init__(self, system: System) -> None:
        self.system = system
        self.decide, self.leave = cache(system.decide), cache(system.leave)
        self.evict = cache(system.evict or broken_by_rule)
        kinds = [(number, ballot) for number in range(len(system.rounds)) for ballot in range(1, system.highest + 1)]
        self.proposals = {kind: 1 << 2 * bit for bit, kind in enumerate(kinds)}
        self.releases = {kind: 2 << 2 * bit for bit, kind in enumerate(kinds)}
        self.pruned = cache(self.prune)

    def run(self, most: int) -> Found:
        start = State((Member(),) * NODES, tuple(Client(rounds) for rounds in self.system.rounds))
        came: dict[State, tuple[State, str] | None] = {start: None}
        todo = deque([start])
        while todo:
            state = todo.popleft()
            for step in self.steps(state):
                if step.broken:
                    return Found(len(came), step.broken, (*_way(came, state), step.label))
                if step.state not in came:
                    came[step.state] = (state, step.label)
                    todo.append(step.state)
            if len(came) > most:
                raise RuntimeError(f"more than {most} states: make the system smaller")
        return Found(len(came))

    def prune(self, node: Node, inbox: int) -> int:
        """Return the messages that may still change something at this node."""
        if not self.system.prunes:
            return inbox
        for (number, ballot), message in (*self.proposals.items(), *self.releases.items()):
            ended = node.holder != NAMES[number] or node.ballot > ballot
            if inbox & message and ballot <= node.counter and ended:
                inbox &= ~message
        return inbox

    def steps(self, state: State) -> Iterator[Step]:
        for number, client in enumerate(state.clients):
            yield from self.client_steps(state, number, client)
        for at, member in enumerate(state.members):
            yield from self.deliveries(state, at, member)
            if self.system.expires and member.node.ballot:
                free = Node(member.node.counter)
                run_out = member._replace(node=free, inbox=self.pruned(free, member.inbox))
                yield Step(f"a grant of {member.node.ballot} runs out", _with_member(state, at, run_out))
            if self.system.forgets and not state.forgot and member.node.counter:
                blank = _with_member(state, at, member._replace(node=Node()))
                yield Step(f"the node with {member.node.counter} forgets", blank._replace(forgot=True))

    def client_steps(self, state: State, number: int, client: Client) -> Iterator[Step]:
        name = NAMES[number]
        if client.left and client.phase is not Phase.HOLDS:
            # From an unfinished round, too: the nodes asked for a higher ballot, and nothing is released in between.
            for ballot in range(client.ballot + 1, self.system.highest + 1):
                asking = Client(client.left - 1, ballot, Phase.ASKS, state.won.bit_length() - 1)
                yield Step(f"{name} proposes {ballot}", self.sent(state, number, asking, self.proposals))
        if self.system.evict and state.target is None and client.phase is Phase.HOLDS:
            yield Step(f"somebody breaks {client.ballot} of {name}", state._replace(target=(number, client.ballot)))
        if client.phase is Phase.ASKS and self.system.resends:
            yield Step(f"{name} sends {client.ballot} again", self.sent(state, number, client, self.proposals))
        if client.phase is not Phase.IDLE:
            does = "releases" if client.phase is Phase.HOLDS else "gives up"
            idle = client._replace(phase=Phase.IDLE, floor=0)
            yield Step(f"{name} {does} {client.ballot}", self.sent(state, number, idle, self.releases))

    def sent(self, state: State, number: int, client: Client, kind: dict[tuple[int, int], int]) -> State:
        message, vote = kind[number, client.ballot], 1 << number
        keeps = client.phase is state.clients[number].phase is Phase.ASKS and client == state.clients[number]
        return State(
            tuple(
                sorted(
                    Member(node, self.pruned(node, inbox | message), votes if keeps else votes & ~vote, told)
                    for node, inbox, votes, told in state.members
                )
            ),
            _with_client(state.clients, number, client),
            state.won,
            state.forgot,
            state.target,
        )

    def deliveries(self, state: State, at: int, member: Member) -> Iterator[Step]:
        """Deliver what changes something; a message that changes nothing now may as well still be on its way."""
        if state.target is not None and not member.told:
            number, ballot = state.target
            node = self.evict(member.node, NAMES[number], ballot)
            done = member._replace(node=node, inbox=self.pruned(node, member.inbox), told=True)
            yield self.judged(f"a node breaks {ballot} of {NAMES[number]}", _with_member(state, at, done))
        for (number, ballot), message in self.releases.items():
            if member.inbox & message:
                node = self.leave(member.node, NAMES[number], ballot)
                if node != member.node:
                    done = member._replace(node=node, inbox=self.pruned(node, member.inbox & ~message))
                    yield Step(f"a release of {ballot} by {NAMES[number]} arrives", _with_member(state, at, done))
        for (number, ballot), message in self.proposals.items():
            if member.inbox & message:
                node, answer = self.decide(member.node, NAMES[number], ballot)
                if answer.kind is GRANTED:
                    done = member._replace(node=node, inbox=self.pruned(node, member.inbox & ~message))
                    for step in self.granted(state, at, done, number, ballot):
                        yield self.judged(step.label, step.state, step.broken)

    def judged(self, label: str, state: State, broken: str = "") -> Step:
        """See that no majority renews what a majority has been told to break."""
        if state.target is not None and sum(member.told for member in state.members) >= majority(NODES):
            number, ballot = state.target
            answers = [prolonged(member.node, NAMES[number], ballot, FOREVER, NOW)[1] for member in state.members]
            if answers.count(PROLONGED) >= majority(NODES):
                broken = broken or f"{ballot} of {NAMES[number]} can be renewed, and is broken"
        return Step(label, state, broken)

    def granted(self, state: State, at: int, member: Member, number: int, ballot: int) -> Iterator[Step]:
        label = f"a node grants {ballot} to {NAMES[number]}"
        yield Step(f"{label}, the reply is lost", _with_member(state, at, member))
        client = state.clients[number]
        if client.phase is not Phase.ASKS or not self.system.counts(client.ballot, ballot):
            return
        member = member._replace(votes=member.votes | 1 << number)
        after = _with_member(state, at, member)
        if sum(member.votes >> number & 1 for member in after.members) < self.system.needed:
            yield Step(label, after)
            return
        won = state.won | 1 << client.ballot
        clients = _with_client(state.clients, number, client._replace(phase=Phase.HOLDS))
        yield Step(
            f"{label}, which now holds", after._replace(clients=clients, won=won), self.broken(state, number, client)
        )

    def broken(self, state: State, number: int, client: Client) -> str:
        """Say which law the token breaks that this client wins now."""
        if state.won >> client.ballot & 1:
            return f"token {client.ballot} is given twice"
        if client.ballot <= client.floor:
            return f"token {client.ballot} is given after {client.floor}"
        if not self.system.expires and any(other.phase is Phase.HOLDS for other in state.clients):
            return "two hold, and nothing has run out"
        return ""


def _way(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    labels: list[str] = []
    while (before := came[state]) is not None:
        state, label = before
        labels.append(label)
    return tuple(reversed(labels))


def _with_member(state: State, at: int, member: Member) -> State:
    members = sorted((*state.members[:at], member, *state.members[at + 1 :]))
    return State(tuple(members), state.clients, state.won, state.forgot, state.target)


def _with_client(clients: tuple[Client, ...], number: int, client: Client) -> tuple[Client, ...]:
    return (*clients[:number], client, *clients[number + 1 :])
