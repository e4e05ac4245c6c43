"""A model of brokers that ship a log to an object store, and of a takeover. `explore` visits every
state that two brokers can reach with a few messages.

No code ships yet: the model was written before it, so that the code can follow rules that hold. The
store knows one operation: create an object, if its name is free. A request may take effect long
after it was sent, more than once, and after its sender has died, and its answer may be lost. Nobody
can know that a primary is dead, so a standby may take over at any moment.

    log/NUMBER        a tick: messages with their offsets, and the first offset that is not reserved
    boundary/NUMBER   below this number nothing counts; it contains the state up to there

* A primary creates the numbers in order, one after the other. If a name is taken by another object,
  it has lost.
* After it has created an object, it reads the boundary. If its number is below, the name was free
  only because its object had been removed, and it has lost.
* A standby replays the state, and creates the next number with a new epoch. That makes it primary.
* A primary gives out only offsets that are reserved in the store. Its successor begins behind them.
* Objects are removed only after a boundary above them exists.

With `sync` a message is acknowledged when its object exists, otherwise when it is on the disk,
which dies with its broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

RESERVED: Final = 2  # offsets that an object reserves beyond its last message

IDLE, TAKING, PRIMARY = "idle", "taking over", "primary"


class Rules(NamedTuple):
    """The rules of the protocol, and the bounds of the search. Each rule can be left out."""

    sync: bool = True
    creates_if_absent: bool = True
    reads_boundary: bool = True
    boundary_first: bool = True
    reserves: bool = True
    acknowledges_created: bool = True
    numbers: int = 4
    messages: int = 2
    in_flight: int = 2
    crashes: int = 1
    collections: int = 1


class Thing(NamedTuple):
    """An object of the log. `messages` are pairs of offset and message."""

    epoch: int
    writer: int
    messages: tuple[tuple[int, int], ...]
    reserved: int


class Request(NamedTuple):
    """A creation that is on its way."""

    writer: int
    number: int
    thing: Thing


@dataclass(frozen=True, slots=True)
class Node:
    """A broker. `waiting` are its messages that are not in the store."""

    role: str = IDLE
    epoch: int = 0
    number: int = 0  # the next number to create
    offset: int = 0  # the next offset to give out
    reserved: int = 0
    stored: tuple[tuple[int, int], ...] = ()
    waiting: tuple[tuple[int, int], ...] = ()
    out: tuple[int, Thing] | None = None


@dataclass(frozen=True, slots=True)
class State:
    """Everything: the store, requests on their way, brokers, and what clients know."""

    log: tuple[Thing | None, ...]
    boundary: int = 0
    below: tuple[tuple[int, int], ...] = ()  # the messages below the boundary
    epoch_below: int = 0
    reserved_below: int = 0
    flying: tuple[Request, ...] = ()
    nodes: tuple[Node, Node] = (Node(), Node())
    given: frozenset[tuple[int, int]] = frozenset()
    acknowledged: frozenset[tuple[int, int]] = frozenset()
    published: int = 0
    crashes: int = 0
    collections: int = 0


class Broken(Exception):
    """An invariant does not hold. `steps` lead to the state."""

    def __init__(self, what: str, steps: list[str]) -> None:
        super().__init__(f"{what}, after: {'; '.join(steps)}")
        self.what = what
        self.steps = steps


def counted(state: State) -> Iterator[Thing]:
    """Yield the objects that count: from the boundary on, without a gap."""
    for thing in state.log[state.boundary :]:
        if thing is None:
            return
        yield thing


def recovered(state: State) -> tuple[tuple[int, int], ...]:
    """Return the messages that a broker would recover from the store now."""
    return state.below + tuple(pair for thing in counted(state) for pair in thing.messages)


def broken_rule(state: State, rules: Rules) -> str:
    """Return the invariant that does not hold, or ""."""
    if len({offset for offset, _ in state.given}) < len(state.given):
        return "two messages have the same offset"
    found = recovered(state)
    if len({message for _, message in found}) < len(found):
        return "a message is stored twice"
    if [offset for offset, _ in found] != sorted({offset for offset, _ in found}):
        return "offsets do not ascend"
    if rules.sync and not state.acknowledged <= set(found):
        return "an acknowledged message is lost"
    return ""


def steps(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Yield each step that is possible, with the state after it."""
    for which in (0, 1):
        yield from _of_node(state, rules, which)
    for request in set(state.flying):
        yield from _arrives(state, rules, request)
    for number in range(rules.numbers):
        removable = number < state.boundary or (
            not rules.boundary_first and state.collections and number < _end(state)
        )
        if removable and state.log[number] is not None:
            log = (*state.log[:number], None, *state.log[number + 1 :])
            yield f"object {number} is removed", replace(state, log=log)


def _end(state: State) -> int:
    return state.boundary + sum(1 for _ in counted(state))


def _with(state: State, which: int, node: Node) -> State:
    nodes = (node, state.nodes[1]) if which == 0 else (state.nodes[0], node)
    return replace(state, nodes=nodes)


def _of_node(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    node = state.nodes[which]
    name = "AB"[which]
    if node.role == IDLE:
        number = _end(state)
        if number < rules.numbers:
            last = [state.epoch_below, *(thing.epoch for thing in counted(state))][-1]
            begin = _next_offset(state, rules)
            thing = Thing(last + 1, which, (), begin + RESERVED)
            taking = replace(node, role=TAKING, number=number, offset=begin, out=(number, thing))
            yield from _send(f"{name} takes over", _with(state, which, taking), rules, which)
    elif state.crashes < rules.crashes:
        dead = replace(_with(state, which, Node()), crashes=state.crashes + 1)
        yield f"{name} dies", dead
    if node.role == PRIMARY:
        full = rules.reserves and node.offset >= node.reserved
        if state.published < rules.messages and not full:
            pair = (node.offset, state.published)
            more = replace(node, offset=node.offset + 1, waiting=(*node.waiting, pair))
            after = replace(
                _with(state, which, more),
                published=state.published + 1,
                given=state.given | {pair},
            )
            if not rules.acknowledges_created:
                after = replace(after, acknowledged=state.acknowledged | {pair})
            yield f"{name} takes message {pair[1]} at {pair[0]}", after
        if node.out is None and (node.waiting or full) and node.number < rules.numbers:
            thing = Thing(node.epoch, which, node.waiting, node.offset + RESERVED)
            sent = replace(node, out=(node.number, thing))
            yield from _send(f"{name} ships", _with(state, which, sent), rules, which)
        if (
            node.out is None
            and state.collections < rules.collections
            and node.number > state.boundary
        ):
            after = replace(
                state,
                boundary=node.number if rules.boundary_first else state.boundary,
                below=node.stored if rules.boundary_first else state.below,
                epoch_below=node.epoch if rules.boundary_first else state.epoch_below,
                reserved_below=node.reserved if rules.boundary_first else state.reserved_below,
                collections=state.collections + 1,
            )
            yield f"{name} makes boundary {node.number}", after
    if node.out is not None:
        yield from _send(f"{name} sends again", state, rules, which)


def _next_offset(state: State, rules: Rules) -> int:
    """Return the first offset of a successor."""
    found = recovered(state)
    behind = found[-1][0] + 1 if found else 0
    reserved = [state.reserved_below, *(thing.reserved for thing in counted(state))]
    return max(behind, *reserved) if rules.reserves else behind


def _send(text: str, state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    out = state.nodes[which].out
    assert out is not None
    if len(state.flying) < rules.in_flight:
        flying = tuple(sorted((*state.flying, Request(which, *out))))
        yield text, replace(state, flying=flying)


def _arrives(state: State, rules: Rules, request: Request) -> Iterator[tuple[str, State]]:
    """The store carries out a request. Its answer is lost, or arrives."""
    left = list(state.flying)
    left.remove(request)
    there = state.log[request.number]
    if there is None or not rules.creates_if_absent:
        log = list(state.log)
        log[request.number] = there = request.thing
        state = replace(state, log=tuple(log))
    state = replace(state, flying=tuple(left))
    text = f"creation of {request.number} by {'AB'[request.writer]}"
    yield f"{text} is carried out, its answer is lost", state
    node = state.nodes[request.writer]
    if node.out != (request.number, request.thing):
        return
    # If the name was taken, the writer reads the object. It may be its own, sent before.
    is_own = there == request.thing
    counts = request.number >= state.boundary or not rules.reads_boundary
    if not (is_own and counts):
        yield f"{text} fails", _with(state, request.writer, Node())
        return
    yield f"{text} succeeds", _succeeds(state, rules, request, node)


def _succeeds(state: State, rules: Rules, request: Request, node: Node) -> State:
    thing = request.thing
    after = replace(
        node, role=PRIMARY, number=request.number + 1, reserved=thing.reserved, out=None
    )
    if node.role == TAKING:
        # The objects below its own never change, so it may read them now.
        stored = recovered(replace(state, log=(*state.log[: request.number], None)))
        return _with(state, request.writer, replace(after, epoch=thing.epoch, stored=stored))
    after = replace(
        after, stored=node.stored + thing.messages, waiting=node.waiting[len(thing.messages) :]
    )
    state = _with(state, request.writer, after)
    return replace(state, acknowledged=state.acknowledged | set(thing.messages))


def explore(rules: Rules) -> int:
    """Visit all states, nearest first. Return their number. Raises `Broken`."""
    first = State((None,) * rules.numbers)
    before: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        for text, after in steps(state, rules):
            if after in before:
                continue
            before[after] = (state, text)
            if what := broken_rule(after, rules):
                raise Broken(what, _path(before, after))
            waiting.append(after)
    return len(before)


def _path(before: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    found: list[str] = []
    at = before[state]
    while at is not None:
        state, text = at
        found.append(text)
        at = before[state]
    return found[::-1]
