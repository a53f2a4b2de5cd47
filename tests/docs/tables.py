"""Tables of the documentation that are drawn from code. As a program, by `make docs`, it writes them into the pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from holdfast.core.lease import EXITS, LIVE, TRANSITIONS, Fact, State
from holdfast.core.names import MIN_TTL
from holdfast.core.promises import LAWS, Broken, Capabilities, Fault
from holdfast.stores.registry import STORES, find_store
from tests.docs import reference
from tests.docs.pages import generated, pages, replace_generated


def stores() -> list[Capabilities]:
    """Return what each store says of itself."""
    found = []
    for scheme in STORES:
        capabilities = find_store(scheme, "sync").capabilities
        assert isinstance(capabilities, Capabilities)
        assert capabilities == find_store(scheme, "async").capabilities
        if capabilities not in found:  # rediss:// is redis://
            found.append(capabilities)
    return found


def faults() -> str:
    """Draw store × fault → laws kept."""
    rows = [
        [f"`{can.store}`", *(_kept(can.faults[fault]) if fault in can.faults else "cannot happen" for fault in Fault)]
        for can in stores()
    ]
    return _table(["store", *(fault.value for fault in Fault)], rows)


def abilities() -> str:
    """Draw what each store can do."""
    rows = [
        [
            f"`{can.store}`",
            can.scope.value,
            *(_yes(able) for able in (can.fair, can.unfair, can.shared, can.detached, can.register)),
            "those that can go" if not can.herd else "all",
            f"{max(can.min_ttl, MIN_TTL):g} s " + ("and up" if can.max_ttl == inf else f"to {can.max_ttl:g} s"),
            f"{can.waiting_life:g} s",
        ]
        for can in stores()
    ]
    head = ["store", "excludes within one", "fair", "unfair", "shared", "detached", "register", "a change wakes", "ttl"]
    return _table([*head, "waiting life"], rows)


def exits() -> str:
    """Draw how a `with` ends."""
    rows = [[ending.value, "lost" if lost else "held", leaves.value] for (ending, lost), leaves in EXITS.items()]
    return _table(["body ended by", "lease", "what leaves the `with`"], rows)


def transitions() -> str:
    """Draw state × fact → state."""
    rows = [[f"**{state.value}**", *(TRANSITIONS[state][fact].value for fact in Fact)] for state in State]
    return _table(["", *(fact.value for fact in Fact)], rows)


def diagram() -> str:
    """Draw the states of a lease as a picture; what leads nowhere else is left out."""
    lines = [f"    [*] --> {_name(State.HELD)}: granted"]
    for state in LIVE:
        for target in State:
            facts = [fact.value for fact, to in TRANSITIONS[state].items() if to is target and to is not state]
            if facts:
                lines.append(f"    {_name(state)} --> {_name(target)}: {' / '.join(facts)}")
    lines += [
        f"    {_name(state)} --> [*]" for state in State if all(to is state for to in TRANSITIONS[state].values())
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


PARTS = {
    "faults": faults,
    "abilities": abilities,
    "exits": exits,
    "transitions": transitions,
    "diagram": diagram,
    **reference.PARTS,
}


def _kept(broken: Broken) -> str:
    return f"all {len(LAWS)}" if not broken else "all but " + ", ".join(map(str, sorted(broken)))


def _yes(able: bool) -> str:
    return "yes" if able else "no"


def _name(state: State) -> str:
    return state.value.replace(" ", "_")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main() -> None:
    """Write the generated parts of every page anew."""
    drawn = {name: draw() for name, draw in PARTS.items()}
    for page in pages():
        if generated(page):
            page.write_text(replace_generated(page.read_text(encoding="utf-8"), drawn), encoding="utf-8")


if __name__ == "__main__":
    main()
