"""A model of brokers that ship a log to an object store, and of a takeover. `explore` visits every
state that two brokers can reach with a few messages.

The store knows one operation: create an object, if its name is free. A request may take effect long
after it was sent, more than once, and after its sender has died. Its answer may be lost. Nobody can
know that a primary is dead, so a standby may take over at any moment.

    log/NUMBER        an object: messages with their offsets, the first offset that is not
                      reserved, the epoch, the writer, and the identity of the object before it
    boundary/NUMBER   below this number nothing counts; it contains the state up to there

A primary:

* It creates the numbers in order. Up to `window` requests are on their way at once. Answers come in
  any order.
* A number counts as shipped when it and all numbers before it have been created. With `sync` a
  message is acknowledged then, otherwise when it is on the disk.
* If a number is taken by another object, the primary has lost, and stops.
* It gives out only offsets that are reserved by the numbers that count. Its successor begins behind
  them.

A takeover. Each process takes over before its first message, also if it was primary before:

* It reads the chain up to its end T, the first number that is missing. There it creates a
  *takeover* with the next epoch. If T is taken, it looks again.
* Then it reads the boundary. If T is below, the name was free only because its object had been
  removed. It has not taken over, and looks again.
* Its next number is T + 1 + `window`. Requests of the epoch before may still create the numbers
  between the two. These objects are void.

A reader walks the numbers that exist, from the boundary on. At the first one that is missing, it
looks at the last `window` + 1 objects. If one of them is a takeover, the objects behind it are
void, and the chain goes on behind the window. Otherwise the chain ends. Then the reader reads the
boundary again. If it has moved, objects may have been removed meanwhile, and the reader begins
again.

Collection:

* A boundary is the number of an object that its maker counts. The numbers behind a takeover are
  none.
* Only objects below a boundary that exists are removed.
* A takeover is never removed. The first number that a former primary does not count is T or below.
  So it meets the takeover, or objects of its own.

A reader refuses a log in which an object that counts does not follow the one before it. This is a
defence. While all rules hold, no reader meets such a log, and the same states are reached without
the check.

The tests use small bounds. To visit more states, change the bounds. This takes 90 seconds and
600 MB:

    .venv/bin/python -c "from tests.models.shipping_model import Rules, explore
    print(explore(Rules(numbers=14, messages=0, empty=3, processes=3, crashes=1)))"
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, NamedTuple

from tests.models.search import visit

RESERVED: Final = 2  # offsets that an object reserves beyond its last message

IDLE, LOOKING, TAKING, PRIMARY = "idle", "looking", "taking over", "primary"

Pair = tuple[int, int]  # an offset and its message


class Rules(NamedTuple):
    """The rules of the protocol, and the bounds of the search. Each rule can be left out.

    `empty` counts objects without messages, `processes` all starts of a process, `crashes` deaths
    that destroy the disk, and `restarts` deaths after which the disk is there.
    """

    sync: bool = True
    creates_if_absent: bool = True
    counts_prefix: bool = True
    skips_window: bool = True
    keeps_takeovers: bool = True
    reads_boundary: bool = True
    reads_twice: bool = True
    bounds_counted: bool = True
    boundary_first: bool = True
    reserves: bool = True
    acknowledges_created: bool = True
    window: int = 2
    numbers: int = 12
    messages: int = 2
    empty: int = 0
    processes: int = 2
    crashes: int = 0
    restarts: int = 0
    collections: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Thing:
    """An object of the log. `thing_of` makes each one once, so it is its own identity."""

    previous: Thing | None
    writer: str
    takeover: bool
    epoch: int
    messages: tuple[Pair, ...]
    reserved: int


@dataclass(frozen=True, slots=True, eq=False)
class Boundary:
    """A boundary: the last object below it that counts, and all messages below it."""

    number: int
    last: Thing | None
    messages: tuple[Pair, ...]


thing_of = cache(Thing)
boundary_of = cache(Boundary)
NEW_LOG: Final = boundary_of(0, None, ())


class Place(NamedTuple):
    """An object and its number."""

    number: int
    thing: Thing


class Chain(NamedTuple):
    """The objects that count, from the boundary on, and the number at which the chain ends."""

    places: tuple[Place, ...]
    end: int


class Node(NamedTuple):
    """A broker.

    * `boundary`, `chain`: what it counts, from the boundary that it read.
    * `out`: what it has sent behind that, and `created` is what it knows to exist of them.
    * `waiting`: its messages that are not in an object.
    * `disk`: what a broker that restarts has on its disk.
    """

    role: str = IDLE
    writer: str = ""
    boundary: Boundary = NEW_LOG
    chain: tuple[Place, ...] = ()
    out: tuple[Place, ...] = ()
    created: frozenset[Place] = frozenset()
    offset: int = 0  # the next offset to give out
    waiting: tuple[Pair, ...] = ()
    disk: tuple[Pair, ...] | None = None


class State(NamedTuple):
    """Everything: the store, requests, brokers, what clients know, and what has happened."""

    log: tuple[Thing | None, ...]
    boundary: Boundary = NEW_LOG
    sent: frozenset[Place] = frozenset()  # may take effect at any time, and again
    nodes: tuple[Node, Node] = (Node(), Node())
    given: frozenset[Pair] = frozenset()
    acknowledged: frozenset[Pair] = frozenset()
    counted: frozenset[Place] = frozenset()
    published: int = 0
    empty: int = 0
    processes: int = 0
    crashes: int = 0
    restarts: int = 0
    collections: int = 0


def find_chain(log: tuple[Thing | None, ...], boundary: Boundary, rules: Rules) -> Chain | None:
    """Return the objects that count. None: one of them does not follow the one before it."""
    found: list[Place] = []
    number = boundary.number
    while True:
        run: list[Place] = []
        while number < rules.numbers and (thing := log[number]) is not None:
            run.append(Place(number, thing))
            number += 1
        takeovers = [place for place in run[-rules.window - 1 :] if place.thing.takeover]
        if not (takeovers and rules.skips_window):
            found += run
            break
        found += [place for place in run if place.number <= takeovers[0].number]
        number = _after(takeovers[0], rules)
    last = boundary.last
    for place in found:
        if place.thing.previous is not last:
            return None
        last = place.thing
    return Chain(tuple(found), number)


def _after(place: Place, rules: Rules) -> int:
    skips = place.thing.takeover and rules.skips_window
    return place.number + 1 + (rules.window if skips else 0)


def _messages(boundary: Boundary, places: tuple[Place, ...]) -> tuple[Pair, ...]:
    return boundary.messages + tuple(pair for place in places for pair in place.thing.messages)


def broken_rule(state: State, rules: Rules) -> str:
    """Return the invariant that does not hold, or ""."""
    if len({offset for offset, _ in state.given}) < len(state.given):
        return "two messages have the same offset"
    if len({number for number, _ in state.counted}) < len(state.counted):
        return "two primaries count different objects under one number"
    chain = find_chain(state.log, state.boundary, rules)
    if chain is None:
        return "the log cannot be read"
    found = _messages(state.boundary, chain.places)
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
    for place in sorted(state.sent, key=lambda one: (one.number, one.thing.writer)):
        after = _create(state, rules, place)
        if after is not state:
            yield f"creation of {place.number} by {place.thing.writer} is carried out", after
    for number, there in enumerate(state.log):
        early = not rules.boundary_first and state.collections > 0
        is_kept = there is None or (there.takeover and rules.keeps_takeovers)
        if not is_kept and (number < state.boundary.number or early):
            log = (*state.log[:number], None, *state.log[number + 1 :])
            yield f"object {number} is removed", state._replace(log=log)


def _create(state: State, rules: Rules, place: Place) -> State:
    number, thing = place
    there = state.log[number]
    if there is thing or (there is not None and rules.creates_if_absent):
        return state
    sent = state.sent
    if thing.takeover and rules.keeps_takeovers and rules.creates_if_absent:
        # No other request for this number can take effect. Without them there are fewer states.
        sent = frozenset(one for one in sent if one.number != number)
    log = (*state.log[:number], thing, *state.log[number + 1 :])
    return state._replace(log=log, sent=sent)


def _with(state: State, which: int, node: Node) -> State:
    nodes = (node, state.nodes[1]) if which == 0 else (state.nodes[0], node)
    return state._replace(nodes=nodes)


def _of_node(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    node = state.nodes[which]
    if node.role == IDLE:
        # The brokers are equal, so A begins.
        if state.processes < rules.processes and (which == 0 or state.processes > 0):
            begun = state._replace(processes=state.processes + 1)
            node = node._replace(role=LOOKING, writer=f"{'AB'[which]}{begun.processes}")
            begun = _with(begun, which, node)
            yield from (_takes if rules.reads_twice else _looks)(begun, rules, which)
        return
    yield from _dies(state, rules, which)
    if node.role == LOOKING:
        yield from _takes(state, rules, which)
        if not rules.reads_twice:
            yield from _looks(state, rules, which)
    for place in node.out:
        if place not in node.created:
            yield from _answered(state, rules, which, place)
    if node.role == PRIMARY:
        yield from _publishes(state, rules, which)
        yield from _ships(state, rules, which)
        yield from _bounds(state, rules, which)


def _dies(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    node = state.nodes[which]
    if state.crashes < rules.crashes:
        after = _with(state, which, Node())
        yield f"{node.writer} dies", after._replace(crashes=state.crashes + 1)
    disk = node.disk
    if node.role == PRIMARY:
        disk = _messages(node.boundary, node.chain + node.out) + node.waiting
    if disk is not None and state.restarts < rules.restarts:
        after = _with(state, which, Node(offset=node.offset, disk=disk))
        yield f"{node.writer} restarts", after._replace(restarts=state.restarts + 1)


def _looks(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    node = state.nodes[which]._replace(boundary=state.boundary)
    yield f"{node.writer} reads boundary {node.boundary.number}", _with(state, which, node)


def _takes(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    node = state.nodes[which]
    # A reader that reads the boundary again knows that it had not moved when it read the log.
    boundary = state.boundary if rules.reads_twice else node.boundary
    chain = find_chain(state.log, boundary, rules)
    if chain is None or chain.end >= rules.numbers:
        return
    last = chain.places[-1].thing if chain.places else boundary.last
    stored = _messages(boundary, chain.places)
    reserved = last.reserved if last is not None else 0
    waiting: tuple[Pair, ...] = ()
    if node.disk is not None and last is not None and last.writer[0] == node.writer[0]:
        # No other broker has continued the log. The disk may have messages that it does not have.
        waiting = tuple(pair for pair in node.disk if pair not in stored)
    else:
        behind = stored[-1][0] + 1 if stored else 0
        begin = max(behind, reserved) if rules.reserves else behind
        node = node._replace(offset=begin, disk=None)
    thing = thing_of(
        last,
        node.writer,
        True,
        last.epoch + 1 if last is not None else 1,
        (),
        max(reserved, node.offset + RESERVED),
    )
    place = Place(chain.end, thing)
    node = node._replace(
        role=TAKING, boundary=boundary, chain=chain.places, out=(place,), waiting=waiting
    )
    after = _with(state, which, node)._replace(sent=state.sent | {place})
    yield f"{node.writer} wants to take over at {place.number}", after


def _answered(state: State, rules: Rules, which: int, place: Place) -> Iterator[tuple[str, State]]:
    """The store carries out a request, and its writer gets the answer. If the name was taken, the
    writer reads the object. It may be its own, sent before.
    """
    node = state.nodes[which]
    state = _create(state, rules, place)
    is_own = state.log[place.number] is place.thing
    if node.role == TAKING:
        is_below = rules.reads_boundary and place.number < state.boundary.number
        if is_below or not is_own:
            base = NEW_LOG if rules.reads_twice else state.boundary
            again = Node(LOOKING, node.writer, base, offset=node.offset, disk=node.disk)
            text = f"{node.writer} has not taken over at {place.number}"
            yield text, _with(state, which, again)
            return
    elif not is_own:
        yield f"{node.writer} finds that {place.number} is taken", _with(state, which, Node())
        return
    created = node.created | {place}
    size = 0
    while size < len(node.out) and node.out[size] in created:
        size += 1
    counted = node.out[:size]
    node = node._replace(
        role=PRIMARY,
        chain=node.chain + counted,
        out=node.out[size:],
        created=created.difference(counted),
        disk=None,
    )
    after = _with(state, which, node)._replace(counted=state.counted.union(counted))
    if rules.acknowledges_created:
        shipped = counted if rules.counts_prefix else (place,)
        messages = (one.thing.messages for one in shipped)
        after = after._replace(acknowledged=state.acknowledged.union(*messages))
    text = "takes over at" if place.thing.takeover else "has created"
    yield f"{node.writer} {text} {place.number}", after


def _publishes(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    node = state.nodes[which]
    if state.published == rules.messages or _is_full(node, rules):
        return
    pair = (node.offset, state.published)
    node = node._replace(offset=node.offset + 1, waiting=(*node.waiting, pair))
    after = _with(state, which, node)._replace(
        published=state.published + 1, given=state.given | {pair}
    )
    if not rules.acknowledges_created:
        after = after._replace(acknowledged=state.acknowledged | {pair})
    yield f"{node.writer} takes message {pair[1]} at {pair[0]}", after


def _is_full(node: Node, rules: Rules) -> bool:
    return rules.reserves and node.offset >= node.chain[-1].thing.reserved


def _ships(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    node = state.nodes[which]
    last = node.out[-1] if node.out else node.chain[-1]
    number = _after(last, rules)
    first = node.out[0].number if node.out else number
    if number >= min(first + rules.window, rules.numbers):
        return
    is_empty = not node.waiting and (len(node.out) > 0 or not _is_full(node, rules))
    if is_empty and state.empty == rules.empty:
        return
    reserved = max(last.thing.reserved, node.offset + RESERVED)
    thing = thing_of(last.thing, node.writer, False, last.thing.epoch, node.waiting, reserved)
    place = Place(number, thing)
    after = _with(state, which, node._replace(out=(*node.out, place), waiting=()))
    after = after._replace(sent=state.sent | {place}, empty=state.empty + is_empty)
    yield f"{node.writer} ships {number}", after


def _bounds(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    node = state.nodes[which]
    if state.collections == rules.collections:
        return
    after = state._replace(collections=state.collections + 1)
    if not rules.boundary_first:
        yield f"{node.writer} begins to remove", after
        return
    numbers = [place.number for place in node.chain]
    if not rules.bounds_counted:
        numbers.append(numbers[-1] + 1)
    for size, number in enumerate(numbers):
        if number > state.boundary.number:
            below = node.chain[:size]
            last = below[-1].thing if below else node.boundary.last
            made = boundary_of(number, last, _messages(node.boundary, below))
            yield f"{node.writer} makes boundary {number}", after._replace(boundary=made)


def explore(rules: Rules) -> int:
    """Visit all states, nearest first. Return their number. Raises `Broken`."""
    first = State((None,) * rules.numbers)
    return len(visit(first, partial(steps, rules=rules), partial(broken_rule, rules=rules)))
