"""A model of time: the lease of a primary, the patience of a standby, and a planned handover.
`explore` visits every state that two brokers can reach with a few ticks and messages.

The log decides who is primary: see `shipping_model.py`. Of it, this model keeps the numbers, the
takeover with its window, and requests that take effect long after they were sent. It adds what the
log cannot decide: until when a broker may acknowledge a message that is only on its disk.

Time passes in units, without an end. Each step is possible at any time and never has to happen. So
an actor that is stopped, for any time and alone, is an actor that takes no step. Its clock goes on.
The topic, the shipper, and the standby are actors of their own. The topic reads one cell in shared
memory that only the shipper writes: `lease_until`.

The primary:

* Its shipper creates ticks, one in each period at least. A tick without messages is a heartbeat.
* *Lease.* When a tick and all ticks before it are known to exist, the shipper sets `lease_until` to
  the time at which the creation of this tick began, plus `lease`. The creation begins before its
  first request is sent. A try that is repeated does not begin again.
* The topic stores a message, and acknowledges it if now < `lease_until`, and if its oldest message
  that is not shipped is not older than `bound`. The check and the reply are one step here. If the
  topic is stopped between the two, one reply may be sent late. With `sync` a message is
  acknowledged when its tick and all before it exist. Then a late reply does no harm, and no lease
  is needed for it.
* A shipper that finds a foreign object under its number stops for good. It does not tell the topic:
  the lease ends by itself.
* A shipper that was restarted sets no lease before it has taken over. It takes over at once if the
  last object that counts was made by its broker. Otherwise it stops for good. The shipper before it
  is dead. What remains of its lease still counts.
* `bound` does not replace the lease. A primary that was idle has nothing that is not shipped, so
  the bound would let it acknowledge a message long after a takeover.

The standby:

* It reads the log again and again. Patience begins when the answer arrives that shows a number that
  it has not seen before. A standby that has just started has seen none.
* It creates the takeover behind the last object that counts, when `patience` has passed. If that
  number was taken meanwhile, patience begins again.
* Its own lease begins with the creation of its takeover.

A planned handover:

* The primary tells the topics to stop, and waits until all of them have confirmed that they
  acknowledge nothing more. Then it ships everything, and waits until all of it exists. Then it
  creates the tick *released*, alone, and nothing behind it. It never acknowledges again, although
  its lease has not ended.
* If the last object that counts is a released tick of another broker, a standby does not wait.
* The broker that has released comes back as a standby, and waits with patience. This is not needed
  for safety, because the log decides. Without it the broker could win against the standby, and the
  handover would be undone.
* If the shipper dies before it knows that the released tick exists, the next one reads the log. If
  the tick is there, the broker has released. Otherwise it takes over at that number, and the late
  request fails. This is also the only way to give up a handover.

The clocks of two machines differ by at most `drift` units while the patience runs, so `lease` +
`drift` must not exceed `patience`. Clocks must go on while a machine sleeps or is paused:
CLOCK_BOOTTIME does for a suspended machine, CLOCK_MONOTONIC does not. If a hypervisor stops the
machine and its clocks, no lease protects anybody. Only `sync` does.

What is lost. A takeover loses the messages that were acknowledged and not shipped. At every
acknowledgement, all messages that are at risk are younger than `bound`. So what is lost was
acknowledged within `bound` before the *last* acknowledgement. At the time of the takeover it may be
much older.

`find_stuck` searches for a state from which a standby never takes over although the primary is dead
and the store answers.

The tests use small bounds. Each of these takes 15 seconds, and finds nothing:

    Rules(ticks=1, starts=2, deaths=1, drift=0)         165,785 states
    Rules(ticks=0, starts=3, handovers=1, drift=0)      164,923 states
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import NamedTuple

from tests.models.search import path, visit

IDLE, STANDBY, TAKING, PRIMARY = "idle", "standby", "taking over", "primary"
RETURNING, RETAKING, FENCED = "returning", "taking over again", "fenced"
TICK, TAKEOVER, RELEASED = "tick", "takeover", "released"
OPEN, CLOSING, GONE = 0, 1, 2  # GONE: the released tick was sent


class Rules(NamedTuple):
    """The rules of the protocol, and the bounds of the search. Each rule can be left out.

    `ticks` counts ordinary and released ticks, `starts` the starts of standbys and of shippers, and
    `deaths` those of whole brokers with their disk. With `prompt`, the primary and the store keep
    their times: a tick begins in each `period`, and is answered within `answer`.
    """

    sync: bool = False
    checks_lease: bool = True
    from_begin: bool = True
    prefix_only: bool = True
    stops_fenced: bool = True
    takes_over_first: bool = True
    notes_answer: bool = True
    waits_from_start: bool = True
    holds_at_bound: bool = True
    ships_before_release: bool = True
    silent_after_release: bool = True
    waits_after_release: bool = True
    takes_back: bool = True
    clock_goes_on: bool = True
    prompt: bool = False
    lease: int = 2
    patience: int = 3
    bound: int = 1
    drift: int = 1
    period: int = 1
    answer: int = 1
    window: int = 2
    ticks: int = 2
    messages: int = 1
    starts: int = 1
    deaths: int = 0
    handovers: int = 0


class Thing(NamedTuple):
    """An object of the log."""

    number: int
    kind: str
    writer: str
    messages: tuple[int, ...] = ()


class Flight(NamedTuple):
    """An object whose creation began `age` units ago. `created`: its writer knows it to exist."""

    thing: Thing
    age: int = 0
    created: bool = False


class Node(NamedTuple):
    """A broker. All times are ages in units, up to the largest that matters.

    * `lease`: the units that are left.
    * `number`: the next one to create. `since`: units since a creation began (with `prompt`).
    * `unshipped`: messages on its disk that it does not know to be shipped, with their ages.
    * `closing`: how far it has handed over.
    * `seen`: numbers below this one have been seen, `age` units ago. `end` and `released` are the
      end of the log then, and the broker that has released it.
    * `poll`: units since it began to read, or -1.
    """

    role: str = IDLE
    writer: str = ""
    lease: int = 0
    flights: tuple[Flight, ...] = ()
    number: int = 0
    since: int = 0
    unshipped: tuple[tuple[int, int], ...] = ()
    closing: int = OPEN
    seen: int = -1
    age: int = 0
    end: int = 0
    released: str = ""
    poll: int = -1


class State(NamedTuple):
    """Everything: the log, requests, brokers, clients, and what was used of the bounds."""

    log: tuple[Thing | None, ...]
    nodes: tuple[Node, Node]
    sent: frozenset[Thing] = frozenset()  # may take effect at any time
    acknowledged: frozenset[int] = frozenset()
    release_age: int = 0
    broken: str = ""
    published: int = 0
    ticks: int = 0
    starts: int = 0
    deaths: int = 0
    handovers: int = 0
    drift: int = 0


def first_state(rules: Rules) -> State:
    takeover = Thing(0, TAKEOVER, "A0")
    primary = Node(PRIMARY, "A0", rules.lease, number=1 + rules.window)
    return State((takeover,), (primary, Node()))


@cache
def find_chain(log: tuple[Thing | None, ...], window: int) -> tuple[list[Thing], int]:
    """Return the objects that count, and the number at which they end."""
    found: list[Thing] = []
    number = 0
    while True:
        run: list[Thing] = []
        while number < len(log) and (thing := log[number]) is not None:
            run.append(thing)
            number += 1
        takeovers = [thing for thing in run[-window - 1 :] if thing.kind == TAKEOVER]
        if not takeovers:
            return found + run, number
        found += [thing for thing in run if thing.number <= takeovers[0].number]
        number = takeovers[0].number + 1 + window


def may_acknowledge(node: Node, rules: Rules) -> bool:
    """Return True if a topic of this broker would acknowledge a message now."""
    if node.role in (IDLE, STANDBY, TAKING) or (node.lease == 0 and rules.checks_lease):
        return False
    if node.closing == CLOSING or (node.closing == GONE and rules.silent_after_release):
        return False
    return not rules.holds_at_bound or all(age <= rules.bound for _, age in node.unshipped)


def broken_rule(state: State, rules: Rules) -> str:
    """Return the invariant that does not hold, or ""."""
    if state.broken:
        return state.broken
    chain, _ = find_chain(state.log, rules.window)
    owner = chain[-1].writer[0]
    stored = {message for thing in chain for message in thing.messages}
    able = [which for which in (0, 1) if may_acknowledge(state.nodes[which], rules)]
    if rules.prompt:
        if owner != "A":
            return "a prompt primary is overtaken"
        if state.nodes[0].lease == 0:
            return "a prompt primary has no lease"
    if rules.sync:
        return "" if state.acknowledged <= stored else "an acknowledged message is lost"
    if any("AB"[which] != owner for which in able):
        return "a broker may acknowledge although another one has taken over"
    if able and chain[-1].kind == RELEASED:
        return "a broker may acknowledge after its release"
    if chain[-1].kind == RELEASED and not state.acknowledged <= stored:
        return "a handover loses an acknowledged message"
    return ""


def steps(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Yield each step that is possible, with the state after it."""
    yield from _passes(state, rules)
    for thing in sorted(state.sent):
        yield (
            f"creation of {thing.number} by {thing.writer} is carried out",
            _create(state, rules, thing),
        )
    for which in (0, 1):
        node = state.nodes[which]
        if node.role == IDLE:
            yield from _starts(state, rules, which)
            continue
        if state.deaths < rules.deaths:
            after = _with(state, which, Node())
            yield f"{node.writer} dies", after._replace(deaths=state.deaths + 1)
        if node.role in (STANDBY, TAKING, RETAKING):
            yield from _follows(state, rules, which)
        else:
            yield from _publishes(state, rules, which)
            if not rules.prompt:
                yield from _returns(state, rules, which)
        if node.role == PRIMARY:
            yield from _ships(state, rules, which)
        for place in range(len(node.flights)):
            if node.role == PRIMARY and not node.flights[place].created:
                yield from _answered(state, rules, which, place)


def _with(state: State, which: int, node: Node) -> State:
    nodes = (node, state.nodes[1]) if which == 0 else (state.nodes[0], node)
    return state._replace(nodes=nodes)


def _passes(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    if rules.prompt:
        primary = state.nodes[0]
        late = any(one.age >= rules.answer for one in primary.flights if not one.created)
        if late or primary.since >= rules.period:
            return
    state = state._replace(release_age=min(state.release_age + 1, rules.patience))
    a, b = state.nodes
    both = (_older(a, rules, 1), _older(b, rules, 1))
    yield "time passes", state._replace(nodes=both)
    if state.drift < rules.drift:
        fast = (_older(a, rules, 2), _older(b, rules, 2))
        after = state._replace(nodes=fast, drift=state.drift + 1)
        yield "time passes, and patience counts it twice", after
    if not rules.clock_goes_on:
        yield "time passes, and the clock of A stands still", state._replace(nodes=(a, both[1]))


def _older(node: Node, rules: Rules, patience: int) -> Node:
    if node.role == IDLE:
        return node
    flights = tuple(one._replace(age=min(one.age + 1, rules.lease)) for one in node.flights)
    is_standby = node.role in (STANDBY, TAKING)
    return node._replace(
        lease=max(node.lease - 1, 0),
        flights=flights,
        since=node.since + 1 if rules.prompt else 0,
        unshipped=tuple((one, min(age + 1, rules.bound + 1)) for one, age in node.unshipped),
        age=min(node.age + patience, rules.patience) if is_standby else 0,
        poll=min(node.poll + 1, rules.patience) if node.poll >= 0 else -1,
    )


def _create(state: State, rules: Rules, thing: Thing) -> State:
    number = thing.number
    state = state._replace(sent=state.sent - {thing})
    log = state.log + (None,) * (number + 1 - len(state.log))
    if log[number] is not None:
        return state
    last = find_chain(log, rules.window)[0][-1]
    log = (*log[:number], thing, *log[number + 1 :])
    state = state._replace(log=log)
    chain = find_chain(log, rules.window)[0]
    if thing.kind == RELEASED:
        return state._replace(release_age=0)
    if thing.kind == TAKEOVER and chain[-1] == thing:
        if last.kind == RELEASED and last.writer[0] == thing.writer[0]:
            if state.release_age < rules.patience:
                return state._replace(broken="a handover is undone by the broker that released")
        elif last.writer[0] != thing.writer[0] and last.kind != RELEASED and not rules.sync:
            # What is not in the log now is lost. `bound` limits it.
            stored = {message for one in chain for message in one.messages}
            return state._replace(acknowledged=state.acknowledged & stored)
    return state


def _starts(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    if state.starts < rules.starts:
        starts = state.starts + 1
        age = 0 if rules.waits_from_start else rules.patience
        node = Node(STANDBY, f"{'AB'[which]}{starts}", age=age)
        yield (
            f"{node.writer} starts as a standby",
            _with(state, which, node)._replace(starts=starts),
        )


def _follows(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    """A standby reads the log, and takes over."""
    node = state.nodes[which]
    name = node.writer
    if node.role in (TAKING, RETAKING):
        yield from _taken(state, rules, which)
        return
    if node.poll < 0:
        if _would_learn(state, node, rules):
            yield f"{name} begins to read", _with(state, which, node._replace(poll=0))
    else:
        chain, end = find_chain(state.log, rules.window)
        age = node.age
        if len(state.log) > node.seen and (node.seen >= 0 or rules.waits_from_start):
            age = 0 if rules.notes_answer else min(age, node.poll)
        released = chain[-1].writer[0] if chain[-1].kind == RELEASED else ""
        after = node._replace(seen=len(state.log), age=age, end=end, released=released, poll=-1)
        yield f"{name} has read up to {end}", _with(state, which, after)
    is_free = node.released != "" and (node.released != name[0] or not rules.waits_after_release)
    is_patient = node.age >= rules.patience and (node.released != name[0] or rules.takes_back)
    if node.seen >= 0 and (is_free or is_patient):
        yield _sends_takeover(state, which, node._replace(role=TAKING), node.end)


def _would_learn(state: State, node: Node, rules: Rules) -> bool:
    """Return True unless a read would change nothing. Without such reads there are fewer states.

    A standby that notes the beginning of a read may begin it before there is something to learn.
    """
    return (
        not rules.notes_answer
        or len(state.log) > node.seen
        or (find_chain(state.log, rules.window)[1] != node.end)
    )


def _sends_takeover(state: State, which: int, node: Node, number: int) -> tuple[str, State]:
    thing = Thing(number, TAKEOVER, node.writer)
    node = node._replace(flights=(Flight(thing),), number=number + 1, poll=-1)
    after = _with(state, which, node)._replace(sent=state.sent | {thing})
    return f"{node.writer} wants to take over at {number}", after


def _taken(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    node = state.nodes[which]
    thing, age, _ = node.flights[0]
    state = _create(state, rules, thing)
    if state.log[thing.number] != thing:
        role = STANDBY if node.role == TAKING else RETURNING
        node = node._replace(role=role, flights=(), age=0, seen=0, end=0, released="")
        yield f"{node.writer} has not taken over at {thing.number}", _with(state, which, node)
        return
    node = Node(
        PRIMARY,
        node.writer,
        max(node.lease, rules.lease - age),
        number=thing.number + 1 + rules.window,
        unshipped=node.unshipped,
    )
    yield f"{node.writer} takes over at {thing.number}", _with(state, which, node)


def _publishes(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    node = state.nodes[which]
    is_able = may_acknowledge(node, rules._replace(checks_lease=False) if rules.sync else rules)
    if state.published == rules.messages or not is_able:
        return
    message = state.published
    after = _with(state, which, node._replace(unshipped=(*node.unshipped, (message, 0))))
    after = after._replace(published=message + 1)
    if not rules.sync:
        after = after._replace(acknowledged=state.acknowledged | {message})
        stored = {one for thing in find_chain(state.log, rules.window)[0] for one in thing.messages}
        if any(age > rules.bound and one not in stored for one, age in node.unshipped):
            after = after._replace(broken="an acknowledgement ignores the bound")
    yield f"{node.writer} takes message {message}", after


def _returns(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    """A shipper is restarted, reads the log, and wants to take over. Or a broker that has released
    becomes a standby.
    """
    node = state.nodes[which]
    name = "AB"[which]
    if node.role == RETURNING:
        chain, end = find_chain(state.log, rules.window)
        last = chain[-1]
        if last.writer[0] != name:
            after = node._replace(role=FENCED)
            yield f"{node.writer} finds a foreign object", _with(state, which, after)
        elif last.kind == RELEASED and rules.waits_after_release:
            after = Node(STANDBY, node.writer, seen=len(state.log), end=end, released=name)
            yield f"{node.writer} has released, and is a standby", _with(state, which, after)
        else:
            yield _sends_takeover(state, which, node._replace(role=RETAKING), end)
    elif state.starts < rules.starts:
        starts = state.starts + 1
        lease = node.lease if rules.takes_over_first else rules.lease
        after = Node(
            RETURNING,
            f"{name}{starts}",
            lease,
            unshipped=node.unshipped,
            closing=node.closing,
        )
        text = f"the shipper of {node.writer} is restarted as {after.writer}"
        yield text, _with(state, which, after)._replace(starts=starts)


def _ships(state: State, rules: Rules, which: int) -> Iterator[tuple[str, State]]:
    node = state.nodes[which]
    flying = {message for one in node.flights for message in one.thing.messages}
    waiting = tuple(message for message, _ in node.unshipped if message not in flying)
    if node.closing == OPEN and state.handovers < rules.handovers:
        after = _with(state, which, node._replace(closing=CLOSING))
        after = after._replace(handovers=state.handovers + 1)
        yield f"{node.writer} hands over, and acknowledges nothing more", after
    is_shipped = not node.unshipped and not node.flights
    if node.closing == CLOSING and (is_shipped or not rules.ships_before_release):
        gone = node._replace(closing=GONE)
        yield _sends(state, which, gone, Thing(node.number, RELEASED, node.writer))
    first = node.flights[0].thing.number if node.flights else node.number
    is_full = node.number >= first + rules.window or state.ticks == rules.ticks
    if not is_full and node.closing != GONE:
        yield _sends(state, which, node, Thing(node.number, TICK, node.writer, waiting))


def _sends(state: State, which: int, node: Node, thing: Thing) -> tuple[str, State]:
    node = node._replace(flights=(*node.flights, Flight(thing)), number=node.number + 1, since=0)
    after = _with(state, which, node)._replace(sent=state.sent | {thing})
    return f"{node.writer} sends {thing.kind} {thing.number}", after._replace(
        ticks=state.ticks + (thing.kind == TICK)
    )


def _answered(state: State, rules: Rules, which: int, place: int) -> Iterator[tuple[str, State]]:
    """The store carries out a request of the primary, and the primary gets the answer."""
    node = state.nodes[which]
    flight = node.flights[place]
    number = flight.thing.number
    state = _create(state, rules, flight.thing)
    text = f"{node.writer} has created {number}"
    if state.log[number] != flight.thing:
        text = f"{node.writer} finds that {number} is taken"
        if rules.stops_fenced:
            yield text, _with(state, which, node._replace(role=FENCED, flights=()))
            return
    flights = list(node.flights)
    flights[place] = flight._replace(created=True)
    counted: list[Flight] = []
    while flights and flights[0].created:
        counted.append(flights.pop(0))
    shipped = {message for one in counted for message in one.thing.messages}
    renewed = counted[-1:] if rules.prefix_only else [flight]
    left = [rules.lease - one.age if rules.from_begin else rules.lease for one in renewed]
    node = node._replace(
        lease=max(node.lease, *left, 0),
        flights=tuple(flights),
        unshipped=tuple(one for one in node.unshipped if one[0] not in shipped),
    )
    after = _with(state, which, node)
    if rules.sync:
        after = after._replace(acknowledged=state.acknowledged | shipped)
    yield text, after


def _visit(rules: Rules) -> dict[State, tuple[State, str] | None]:
    return visit(first_state(rules), partial(steps, rules=rules), partial(broken_rule, rules=rules))


def explore(rules: Rules) -> int:
    """Visit all states. Return their number. Raises `Broken`."""
    return len(_visit(rules))


def find_stuck(rules: Rules) -> tuple[int, list[str]]:
    """Search for a state from which a standby never takes over, although it takes each step as soon
    as it can, and the other broker is dead or fenced. Requests of the dead still take effect at any
    time. Return the number of states that were tried, and the steps to the one that was found.
    """
    before = _visit(rules)
    good: set[State] = set()
    tried = 0
    for state in before:
        for which in (0, 1):
            is_standby = state.nodes[which].role in (STANDBY, TAKING)
            if is_standby and state.nodes[1 - which].role in (IDLE, FENCED):
                tried += 1
                if not _takes_over(state, rules, which, good):
                    return tried, path(before, state)
    return tried, []


def _takes_over(first: State, rules: Rules, which: int, good: set[State]) -> bool:
    """Return True if all ways lead to a takeover. `good` are states of which this is known."""
    open_states: set[State] = set()
    waiting = [(first, False)]
    while waiting:
        state, is_done = waiting.pop()
        if is_done:
            good.add(state)
            open_states.discard(state)
        elif state in open_states:
            return False  # it is on the way to itself
        elif state not in good and state.nodes[which].role != PRIMARY:
            open_states.add(state)
            waiting.append((state, True))
            waiting += [(after, False) for after in _eager_steps(state, rules, which)]
    return True


def _eager_steps(state: State, rules: Rules, which: int) -> list[State]:
    own = next(_follows(state, rules, which), None) or next(_passes(state, rules))
    return [own[1], *(_create(state, rules, thing) for thing in state.sent)]
